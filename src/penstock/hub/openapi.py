"""The API's description, by hand and held to the API by tests."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import penstock


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    text = resources.files("penstock.hub").joinpath("openapi.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    loaded["info"]["version"] = penstock.__version__
    return loaded
