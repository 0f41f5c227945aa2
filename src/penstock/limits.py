"""Every limit of Penstock, on one page: its name, its value and why it is that value.

Sizes are in bytes and times in seconds unless the name says otherwise. What an operator may
change is a setting whose default stands here; the rest is fixed.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- names -------------------------------------------------------------------------------------

STREAM_NAME_CHARS_MAX: Final = 249
"""Kafka's topic limit, so that a stream can move to Kafka under its own name."""

GROUP_NAME_BYTES_MAX: Final = 255
PRODUCER_NAME_BYTES_MAX: Final = 255
"""A producer's name travels in each of its journal frames behind a one-byte length."""

# -- counts ------------------------------------------------------------------------------------

STREAMS_MAX: Final = 100_000
PARTITIONS_PER_STREAM_MAX: Final = 1_024
PARTITIONS_MAX: Final = 200_000
"""Each costs about 100 bytes of the hub's memory, and one directory."""

GROUPS_MAX: Final = 10_000
PRODUCERS_MAX: Final = 1_000_000
"""(producer, partition) pairs; each costs about 200 bytes of the hub's memory."""

WAITERS_MAX: Final = 100_000
"""Readers that wait at the end of a partition."""

# -- records and batches -----------------------------------------------------------------------

RECORD_BYTES_MAX: Final = 16 * MIB
"""Key, value and headers of one record; a setting of each log (`record_bytes_max`)."""

BATCH_RECORDS_MAX: Final = 1_000_000
BATCH_PARTITIONS_MAX: Final = 65_535
"""A frame numbers the partitions it touches with 16 bits: such a column sorts ten times faster."""

RECORD_HEADERS_MAX: Final = 128
"""Headers of one record; the same number as common HTTP servers."""

READ_RECORDS_MAX: Final = 1_000_000
READ_BYTES_MAX: Final = 64 * MIB
"""What one read gives at most; one record larger than asked for is still given."""

# -- the journal -------------------------------------------------------------------------------

JOURNAL_BYTES_DEFAULT: Final = 512 * MIB
JOURNAL_BYTES_MIN: Final = 1 * MIB
JOURNAL_BYTES_MAX: Final = 64 * 1024 * MIB
CHECKPOINT_BYTES_DEFAULT: Final = 64 * MIB
"""A checkpoint per 64 to 96 MiB measured best; the ring is at least four times that."""

JOURNAL_PER_CHECKPOINT_MIN: Final = 4
CHECKPOINT_AGE_DEFAULT_S: Final = 300.0
"""Even a slow stream's records reach a segment within this time."""

GROUP_BYTES_MAX: Final = 32 * MIB
"""One group commit at most; also never more than a quarter of the ring."""

BUFFER_BYTES_DEFAULT: Final = 64 * MIB
"""Records handed over and not yet on disk; appenders wait beyond it."""

FRAME_BYTES_MAX: Final = 8 * KIB
"""What a frame of one record has around it at most: its head, its producer, 128 headers."""

LINGER_DEFAULT_S: Final = 0.005
"""How long a commit waits for company when many small appends come one by one."""

LINGER_BELOW_BYTES: Final = 64 * KIB
"""A group at least this large is committed at once."""

# -- segments ----------------------------------------------------------------------------------

SEGMENT_BYTES_DEFAULT: Final = 128 * MIB
SEGMENT_BYTES_MIN: Final = 16 * KIB
SEGMENT_BYTES_MAX: Final = 1024 * MIB
SEGMENT_BATCH_BYTES: Final = 384 * KIB
"""One Arrow batch in a segment: small enough that a random read stays below 100 us with its
checksum, large enough that the 600 bytes around it do not matter."""

STRETCH_BYTES_MIN: Final = 8 * MIB
STRETCH_BYTES_MAX: Final = 128 * MIB
"""How much of the journal the segment writer takes at a time; more partitions, larger stretch."""

STRETCH_BYTES_PER_PARTITION: Final = 64 * KIB
WRITEBACK_BYTES_MIN: Final = 1 * MIB
"""A write this large is pushed to the disk early: the checkpoint's sync then finds little to do
(ack p99 61 -> 16 ms); for smaller writes it only costs."""

SYNC_FILES_ONE_BY_ONE_MAX: Final = 64
"""Above, one `syncfs` is cheaper than a sync of each file."""

OPEN_SEGMENTS_MAX: Final = 512
"""File descriptors kept open by the segment writer, and by the readers of one log."""

WRITER_RESTART_S_MAX: Final = 5.0
"""Longest pause before a dead segment writer is started again."""

