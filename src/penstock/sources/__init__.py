"""Sources for connectors that are there already: files, and messages made up."""

from penstock.sources.file import FileSource
from penstock.sources.generate import GenerateSource

__all__ = ["FileSource", "GenerateSource"]
