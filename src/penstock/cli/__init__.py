"""The `penstock` command."""

from penstock.cli.main import app, main

__all__ = ["app", "main"]
