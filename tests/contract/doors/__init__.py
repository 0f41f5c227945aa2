"""What every door does, written once. A door's tests are a subclass and an adapter."""

from tests.contract.doors.base import Client, DoorAdapter, Refused
from tests.contract.doors.contract import DoorContract

__all__ = ["Client", "DoorAdapter", "DoorContract", "Refused"]
