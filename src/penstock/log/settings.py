"""What an operator can set: of the whole log, and of one stream."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock import limits
from penstock.errors import BadSetting

Compression = Literal["lz4", "zstd", "none"]
Durability = Literal["synced", "relaxed"]


class StreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of one stream. Retention drops whole segments, and nothing by default.

    What a registered group has not read is kept whatever these say.
    """

    retention_seconds: float | None = None
    """Drop segments whose newest record is older than this."""
    retention_bytes: int | None = None
    """Keep at most about this much of each partition."""
    retention_records: int | None = None
    """Keep at most about so many records of each partition."""
    retention_read: bool = False
    """Drop what all registered groups have read (and nothing while no group is registered)."""
    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    """Size at which a segment is sealed and a new one begun."""
    compression: Compression = "lz4"
    """Of sealed segments; data that would not shrink by a tenth is left as it is."""

    @property
    def has_retention(self) -> bool:
        """Whether anything is ever dropped."""
        return self.retention_read or any(
            limit is not None
            for limit in (self.retention_seconds, self.retention_bytes, self.retention_records)
        )

    def check(self) -> StreamSettings:
        """Return the settings if they make sense, else raise `BadSetting`."""
        for name in ("retention_seconds", "retention_bytes", "retention_records"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= limits.RETENTION_MAX:
                raise BadSetting(
                    f"{name} is {value}: it must be from 0 to {limits.RETENTION_MAX}, or unset"
                )
        if not limits.SEGMENT_BYTES_MIN <= self.segment_bytes <= limits.SEGMENT_BYTES_MAX:
            raise BadSetting(
                f"segment_bytes is {self.segment_bytes}: it must be from "
                f"{limits.SEGMENT_BYTES_MIN} to {limits.SEGMENT_BYTES_MAX}"
            )
        if self.compression not in ("lz4", "zstd", "none"):
            raise BadSetting(f"compression is {self.compression!r}: use 'lz4', 'zstd' or 'none'")
        return self


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a log."""

    journal_bytes: int = limits.JOURNAL_BYTES_DEFAULT
    """Size of the ring; taken when the data directory is first made, kept from then on."""
    checkpoint_bytes: int = limits.CHECKPOINT_BYTES_DEFAULT
    """How much of the journal is put into segments between two checkpoints."""
    checkpoint_seconds: float = limits.CHECKPOINT_AGE_DEFAULT_S
    """The longest time between two checkpoints while anything is new."""
    buffer_bytes: int = limits.BUFFER_BYTES_DEFAULT
    """Records handed over and not yet on disk; appenders wait beyond it."""
    staging_bytes: int = limits.STAGING_BYTES_DEFAULT
    """Records staged on disk and not yet published, as by Spark's sink."""
    record_bytes_max: int = limits.RECORD_BYTES_MAX
    """Key, value and headers of one record."""
    linger_seconds: float = limits.LINGER_DEFAULT_S
    """How long a commit waits for company when small appends come often; 0: never."""
    durability: Durability = "synced"
    """`relaxed` confirms before the sync: a killed process loses nothing, a power cut up to
    `relaxed_sync_seconds` of confirmed records."""
    relaxed_sync_seconds: float = 0.2
    group_stale_seconds: float = limits.GROUP_STALE_DEFAULT_S
    """A registered group that saved nothing for this long is reported as stale."""
    retention_check_seconds: float = 10.0
    """How often retention looks for segments to drop; 0: only when asked."""

    def check(self) -> LogSettings:
        """Return the settings if they make sense together, else raise `BadSetting`."""
        ring = self.journal_bytes
        if not limits.JOURNAL_BYTES_MIN <= ring <= limits.JOURNAL_BYTES_MAX or ring % 4096:
            raise BadSetting(
                f"journal_bytes is {ring}: it must be a multiple of 4096 from "
                f"{limits.JOURNAL_BYTES_MIN} to {limits.JOURNAL_BYTES_MAX}"
            )
        if self.checkpoint_bytes * limits.JOURNAL_PER_CHECKPOINT_MIN > ring:
            raise BadSetting(
                f"checkpoint_bytes is {self.checkpoint_bytes}: it must be at most a quarter of "
                f"journal_bytes ({ring}), or appends would stand still during a checkpoint"
            )
        if self.record_bytes_max + limits.FRAME_BYTES_MAX > min(ring // 4, limits.GROUP_BYTES_MAX):
            raise BadSetting(
                f"record_bytes_max is {self.record_bytes_max}: one record must fit into a group "
                f"commit, here {min(ring // 4, limits.GROUP_BYTES_MAX)} bytes; "
                "raise journal_bytes or lower record_bytes_max"
            )
        for name in ("checkpoint_bytes", "checkpoint_seconds", "buffer_bytes", "staging_bytes",
                     "record_bytes_max", "relaxed_sync_seconds",
                     "group_stale_seconds"):  # fmt: skip
            if not getattr(self, name) > 0:
                raise BadSetting(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in ("linger_seconds", "retention_check_seconds"):
            if not getattr(self, name) >= 0:
                raise BadSetting(f"{name} is {getattr(self, name)}: it must be 0 or more")
        if self.durability not in ("synced", "relaxed"):
            raise BadSetting(f"durability is {self.durability!r}: use 'synced' or 'relaxed'")
        return self


def small_log(**changes: object) -> LogSettings:
    """Settings for a small log: tests, examples, and machines with little disk."""
    small: dict[str, object] = {
        "journal_bytes": 4 * limits.MIB,
        "checkpoint_bytes": 512 * limits.KIB,
        "buffer_bytes": 4 * limits.MIB,
        "record_bytes_max": 512 * limits.KIB,
        "retention_check_seconds": 0.0,
    }
    return LogSettings(**{**small, **changes}).check()  # type: ignore[arg-type]
