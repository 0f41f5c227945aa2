"""The public client classes of all protocols, on one page.

    from penstock.clients import Chunk, Connector

So far: Wallaroo. A `Connector` sends what sources have to a worker, which may be a hub.
"""

from penstock.protocols.wallaroo.client import (
    Backoff,
    Chunk,
    Connector,
    Progress,
    Single,
    Source,
    WorkerFailed,
)
from penstock.sources import FileSource, GenerateSource

__all__ = [
    "Backoff",
    "Chunk",
    "Connector",
    "FileSource",
    "GenerateSource",
    "Progress",
    "Single",
    "Source",
    "WorkerFailed",
]
