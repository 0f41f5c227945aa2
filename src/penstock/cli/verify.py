"""`penstock verify`: check a data directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.options import JsonOption
from penstock.cli.output import progress, say, show_json, show_table, size
from penstock.log.verify import VerifyReport
from penstock.log.verify import repair as cut_tails
from penstock.log.verify import verify as verify_data


def verify(
    data: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="Data directory.")
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Cut what a crash left behind the last checkpoint.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check every record of a data directory that no hub uses. Changes nothing by itself.

    Exits with 1 if data is damaged or missing. A torn tail is what a crash leaves: it was never
    confirmed, or the journal has it, and `--repair` cuts it off.

    Examples:

        penstock verify /var/lib/penstock
        penstock verify data --repair --json
    """
    report = _verify(data)
    cut = []
    if repair and any(problem.kind == "torn-tail" for problem in report.problems):
        cut = cut_tails(data)
        report = _verify(data)
    if json:
        found = msgspec.to_builtins(report)
        show_json({"ok": report.ok, **found, "cut": [str(path) for path in cut]})
    else:
        for path in cut:
            say(f"cut {path}")
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _verify(data: Path) -> VerifyReport:
    with progress("verifying") as bar:
        return verify_data(
            data,
            progress=lambda what, done, total: bar.update(
                bar.task_ids[0], description=what, completed=done, total=total
            ),
        )


def _show(report: VerifyReport) -> None:
    rows = [(problem.kind, problem.where, problem.message) for problem in report.problems]
    if rows:
        show_table(("problem", "where", "what"), rows, "")
    print(
        f"{'ok' if report.ok else 'DATA IS LOST'}: {report.streams} streams, {report.partitions} "
        f"partitions, {report.segments} segments with {report.records:,} records "
        f"({size(report.bytes)}), {report.journal_records:,} records in the journal"
    )
