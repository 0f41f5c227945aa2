"""`penstock jars`: fetch what Spark needs for Delta tables and for Kafka."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from penstock.cli.options import JsonOption
from penstock.cli.output import progress, say, show_json, show_table, size


class Set(Enum):
    """What can be asked for."""

    DELTA = "delta"
    KAFKA = "kafka"
    ALL = "all"


def jars(
    wanted: Annotated[Set, typer.Option("--set", help="Which jars.")] = Set.ALL,
    json: JsonOption = False,
) -> None:
    """Fetch the jars that Spark needs for Delta tables and for Kafka, once.

    They are checked against pinned checksums and kept in `~/.cache/penstock/jars`, or where
    PENSTOCK_JARS says. If all are there, nothing goes over the network.

    Examples:

        penstock jars
        penstock jars --set delta --json
    """
    from penstock.spark import jars as pinned

    names = list(pinned.JARS) if wanted is Set.ALL else [wanted.value]
    lacking = len(pinned.missing(names))
    if lacking:
        say(f"fetching {lacking} jars with Spark's own resolver, half a minute or so ...")
    with progress("fetching jars", lacking, shown=bool(lacking) and not json) as bar:
        fetched = pinned.fetch(names, lambda jar: bar.advance(bar.task_ids[0]))
    rows: list[dict[str, Any]] = [
        {
            "set": name,
            "coordinates": jar.coordinates,
            "path": str(path),
            "bytes": path.stat().st_size,
            "fetched": jar in fetched,
        }
        for name in names
        for jar, path in zip(pinned.JARS[name], pinned.paths(name), strict=True)
    ]
    if json:
        show_json({"folder": str(pinned.folder()), "jars": rows})
        return
    show_table(
        ("set", "jar", "size>", ""),
        [
            (
                each["set"],
                each["coordinates"],
                size(each["bytes"]),
                "fetched" if each["fetched"] else "was there",
            )
            for each in rows
        ],
        "",
    )
    print(f"in {pinned.folder()}")