WRITER_MESSAGE_BYTES_MAX: Final = 256 * MIB

TAIL_CHAINS_MAX: Final = 4_096
"""Partitions whose way through the journal is remembered for readers."""

TAIL_FRAMES_PER_READ_MAX: Final = 16_384

RETENTION_MAX: Final = 2**53
"""Of seconds, bytes or records to keep: whole numbers beyond are not exact in JSON."""

# -- staging and publishing --------------------------------------------------------------------

WRITER_NAME_BYTES_MAX: Final = 1_024
"""A checkpoint location and a query's id fit."""

STAGED_RECORDS: Final = 65_536
STAGED_BATCH_BYTES: Final = 8 * MIB
"""One staged batch, and so one append of a publication; also never more than half a group."""

STAGING_BYTES_DEFAULT: Final = 32 * 1024 * MIB
"""All that is staged and not published; it is on disk, not in memory."""

STAGED_S_MAX: Final = 7 * 24 * 3600.0
"""What was staged and not published within this time is removed."""

PUBLISHED_PARTS_MAX: Final = 100_000
"""Parts of one publication: a task of a Spark job stages one."""

PUBLICATIONS_MAX: Final = 100_000
"""Writers whose last epoch is remembered; beyond, those that published longest ago are
forgotten, but never one that did so within `PUBLICATION_KEPT_S`."""

PUBLICATION_KEPT_S: Final = 30 * 24 * 3600.0

# -- notes -------------------------------------------------------------------------------------

NOTE_NAME_BYTES_MAX: Final = 1_024
NOTE_BYTES_MAX: Final = 64 * KIB
NOTES_MAX: Final = 100_000
"""Of all doors together; they are kept in memory too."""

# -- waits -------------------------------------------------------------------------------------

OWNER_EXIT_S_MAX: Final = 20.0
"""How long opening waits for the segment writer of a killed owner to notice and exit."""

CLOSE_S_MAX: Final = 60.0
FOLLOW_S_MAX: Final = 300.0

# -- the hub's HTTP API ------------------------------------------------------------------------

HTTP_BODY_BYTES_MAX: Final = 32 * MIB
"""One request body; more records go in several requests."""

HTTP_BODY_S_MAX: Final = 30.0
HTTP_HEADERS_BYTES_MAX: Final = 16 * KIB
HTTP_CONNECTIONS_MAX: Final = 12_000
HTTP_KEEPALIVE_S: Final = 75.0
HTTP_BODIES_BYTES_MAX: Final = 128 * MIB
"""All request bodies held at once; further requests wait."""

READ_WAIT_S_MAX: Final = 60.0
"""How long a read may wait at the end for more; proxies close what is idle for longer."""

TAIL_READ_BYTES: Final = 64 * KIB
"""What one live tail reads at a time, and so holds while its client does not take it."""

TAIL_HEARTBEAT_S: Final = 15.0
TAIL_END_S_MAX: Final = 1.0
"""How long the end of a tail may take to reach a client that may not read."""

TAIL_WRITE_S_MAX: Final = 30.0
"""A tail that takes nothing for this long is closed."""

USERS_MAX: Final = 10_000
USER_NAME_BYTES_MAX: Final = 64
RIGHTS_PER_USER_MAX: Final = 100
TOKENS_CACHED_MAX: Final = 10_000
"""Tokens that were checked lately: argon2id takes 50 ms on purpose."""

METRIC_PARTITIONS_MAX: Final = 10_000
"""Partitions with metrics of their own, of streams in the order of their names."""

METRIC_STREAMS_MAX: Final = 1_000
"""Streams with metrics of their own; the rest is counted together under `_other`."""

# -- the hub's Arrow Flight door ---------------------------------------------------------------

FLIGHT_CALLS_MAX: Final = 128
"""Calls at once: each has a thread, and holds one read or one batch. Further ones are told to try
again."""

FLIGHT_MESSAGE_BYTES: Final = 1 * MIB
"""What a read takes from the log at a time and sends as one message. A client that takes nothing
costs 6 MiB, with what gRPC and the allocator keep; 2 MiB are slower, as they leave the caches."""

FLIGHT_PUT_BYTES: Final = 2 * MIB
"""Penstock's own client sends larger batches in parts of this size."""

FLIGHT_BATCH_BYTES_MAX: Final = 64 * MIB
"""One batch that is sent; the same as one read."""

FLIGHT_BODY_BYTES_MAX: Final = 4 * MIB
"""The JSON of one action, ticket or descriptor: a look at ten thousand streams fits."""

