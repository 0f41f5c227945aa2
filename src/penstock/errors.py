"""Every error Penstock raises, on one page.

    PenstockError
    ├── LocalError                 the caller misused it; nothing was changed
    │   ├── BadName                a stream, group or producer name outside the rule
    │   ├── BadBatch               columns that do not fit together
    │   ├── BadSetting             a setting out of range, or two that contradict each other
    │   ├── UnknownStream          no such stream
    │   ├── UnknownPartition       the stream has fewer partitions
    │   ├── UnknownGroup           no such group, or it has no position there
    │   ├── UnknownUser            no such user
    │   ├── UnknownSession         no such session of a connector
    │   ├── DoorClosed             the hub does not speak that protocol
    │   ├── StreamExists           the name is taken, or clashes with one that is
    │   ├── IndexOutOfRange        an index past the end of a partition
    │   ├── IndexTrimmed           an index below the earliest one kept
    │   ├── DataLost               records a query had still to read are gone
    │   ├── StagedMissing          what is to be published is not staged
    │   ├── PositionBackwards      a saved position may only move forward; reset it instead
    │   ├── BadFormat              bytes that are not what their content type says
    │   ├── BadStatement           SQL that cannot run as a pipeline
    │   ├── Unauthorized           no token, or one that is not valid
    │   ├── Forbidden              the user has no right to do that
    │   └── LimitExceeded          larger or more than a limit in `limits.py` allows
    │       ├── RecordTooLarge
    │       ├── BatchTooLarge
    │       └── TooMany
    ├── RemoteError                the peer broke its protocol's rules (protocols derive from it)
    ├── PipelineError              a pipeline cannot go on
    │   ├── TableForeign           the table was not written by this archive of this hub
    │   ├── TableInUse             another process is at work on the table
    │   └── QueryFailed            a query ended with an error
    ├── SparkError                 what Spark needs is not there
    │   ├── SparkMissing           PySpark is not installed
    │   ├── JavaMissing            no Java, or none that is new enough
    │   ├── JarsMissing            jars that were not fetched, or are not what they should be
    │   └── SparkUnreachable       no Spark server at that address
    └── LogError                   the log cannot do it now
        ├── LogBusy                its buffer is full; wait for room
        ├── LogClosed              it was closed
        ├── DiskFull               no space left; reads go on, appends resume when there is room
        ├── DataDirectoryInUse     another process owns the data directory
        ├── HubUnreachable         no hub answers; it may be starting
        ├── HubBusy                as many calls as the hub serves at once; try again
        └── StorageError           the disk failed, or what is on it is not what was written
            ├── StorageFailed      a write or sync failed; the log has stopped
            ├── FormatUnknown      written by a version this one does not read
            ├── JournalDamaged     confirmed frames of the journal do not check
            ├── SegmentDamaged     a batch in a segment does not check
            └── SegmentMissing     records that must be in a segment are in none

Every error has a `code` that never changes (for scripts and the API) and a message that says what
was received, what is allowed, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Anything Penstock raises on purpose."""

    code: ClassVar[str] = "error"


class LocalError(PenstockError):
    """The caller asked for something that cannot be; nothing was changed."""

    code = "bad-request"


class BadName(LocalError):
    code = "bad-name"


class BadBatch(LocalError):
    code = "bad-batch"


class BadSetting(LocalError):
    code = "bad-setting"


class UnknownStream(LocalError):
    code = "unknown-stream"


class UnknownPartition(LocalError):
    code = "unknown-partition"


class UnknownGroup(LocalError):
    code = "unknown-group"


class UnknownUser(LocalError):
    code = "unknown-user"


class UnknownSession(LocalError):
    code = "unknown-session"


class DoorClosed(LocalError):
    code = "door-closed"


class StreamExists(LocalError):
    code = "stream-exists"


class IndexOutOfRange(LocalError):
    code = "index-out-of-range"


class IndexTrimmed(LocalError):
    """The records asked for were dropped by retention."""

    code = "index-trimmed"

    def __init__(self, message: str, *, earliest: int) -> None:
        super().__init__(message)
        self.earliest = earliest


class DataLost(LocalError):
    code = "data-lost"


class PositionBackwards(LocalError):
    code = "position-backwards"


class StagedMissing(LocalError):
    code = "staged-missing"


class BadFormat(LocalError):
    code = "bad-format"


class BadStatement(LocalError):
    code = "bad-statement"


class Unauthorized(LocalError):
    code = "unauthorized"


class Forbidden(LocalError):
    code = "forbidden"


class LimitExceeded(LocalError):
    code = "limit-exceeded"


class RecordTooLarge(LimitExceeded):
    code = "record-too-large"


class BatchTooLarge(LimitExceeded):
    code = "batch-too-large"


class TooMany(LimitExceeded):
    code = "too-many"


class RemoteError(PenstockError):
    """The peer broke the rules of its protocol."""

    code = "protocol-error"


class PipelineError(PenstockError):
    """A pipeline on Spark cannot go on."""

    code = "pipeline-error"


class TableForeign(PipelineError):
    code = "table-foreign"


class TableInUse(PipelineError):
    code = "table-in-use"


class QueryFailed(PipelineError):
    code = "query-failed"


class SparkError(PenstockError):
    """What Spark needs is not there."""

    code = "spark-error"


class SparkMissing(SparkError):
    code = "spark-missing"


class JavaMissing(SparkError):
    code = "java-missing"


class JarsMissing(SparkError):
    code = "jars-missing"


class SparkUnreachable(SparkError):
    code = "spark-unreachable"


class LogError(PenstockError):
    """The log cannot do it now."""

    code = "log-error"


class LogBusy(LogError):
    code = "log-busy"


class LogClosed(LogError):
    code = "log-closed"


class DiskFull(LogError):
    code = "disk-full"


class DataDirectoryInUse(LogError):
    code = "data-directory-in-use"


class HubUnreachable(LogError):
    code = "hub-unreachable"


class HubBusy(LogError):
    code = "hub-busy"


class StorageError(LogError):
    code = "storage-error"


class StorageFailed(StorageError):
    code = "storage-failed"


class FormatUnknown(StorageError):
    code = "format-unknown"


class JournalDamaged(StorageError):
    code = "journal-damaged"


class SegmentDamaged(StorageError):
    code = "segment-damaged"


class SegmentMissing(StorageError):
    code = "segment-missing"
