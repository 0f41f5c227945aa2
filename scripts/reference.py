"""Write docs/configuration.md from the classes that define the settings."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import msgspec

from penstock import config
from penstock.log.settings import StreamSettings

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRO = """\
# Configuration

<!-- made by scripts/reference.py; edit the docstrings in src/penstock/config.py instead -->

Values come from a TOML file (`--config`, or `penstock.toml` if it is there), then from the
environment (`PENSTOCK_<SECTION>_<KEY>`, as in `PENSTOCK_HTTP_LISTEN`), then from flags
(`--set section.key=value`); the later wins. `penstock check` shows what it all comes to, where each
value is from, and every mistake with its file and line.

```toml
[hub]
data = "/var/lib/penstock"

[http]
listen = "127.0.0.1:7470"
```
"""


def field_texts(kind: type) -> dict[str, str]:
    """The string after each field in the source of a class."""
    body = ast.parse(inspect.getsource(kind).lstrip()).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            target, text = before.target, after.value
            if isinstance(target, ast.Name) and isinstance(text, ast.Constant):
                texts[target.id] = " ".join(str(text.value).split())
    return texts


def section(title: str, kind: type[msgspec.Struct]) -> str:
    summary = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    lines = [f"## {title}", "", summary, "", "| key | must be | default | |", "|---|---|---|---|"]
    texts = field_texts(kind)
    lines += [
        f"| `{field.name}` | {config.describe_type(field.type)} | {_shown(field.default)} | "
        f"{texts.get(field.name, '')} |"
        for field in msgspec.structs.fields(kind)
    ]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def page() -> str:
    parts = [INTRO]
    parts += [section(f"[{name}]", kind) for name, kind in config.sections().items()]
    parts.append(section("Settings of a stream", StreamSettings))
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0 if PAGE.read_text() == page() else "docs/configuration.md is old: make reference"
        )
    PAGE.write_text(page())
