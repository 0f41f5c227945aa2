"""What every log promises, whatever it is made of.

A log is put to the test by a subclass that says how it is opened:

    class TestMyLog(LogContract):
        @pytest.fixture(scope="class")
        @classmethod
        def open_log(cls, tmp_path_factory):
            ...
            yield opener

where `opener(place, clock=..., group_stale_seconds=...)` opens the log kept at `place`: an empty
one the first time, the same one again after it was closed. Only `penstock.log.Log` is used.
"""

from tests.contract.log.appending import Appending
from tests.contract.log.base import Base, OpenLog
from tests.contract.log.groups import GroupsOfReaders
from tests.contract.log.keeping import KeepingHouse
from tests.contract.log.notes import NotesOfDoors
from tests.contract.log.producers import SendersWithIds
from tests.contract.log.publishing import Publications
from tests.contract.log.reading import Reading
from tests.contract.log.reopening import Reopening
from tests.contract.log.streams import StreamsAndPartitions


class LogContract(
    StreamsAndPartitions,
    Appending,
    SendersWithIds,
    Publications,
    NotesOfDoors,
    Reading,
    GroupsOfReaders,
    KeepingHouse,
    Reopening,
):
    """All of it."""


__all__ = ["Base", "LogContract", "OpenLog"]
