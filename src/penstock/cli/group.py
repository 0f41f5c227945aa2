"""What all groups of commands do alike: show errors, and help with examples as they stand."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperGroup

from penstock.cli.output import fail, quit_pipe
from penstock.errors import PenstockError

_INDENTED = re.compile(r"(?:^    .*(?:\n|\Z))+", re.MULTILINE)


class Commands(TyperGroup):
    """Errors we know are shown as one clear message, and end with their exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = fenced(self.help)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.help = fenced(command.help)
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            raise typer.Exit(fail(error)) from None
        except BrokenPipeError:  # only of stdout: those of connections are errors of ours
            quit_pipe()


def fenced(text: str | None) -> str | None:
    """Help whose indented blocks are fenced: typer takes indents away before it shows them."""
    if text is None:
        return None
    return _INDENTED.sub(_fence, text)


def _fence(match: re.Match[str]) -> str:
    lines = [line[4:] for line in match[0].rstrip("\n").split("\n")]
    return "\n".join(["```text", *lines, "```", ""])
