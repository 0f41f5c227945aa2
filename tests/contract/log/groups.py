"""Groups: positions that move forward, resets, lag, and registered readers."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock.errors import BadName, IndexOutOfRange, PositionBackwards, UnknownGroup
from penstock.log import Batch, Log, Move, ResetTo
from tests.contract.log.base import SMALL, Base, Clock, OpenLog, Where
from tests.records import numbered, padded


class GroupsOfReaders(Base):
    @pytest.fixture
    def timed(self, log: Log, name: str, where: Where) -> str:
        """A stream of 30 records, one every 100 microseconds from 0 on."""
        log.create_stream(name, settings=where.settings)
        where.fill(
            log,
            name,
            [
                Batch.of(
                    [padded(number) for number in range(start, start + 5)],
                    timestamps=[number * 100 for number in range(start, start + 5)],
                )
                for start in range(0, 30, 5)
            ],
        )
        return name

    # -- positions -------------------------------------------------------------------------------

    def test_a_group_that_never_saved_has_no_position(self, log: Log, stream: str) -> None:
        assert log.position("g", stream, 0) is None

    def test_a_position_is_kept_by_group_and_partition(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        for partition in range(2):
            log.append(name, numbered(5), partition)
        log.save_positions("g", name, {0: 2, 1: 5})
        log.save_positions("h", name, {0: 1})
        assert [log.position("g", name, each) for each in (0, 1)] == [2, 5]
        assert [log.position("h", name, each) for each in (0, 1)] == [1, None]

    def test_a_position_never_moves_backwards(self, log: Log, stream: str) -> None:
        log.append(stream, numbered(5))
        log.save_positions("g", stream, {0: 3})
        log.save_positions("g", stream, {0: 3})
        with pytest.raises(PositionBackwards, match="reset"):
            log.save_positions("g", stream, {0: 2})
        assert log.position("g", stream, 0) == 3

    def test_when_one_position_is_refused_none_is_saved(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=2)
        for partition in range(2):
            log.append(name, numbered(5), partition)
        log.save_positions("g", name, {1: 3})
        with pytest.raises(PositionBackwards):
            log.save_positions("g", name, {0: 4, 1: 2})
        assert log.position("g", name, 0) is None

    @pytest.mark.parametrize("position", [-1, 6])
    def test_a_position_that_does_not_exist_is_refused(
        self, log: Log, stream: str, position: int
    ) -> None:
        log.append(stream, numbered(5))
        with pytest.raises(IndexOutOfRange, match="the end, 5"):
            log.save_positions("g", stream, {0: position})
        assert log.position("g", stream, 0) is None

    @pytest.mark.parametrize(
        "bad", ["", "a\x00", "\ud800", "x" * (limits.GROUP_NAME_BYTES_MAX + 1)], ids=repr
    )
    def test_a_group_has_a_proper_name(self, log: Log, stream: str, bad: str) -> None:
        with pytest.raises(BadName, match="group"):
            log.save_positions(bad, stream, {0: 0})
        with pytest.raises(BadName, match="group"):
            log.register_group(bad, stream)

    # -- resets ----------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("to", "after"),
        [
            (ResetTo.earliest(), 0),
            (ResetTo.latest(), 30),
            (ResetTo.index(7), 7),
            (ResetTo.index(99), 30),
            (ResetTo.index(-99), 0),
            (ResetTo.timestamp(1_201), 13),
            (ResetTo.timestamp(99_999), 30),
            (ResetTo.shift(5), 17),
            (ResetTo.shift(-5), 7),
            (ResetTo.shift(-50), 0),
            (ResetTo.shift(50), 30),
        ],
        ids=lambda each: f"{each.kind} {each.value}" if isinstance(each, ResetTo) else "",
    )
    def test_a_reset_moves_a_position_anywhere(
        self, log: Log, timed: str, to: ResetTo, after: int
    ) -> None:
        log.save_positions("g", timed, {0: 12})
        expected = [Move(0, 12, after)]
        assert log.reset("g", timed, to, dry_run=True) == expected
        assert log.position("g", timed, 0) == 12
        assert log.reset("g", timed, to) == expected
        assert log.position("g", timed, 0) == after

    def test_a_reset_makes_a_group_that_was_not_there(self, log: Log, timed: str) -> None:
        assert log.reset("new", timed, ResetTo.index(4)) == [Move(0, None, 4)]
        assert log.position("new", timed, 0) == 4

    def test_a_dry_run_makes_no_group(self, log: Log, timed: str) -> None:
        log.reset("new", timed, ResetTo.index(4), dry_run=True)
        assert log.position("new", timed, 0) is None
        with pytest.raises(UnknownGroup):
            log.lags("new", timed)

    def test_a_reset_may_be_of_some_partitions(self, log: Log, name: str) -> None:
        log.create_stream(name, partitions=3)
        for partition in range(3):
            log.append(name, numbered(3), partition)
        assert log.reset("g", name, ResetTo.latest(), [0, 2]) == [
            Move(0, None, 3),
            Move(2, None, 3),
        ]
        assert log.position("g", name, 1) is None

    def test_a_reset_to_the_earliest_goes_where_records_begin(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)
        for start in range(0, 50, 10):
            log.append(name, numbered(10, start))
            log.checkpoint()
        earliest = log.trim(name, 0, 30)
        assert earliest > 0
        assert log.reset("g", name, ResetTo.earliest()) == [Move(0, None, earliest)]
        assert log.reset("g", name, ResetTo.index(0)) == [Move(0, earliest, earliest)]

    def test_after_a_reset_positions_move_forward_again(self, log: Log, timed: str) -> None:
        log.save_positions("g", timed, {0: 20})
        log.reset("g", timed, ResetTo.index(5))
        log.save_positions("g", timed, {0: 6})
        assert log.position("g", timed, 0) == 6

    # -- lag -------------------------------------------------------------------------------------

    def test_lag_is_told_in_records_and_seconds(
        self, clocked: Log, clock: Clock, name: str, where: Where
    ) -> None:
        clocked.create_stream(name, settings=where.settings)
        for _ in range(10):
            where.fill(clocked, name, [Batch.of([padded(0)])])
            clock.pass_seconds(1)
        clocked.save_positions("g", name, {0: 4})
        (lag,) = clocked.lags("g", name)
        assert (lag.group, lag.stream, lag.partition) == ("g", name, 0)
        assert (lag.position, lag.end, lag.records, lag.seconds) == (4, 10, 6, 6.0)
        clocked.save_positions("g", name, {0: 10})
        (lag,) = clocked.lags("g", name)
        assert (lag.records, lag.seconds) == (0, 0.0)

    def test_records_from_the_future_have_no_negative_lag(
        self, clocked: Log, clock: Clock, name: str
    ) -> None:
        clocked.create_stream(name)
        clocked.append(name, Batch.of([b"v"], timestamps=[clock.now + 10_000_000]))
        clocked.register_group("g", name)
        (lag,) = clocked.lags("g", name)
        assert (lag.records, lag.seconds) == (1, 0.0)

    def test_lag_counts_only_records_that_are_left(self, log: Log, name: str) -> None:
        log.create_stream(name, settings=SMALL)
        for start in range(0, 50, 10):
            log.append(name, numbered(10, start))
            log.checkpoint()
        log.save_positions("g", name, {0: 0})
        earliest = log.trim(name, 0, 30)
        (lag,) = log.lags("g", name)
        assert (lag.position, lag.records) == (0, 50 - earliest)

    def test_lags_are_listed_by_stream_group_and_partition(
        self, open_log: OpenLog, name: str
    ) -> None:
        with open_log(name) as log:
            for stream in ("b", "a"):
                log.create_stream(stream, partitions=2)
                for group in ("h", "g"):
                    log.register_group(group, stream)
            everything = [(lag.stream, lag.group, lag.partition) for lag in log.lags()]
            assert everything == [(s, g, p) for s in "ab" for g in "gh" for p in (0, 1)]
            assert {lag.group for lag in log.lags("g")} == {"g"}
            assert {lag.stream for lag in log.lags(stream="b")} == {"b"}

    def test_an_unknown_group_is_named_in_the_error(self, log: Log, stream: str) -> None:
        with pytest.raises(UnknownGroup, match="nobody"):
            log.lags("nobody")
        with pytest.raises(UnknownGroup, match="nobody"):
            log.drop_group("nobody")
        with pytest.raises(UnknownGroup, match="nobody"):
            log.drop_group("nobody", stream)

    # -- registered groups -----------------------------------------------------------------------

    def test_registering_is_told_and_keeps_the_position(self, log: Log, stream: str) -> None:
        log.append(stream, numbered(5))
        log.save_positions("g", stream, {0: 3})
        assert [lag.registered for lag in log.lags("g", stream)] == [False]
        log.register_group("g", stream)
        log.register_group("g", stream)
        assert [(lag.registered, lag.position) for lag in log.lags("g", stream)] == [(True, 3)]

    def test_a_dropped_group_is_forgotten(self, log: Log, stream: str) -> None:
        log.append(stream, numbered(5))
        log.register_group("gone", stream)
        log.save_positions("gone", stream, {0: 3})
        log.drop_group("gone", stream)
        assert log.position("gone", stream, 0) is None
        with pytest.raises(UnknownGroup):
            log.lags("gone")

    def test_a_group_can_be_dropped_everywhere_or_on_one_stream(
        self, open_log: OpenLog, name: str
    ) -> None:
        with open_log(name) as log:
            for stream in ("a", "b", "c"):
                log.create_stream(stream)
                log.register_group("g", stream)
            log.drop_group("g", "b")
            assert [lag.stream for lag in log.lags("g")] == ["a", "c"]
            log.drop_group("g")
            assert log.lags() == []

    def test_a_stale_group_is_reported_until_it_saves_again(
        self, clocked: Log, clock: Clock, name: str
    ) -> None:
        clocked.create_stream(name)
        clocked.register_group("g", name)
        clocked.save_positions("only reads", name, {0: 0})
        clock.pass_seconds(60)
        assert not any(lag.stale for lag in clocked.lags(stream=name))
        clock.pass_seconds(1)
        assert {lag.group for lag in clocked.lags(stream=name) if lag.stale} == {"g"}
        clocked.save_positions("g", name, {0: 0})
        assert not any(lag.stale for lag in clocked.lags(stream=name))