FLIGHT_UNCONFIRMED_MAX: Final = 32
"""Batches of one call that are not on disk yet; the door reads on when some are."""

FLIGHT_WAIT_S_MAX: Final = 5.0
"""How long a look waits for something new."""

FLIGHT_WAITING_MAX: Final = 64
"""Looks that wait at once, so that half of the calls stay free for others; more do not wait."""

FLIGHT_BUSY_S_MAX: Final = 30.0
"""How long Penstock's own client tries again while the hub is busy."""

FLIGHT_CALL_S_MAX: Final = 120.0
"""How long an action may take; a read or a write may take any time."""

FLIGHT_ERROR_CHARS_MAX: Final = 1_000
"""Of an error's message: it travels in headers of at most 8 KiB, twice."""

# -- the Wallaroo door -------------------------------------------------------------------------

WALLAROO_FRAME_BYTES_MAX: Final = 4 * MIB
"""One frame; the specification wants "a few megabytes", to be configured."""

WALLAROO_HELLO_BYTES_MAX: Final = 16 * KIB
"""A HELLO, which anybody may send: a version, a cookie and two names; as HTTP's headers."""

WALLAROO_READ_BYTES: Final = 256 * KIB
"""A busy connection's buffer: what one read takes at most. Idle ones stay at the next."""

WALLAROO_FIRST_READ_BYTES: Final = 4 * KIB
WALLAROO_DIRECT_BYTES: Final = 64 * MIB
"""What is decoded at once of data handed over: offsets within it have 31 bits."""

WALLAROO_WINDOW_BYTES: Final = 12 * MIB
"""What all connectors together may have on its way to the disk: three commits of a fast disk."""

WALLAROO_CREDITS_MAX: Final = 32_768
"""Of one session: at three million messages a second that is 11 ms of them."""

WALLAROO_CREDITS_MIN: Final = 16
"""However large its messages are, a session keeps so many credits."""

WALLAROO_FIRST_CREDITS: Final = 1_000
"""Before the first message shows how large they are."""

WALLAROO_SHIPPED_CREDITS: Final = 200
"""The same for shipped connectors, which stand still when they have fewer than streams."""

WALLAROO_SHIPPED_WINDOW_BYTES: Final = 1_000_000
"""Shipped connectors lose data when the kernel takes only a part of what they send: 1.4 MB on the
way were measured to be safe, 4 MB not."""

WALLAROO_STREAMS_MAX: Final = 10_000
"""Of one session."""

WALLAROO_MARKS_MAX: Final = 256
"""Messages of one stream that wait for a group are remembered at so many places."""

WALLAROO_CONNECTIONS_MAX: Final = 2_000
WALLAROO_HELLO_S_MAX: Final = 10.0
WALLAROO_FRAME_S_MAX: Final = 60.0
"""How long one frame may take to arrive."""

WALLAROO_WRITE_BYTES_MAX: Final = 256 * KIB
WALLAROO_WRITE_S_MAX: Final = 30.0
"""A connector that does not take what it is sent is cut off after this time."""

WALLAROO_NOTES_MAX: Final = 50_000
"""Streams of connectors that are remembered: half of all notes."""

# -- Wallaroo connectors -----------------------------------------------------------------------

WALLAROO_TURN_BYTES: Final = 256 * KIB
WALLAROO_TURN_MESSAGES: Final = 512
"""What one stream sends before it is the next one's turn, or its share of the credits: fewer at a
time cost more, as a run of frames takes some 50 microseconds to write, whatever its length."""

WALLAROO_GATHER_MESSAGES: Final = 1_000
WALLAROO_GATHER_BYTES: Final = 256 * KIB
"""Messages a source yields one by one are held until so many can be sent as a run."""

WALLAROO_CHUNKS_MAX: Final = 2
"""Chunks of a source that are held: one that is being sent, and the next."""

WALLAROO_NACKS_MAX: Final = 10_000
"""NACKs that wait for credits to be answered; a worker that sends more is not served."""

WALLAROO_CONNECT_S_MAX: Final = 10.0
"""How long a worker may take to accept a connection, and then to say OK."""

WALLAROO_RETRY_S_MIN: Final = 0.1
WALLAROO_RETRY_S_MAX: Final = 30.0
"""Pauses between attempts to connect: doubled each time, and shortened by chance up to a half."""

WALLAROO_ERRORS_MAX: Final = 3
"""So many times in a row a worker may answer with ERROR before a connector gives up."""

