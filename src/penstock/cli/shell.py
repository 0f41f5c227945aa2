"""`penstock shell`: a PySpark prompt with the streams as views."""

from __future__ import annotations

import atexit
import code
import contextlib
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.options import (
    DEFAULT_URL,
    CaOption,
    MasterOption,
    RemoteOption,
    TokenOption,
    UrlOption,
)
from penstock.cli.output import errors

if TYPE_CHECKING:
    from penstock.spark.shell import Shell

_HISTORY_LINES: Final = 10_000

DeltaOption = Annotated[bool, typer.Option("--delta", help="With Delta Lake (`penstock jars`).")]


def shell(
    command: Annotated[
        str | None, typer.Option("--command", "-c", metavar="CODE", help="Run this and end.")
    ] = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    delta: DeltaOption = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Ask Spark about streams: a PySpark prompt where each stream is a view.

    Python from a pipe is run as a script. IPython is used if it is installed.

    Examples:

        penstock shell
        penstock shell -c "sql('SELECT count(*) FROM orders').show()"
        penstock shell --delta --master 'local[2]' < report.py
    """
    from penstock.spark.session import spark_session
    from penstock.spark.shell import Shell
    from penstock.spark.views import HubAddress

    hub = HubAddress(url, token, None if ca is None else str(ca))
    with hub.client() as client:
        client.streams()  # a hub that is not there is worth knowing before Spark has started
    interactive = command is None and sys.stdin.isatty()
    if command is None and not interactive:
        command = sys.stdin.read()
    # A frame shows its rows at the prompt.
    conf = {"spark.sql.repl.eagerEval.enabled": "true"} if interactive else {}
    with errors.status("starting Spark"):
        spark = spark_session(
            "penstock shell", master=master, remote=remote, delta=delta, conf=conf
        )
        opened = Shell(spark, hub)
        if interactive:
            opened.make_views()
    try:
        status = 0
        if command is not None:
            status = execute(command, opened.names)
        else:
            _prompt(opened)
    finally:
        opened.close()
        spark.stop()
    raise typer.Exit(status)


def execute(text: str, names: dict[str, Any]) -> int:
    """Run code as a script; its errors are shown without our own frames."""
    try:
        exec(compile(text, "<shell>", "exec"), names)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever the code raised is shown
        stack = error.__traceback__
        traceback.print_exception(type(error), error, stack and stack.tb_next)
        return 1
    return 0


def _prompt(opened: Shell) -> None:
    names = opened.names
    print(opened.banner)
    try:
        ipython = importlib.import_module("IPython")
    except ImportError:
        _edit_lines(names)
        code.InteractiveConsole(names).interact(banner="", exitmsg="")
    else:
        ipython.start_ipython(argv=["--no-banner"], user_ns=names)


def _edit_lines(names: dict[str, Any]) -> None:
    """Completion, and a history that the next shell knows."""
    try:
        import readline
        import rlcompleter
    except ImportError:  # a Python without it can still be typed at
        return
    readline.set_completer(rlcompleter.Completer(names).complete)
    readline.parse_and_bind("tab: complete")
    history = history_file()
    with contextlib.suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        readline.read_history_file(history)
    readline.set_history_length(_HISTORY_LINES)

    def keep() -> None:
        with contextlib.suppress(OSError):
            readline.write_history_file(history)

    atexit.register(keep)


def history_file() -> Path:
    """`$XDG_STATE_HOME/penstock/shell_history`, by default below `~/.local/state`."""
    given = os.environ.get("XDG_STATE_HOME")
    base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".local/state"
    return base / "penstock" / "shell_history"
