"""For tests, ours and our users': a fake disk, a fake clock, and checkers."""

from penstock.testing.checkers import Attempt, CheckFailed, Ledger, Record, Report, check_log
from penstock.testing.fake_clock import FakeClock
from penstock.testing.fake_disk import Crashed, FakeDisk, Stall
from penstock.testing.fake_files import Loss

__all__ = [
    "Attempt",
    "CheckFailed",
    "Crashed",
    "FakeClock",
    "FakeDisk",
    "Ledger",
    "Loss",
    "Record",
    "Report",
    "Stall",
    "check_log",
]
