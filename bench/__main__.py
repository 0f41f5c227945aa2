"""Run benchmarks and print a table: all, a group (`log`), or one of a group (`log.append`)."""

from __future__ import annotations

import sys

from bench import hub, log, spark, wallaroo
from bench.harness import Run

GROUPS = {
    "log": log.BENCHMARKS,
    "hub": hub.BENCHMARKS,
    "spark": spark.BENCHMARKS,
    "wallaroo": wallaroo.BENCHMARKS,
}


def main(wanted: list[str]) -> int:
    names = [f"{group}.{name}" for group, each in GROUPS.items() for name in each]
    chosen = [
        name
        for name in names
        if not wanted or any((name + ".").startswith(w + ".") for w in wanted)
    ]
    if not chosen:
        print(f"nothing is called {wanted}; there are: {', '.join(names)}", file=sys.stderr)
        return 2
    run = Run()
    for name in chosen:
        group, _, each = name.partition(".")
        run.console.rule(name, align="left")
        GROUPS[group][each](run)
    run.console.print(run.table())
    run.console.print(f"written to {run.save().relative_to(run.save().parents[2])}")
    return 0


if __name__ == "__main__":
    sys.exit(main([name for arg in sys.argv[1:] for name in arg.split(",") if name]))
