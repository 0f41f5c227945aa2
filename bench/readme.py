"""Put what was measured into the README: `python -m bench.readme`. No number there is typed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from bench.harness import OUT, number

ROOT = Path(__file__).parents[1]
WORDS = {
    "log.append_1k": "durable append, groups of 1,000 records, against raw write + `fdatasync`",
    "log.append_10k": "the same, groups of 10,000",
    "log.commit_64_partitions": "commit over 64 partitions, against over one",
    "log.read_arrow": "sequential read to Arrow of data that does not compress, against plain "
    "read + crc32c of the same bytes",
    "log.random_read": "100 records from a random index, not compressed, p50, against 100 us",
    "log.growth_append": "append with 1,000 segments, against 10",
    "log.growth_read": "read (a record) with 1,000 segments, against 10",
    "log.reopen_growth": "open after kill -9 with 4 GB stored, against 400 MB",
    "log.low_rate": "1,000 streams with a record a second each, without the timers that drive it, "
    "against 12 % of a core",
    "log.low_rate_ack_p50": "its confirmations, p50",
    "log.low_rate_ack_p99": "its confirmations, p99",
    "log.many_streams": "1,000 streams interleaved at random, against raw append",
    "log.many_streams_10k": "10,000 streams interleaved at random, against raw append",
    "log.readers": "append while another process scans everything, against alone",
    "hub.http_append": "1,000 records a request over HTTP as Arrow, against the log itself",
    "hub.http_append_json": "the same as JSON lines, against 150,000 records/s",
    "hub.idle_memory": "memory of an idle hub, against 150 MiB",
    "hub.start": "seconds until a hub is ready",
    "hub.start_1k_streams": "the same with 1,000 streams",
    "wallaroo.ingest": "100-byte messages of a Wallaroo connector, durable and acked, against raw "
    "write + `fdatasync` of the same payloads",
    "wallaroo.ingest_ack_p99": "from sending to the ack, p99, at that rate",
    "wallaroo.ingest_100_streams": "the same with 100 streams interleaved at random",
    "wallaroo.ingest_1000_streams": "the same over 100 connections with 10 streams each",
    "wallaroo.ingest_1000_streams_ack_p99": "its acks, p99",
    "wallaroo.ingest_1kib": "messages of 1 KiB, one stream",
    "wallaroo.ingest_100_streams_1kib": "messages of 1 KiB, 100 streams",
    "wallaroo.connector": "our own connector from a Python source, against 500,000 messages/s",
    "wallaroo.memory_stalled": "growth of the hub while its disk stands still and 100 connections "
    "push, against 64 MiB",
    "spark.read_segments": "streaming read of 10 M records by Spark from segments on the same "
    "machine, against Spark's own Parquet file stream of the same rows",
    "spark.read_flight": "the same through Arrow Flight",
    "spark.archive_cpu": "processor time of an archive to Parquet, against Parquet to Parquet",
    "spark.latency_low": "from the hub to `foreachBatch` with `latency=low`, 200 events/s, against "
    "268 ms of Spark's Kafka source",
    "spark.latency_low_p99": "the same, p99, against 410 ms",
    "spark.latency_bulk": "the same with `latency=bulk`, p50, against 268 ms",
    "spark.latency_bulk_p99": "the same, p99, against 410 ms",
    "spark.sink": "rows from Spark into a stream, on disk and visible, against 500,000 rows/s",
    "log.memory_stalled": "memory above the buffer while the disk stands still, against 64 MiB",
}


def figures(results: list[dict[str, object]], before: str) -> str:
    """The table of the README. Figures that were not measured this time stay as they were."""
    rows = dict(re.findall(r"^(\| `([a-z0-9_.]+)` \|.*)$", before, re.MULTILINE))
    rows = {name: row for row, name in rows.items()}
    for result in results:
        name = str(result["name"])
        if name in WORDS:
            ratio = result["ratio"]
            shown = f"{ratio:.2f}" if isinstance(ratio, float) else ""
            measured = f"{number(float(str(result['value'])))} {result['unit']}"
            asked = str(result["goal"]).replace(">=", "≥").replace("<=", "≤")
            rows[name] = f"| `{name}` | {WORDS[name]} | {measured} | {shown} | {asked} |"
    lines = ["| figure | what | measured | ratio | asked |", "|---|---|---|---|---|"]
    return "\n".join(lines + [rows[name] for name in WORDS if name in rows])


def main() -> int:
    measured = json.loads((OUT / "latest.json").read_text())
    machine = measured["machine"]
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['file_system']}, "
        f"Python {machine['python']}, {machine['time'][:10]}"
    )
    path = ROOT / "README.md"
    text = path.read_text()
    text = _put(text, "figures", f"Measured on {where}.\n\n{figures(measured['results'], text)}")
    crash = OUT / "crash.json"
    if crash.exists():
        said = json.loads(crash.read_text())
        text = _put(
            text,
            "checked",
            f"The checker's last result (`make crash`): {said['rounds']:,} rounds, "
            f"{said['kills']:,} kills, {said['confirmed']:,} confirmed records, "
            f"**{said['lost']} lost, {said['doubled']} doubled**.",
        )
    path.write_text(text)
    return 0


def _put(text: str, mark: str, content: str) -> str:
    pattern = rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)"
    if not re.search(pattern, text, re.DOTALL):
        raise SystemExit(f"README.md has no <!-- {mark} --> ... <!-- /{mark} -->")
    return re.sub(pattern, lambda m: f"{m[1]}{content}\n{m[2]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