WALLAROO_STOP_S: Final = 10.0
"""How long a connector that is stopped waits for acks of what it has sent."""

SOURCE_READ_BYTES: Final = 512 * KIB
"""What a source reads of a file at once, and so about what a chunk holds."""

# -- groups ------------------------------------------------------------------------------------

GROUP_STALE_DEFAULT_S: Final = 7 * 24 * 3600.0
"""A registered group that saved nothing for this long is reported as stale."""

# -- SQL, shell, declarative pipelines ---------------------------------------------------------

SQL_FILE_CHARS_MAX: Final = 1_000_000
"""A file of `penstock pipeline sql`; one that is larger is data, not statements."""

SQL_QUERIES_MAX: Final = 32
"""Statements of one file that start a query; run continuously, they all run at once."""

VIEWS_MAX: Final = 50
"""Views a shell makes at its start, at some 50 ms each; others come when they are first named."""

CONNECT_PORT_S_MAX: Final = 120.0
"""How long a declarative pipeline waits for another one to end: Spark gives them one port."""

REASON_LINES_MAX: Final = 60
"""Of what a failed program printed, so much is shown as the reason; all of it is in a file."""

# -- Spark -------------------------------------------------------------------------------------

SPARK_BATCH_RECORDS: Final = 65_536
"""One Arrow batch given to Spark: 8 thousand rows cost a third more CPU, more gain nothing."""

SPARK_BATCH_BYTES: Final = 16 * MIB
"""Batches of large records have fewer rows; 64 thousand of 100 bytes stay below."""

SPARK_TIMEOUT_DEFAULT_S: Final = 60.0
"""How long a query waits for a hub that does not answer before it fails."""

SPARK_TIMEOUT_S_MAX: Final = 24 * 3600.0
SPARK_RETRY_S_MAX: Final = 2.0
"""Longest pause between two attempts to reach the hub."""

SPARK_WAIT_S: Final = 0.1
"""How long a query with nothing to do waits at the hub; without it, it would ask 30 times a
second."""

SPARK_DIRECT_RECORDS_MIN: Final = 16_384
"""A range this long is looked for in the segments; a shorter one costs less from the hub."""

SPARK_PART_BYTES: Final = 32 * MIB
"""Rows a task of the sink holds until the hub has them on disk, to send them again if it dies."""

SPARK_PARTITIONS_MAX: Final = 100_000
SPARK_LOW_RECORDS_MAX: Final = 65_536
SPARK_LOW_BYTES_MAX: Final = 16 * MIB
"""What one read of `latency=low` takes at most: it passes through the driver's memory."""

# -- the archive -------------------------------------------------------------------------------

TABLE_STATE_BYTES_MAX: Final = 64 * MIB
"""The files one batch adds to a table, by name: about 400,000."""

TABLE_LOCK_S_MAX: Final = 60.0
"""How long moving files may keep others from it; it takes milliseconds."""

ARCHIVE_QUERIES_MAX: Final = 8
"""Queries at once; each costs threads and a Python process. More streams take turns."""

ARCHIVE_BATCH_BYTES_DEFAULT: Final = 512 * MIB
"""What a batch reads: large enough for good files, small enough to be repeated."""

ARCHIVE_WRITERS_MAX: Final = 16
"""Dates that a task writes at once without sorting its rows first."""

ARCHIVE_STARTS_MAX: Final = 2
"""Queries that start at once: Python takes 2 CPU seconds to import what they need."""

ARCHIVE_SPLIT_RECORDS: Final = 100_000
"""With so many records to read, a stream of few partitions is shared out to all cores."""

ARCHIVE_PROBES_MAX: Final = 64
"""Partitions whose first and last record are looked at to see whether a batch has one date."""

ARCHIVE_STOP_S_MAX: Final = 600.0
"""How long stopping waits for the batches that run; then they are cut off, and repeated later."""

ARCHIVE_ERROR_CHARS_MAX: Final = 1_000
COMPACT_BYTES_DEFAULT: Final = 128 * MIB
COMPACT_ROW_GROUP_ROWS: Final = 256 * 1024
COMPACT_ROW_GROUP_BYTES: Final = 32 * MIB
"""Memory that compaction holds for the row group it writes, which ends at either limit."""

PARSE_SAMPLE_RECORDS: Final = 10_000
PARSE_SAMPLE_BYTES: Final = 4 * MIB
"""Records from the beginning of a stream that its schema is inferred from."""

PARSE_REASON_COLUMNS: Final = 100
"""Columns that are looked at one by one to say why a record does not parse."""
