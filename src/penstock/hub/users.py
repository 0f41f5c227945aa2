"""Users, their tokens and their rights: the one place every door asks.

A token is `pst_<user>_<secret>`. Only its argon2id hash is stored, in `users.json` of the data
directory. The file is read again when it changes, so `penstock user` works while a hub runs.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import secrets
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from penstock import limits
from penstock.errors import BadName, BadSetting, Forbidden, TooMany, Unauthorized, UnknownUser

Right = Literal["read", "write", "admin"]
RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "admin")
_NAME = re.compile(r"[A-Za-z0-9.-]+")
_PREFIX: Final = "pst_"
_LOOK_EVERY_S: Final = 1.0
logger = structlog.get_logger("penstock.users")


class Grant(msgspec.Struct, frozen=True):
    """A right on the streams whose names match a pattern (`orders.*`, `*`)."""

    right: Right
    pattern: str = "*"

    @classmethod
    def parse(cls, text: str) -> Grant:
        """`read`, `write:orders.*`, `admin`."""
        right, _, pattern = text.partition(":")
        if right not in RIGHTS:
            raise BadSetting(
                f"{text!r:.100} is no right: use read, write or admin, and a pattern "
                "of stream names if wished, as in write:orders.*"
            )
        return cls(right, pattern or "*")

    def __str__(self) -> str:
        return f"{self.right}:{self.pattern}"


class User(msgspec.Struct, frozen=True):
    """A user as stored."""

    name: str
    hash: str
    grants: list[Grant]
    created_at: int
    rotated_at: int

    def may(self, right: Right, stream: str) -> bool:
        """Admin includes the others."""
        return any(
            grant.right in (right, "admin") and fnmatch.fnmatchcase(stream, grant.pattern)
            for grant in self.grants
        )


EVERYBODY: Final = User("everybody", "", [Grant("admin")], 0, 0)
"""Who calls while no users exist: allowed on this machine, or with `--insecure`."""


class Users:
    """The users of a data directory."""

    def __init__(self, data: Path, hasher: PasswordHasher | None = None) -> None:
        self.required = False
        """Whether nobody may call while no users exist: so it is where others can reach the hub."""
        self._path = data / "users.json"
        self._hasher = hasher or PasswordHasher()
        self._lock = threading.Lock()
        self._users: dict[str, User] = {}
        self._stamp: tuple[int, int] | None = None
        self._looked_at = -1.0
        self._checked: OrderedDict[bytes, str] = OrderedDict()
        self._read()

    # -- asking ----------------------------------------------------------------------------------

    def exist(self) -> bool:
        self._look()
        return bool(self._users)

    def all(self) -> list[User]:
        self._look()
        return sorted(self._users.values(), key=lambda user: user.name)

    def authenticate(self, token: str | None) -> User:
        """Who has this token. Without any users, everybody is somebody. May take 50 ms."""
        self._look()
        if not self._users and not self.required:
            return EVERYBODY
        if not token:
            raise Unauthorized("a token is needed: send it as 'Authorization: Bearer <token>'")
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._checked.get(digest)
        if known is not None and known in self._users:
            return self._users[known]
        name, _, secret = token.removeprefix(_PREFIX).rpartition("_")
        user = self._users.get(name) if token.startswith(_PREFIX) else None
        # An unknown name is checked too, against a hash nobody has, so that it takes as long.
        expected = self._nobody() if user is None else user.hash
        try:
            # Bytes: a header may hold what is not Unicode, and argon2 would stumble over it.
            given = secret.encode("utf-8", "surrogatepass")
            right = self._hasher.verify(expected, given) and user is not None
        except (Argon2Error, InvalidHashError):
            right = False
        if not right or user is None:
            raise Unauthorized("the token is not valid: ask for a new one (penstock user rotate)")
        with self._lock:
            self._checked[digest] = user.name
            if len(self._checked) > limits.TOKENS_CACHED_MAX:
                self._checked.popitem(last=False)
        return user

    def is_cached(self, token: str | None) -> bool:
        """Whether `authenticate` will answer at once."""
        self._look()
        if not token or not (self._users or self.required):
            return True
        return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest() in self._checked

    def _nobody(self) -> str:
        return _nobody_hash(self._hasher)

    # -- changing --------------------------------------------------------------------------------

    def add(self, name: str, grants: list[Grant]) -> str:
        """Make a user; returns the token, which is shown this once."""
        check_user_name(name)
        self._read()
        if name in self._users:
            raise BadName(f"user {name!r} exists already: rotate the token, or remove the user")
        if len(self._users) >= limits.USERS_MAX:
            raise TooMany(f"there are {len(self._users)} users, at most {limits.USERS_MAX}")
        if not 1 <= len(grants) <= limits.RIGHTS_PER_USER_MAX:
            raise BadSetting(f"a user has 1 to {limits.RIGHTS_PER_USER_MAX} rights")
        token, hashed = self._new_token(name)
        now = time.time_ns() // 1000
        self._write({**self._users, name: User(name, hashed, grants, now, now)})
        return token

    def rotate(self, name: str) -> str:
        """Give a user a new token; the old one is void at once."""
        self._read()
        user = self._get(name)
        token, hashed = self._new_token(name)
        now = time.time_ns() // 1000
        rotated = msgspec.structs.replace(user, hash=hashed, rotated_at=now)
        self._write({**self._users, name: rotated})
        return token

    def remove(self, name: str) -> None:
        self._read()
        self._get(name)
        self._write({key: user for key, user in self._users.items() if key != name})

    def _get(self, name: str) -> User:
        if name not in self._users:
            names = ", ".join(sorted(self._users)[:10]) or "none yet"
            raise UnknownUser(f"there is no user {name!r:.100}; users are: {names}")
        return self._users[name]

    def _new_token(self, name: str) -> tuple[str, str]:
        secret = secrets.token_hex(24)
        return f"{_PREFIX}{name}_{secret}", self._hasher.hash(secret)

    # -- the file --------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the file again if it has changed; asks the disk once a second at most."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            if self._stamp_now() != self._stamp:
                try:
                    self._read()
                except BadSetting as error:
                    # A file somebody is editing must not lock anybody out, nor let anybody in.
                    self._stamp = self._stamp_now()
                    logger.error("the new users are not used", reason=str(error))  # noqa: TRY400

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_ino

    def _read(self) -> None:
        with self._lock:
            stamp = self._stamp_now()
            users: list[User] = []
            with contextlib.suppress(FileNotFoundError):
                try:
                    users = msgspec.json.decode(self._path.read_bytes(), type=list[User])
                except msgspec.MsgspecError as error:
                    raise BadSetting(f"{self._path} cannot be read: {error}") from None
            self._users = {user.name: user for user in users}
            self._stamp = stamp
            self._checked.clear()

    def _write(self, users: dict[str, User]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(list(users.values()))))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)
        self._read()


def require(user: User, right: Right, stream: str) -> None:
    """Raise `Forbidden` unless `user` has `right` on `stream`."""
    if not user.may(right, stream):
        raise Forbidden(f"user {user.name!r} has no right to {right} {stream!r:.300}")


def check_user_name(name: str) -> str:
    """Return `name` if it may name a user, else raise `BadName`."""
    if not _NAME.fullmatch(name) or len(name.encode()) > limits.USER_NAME_BYTES_MAX:
        raise BadName(
            f"{name!r:.100} cannot name a user: use letters, digits, '.' and '-', at most "
            f"{limits.USER_NAME_BYTES_MAX}"
        )
    return name


_nobody_hashes: dict[int, str] = {}


def _nobody_hash(hasher: PasswordHasher) -> str:
    key = id(hasher)
    if key not in _nobody_hashes:
        _nobody_hashes[key] = hasher.hash(secrets.token_hex(24))
    return _nobody_hashes[key]
