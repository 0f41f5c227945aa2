"""The hub's configuration: a TOML file, then `PENSTOCK_*` variables, then flags.

Every value knows where it came from, and a mistake is told with its file and line, what was found
and what is allowed. `docs/configuration.md` is made from the classes below.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import BadSetting
from penstock.log.settings import LogSettings

LogLevel = Literal["debug", "info", "warning", "error"]


class HubSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process as a whole."""

    data: str = "data"
    """The data directory; it is made if need be."""
    insecure: bool = False
    """Allow listening beyond this machine without TLS and users. Only for a network you trust."""
    log_level: LogLevel = "info"
    """What is logged: `debug`, `info`, `warning` or `error`. Normal operation logs nothing."""
    stop_seconds: float = 30.0
    """How long a stop waits for requests under way before it closes them."""


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP API."""

    listen: str = "127.0.0.1:7470"
    """Address and port; port 0 takes any free one."""
    body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX
    """Largest request body, after decompression."""
    body_seconds_max: float = limits.HTTP_BODY_S_MAX
    """How long a request body may take to arrive."""
    connections_max: int = limits.HTTP_CONNECTIONS_MAX
    """Connections open at once; further ones are answered with 503 and closed."""


class FlightSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Arrow Flight door, for bulk reads and writes: Spark's way in and out."""

    enabled: bool = True
    """Whether it is opened."""
    listen: str = "127.0.0.1:7471"
    """Address and port; port 0 takes any free one."""
    calls_max: int = limits.FLIGHT_CALLS_MAX
    """Calls at once; further ones are told to try again."""


class WallarooSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The door for Wallaroo connectors; `docs/wallaroo.md` tells more."""

    listen: str | None = None
    """Address and port, by custom 127.0.0.1:7472; without it the door stays closed."""
    cookie: str = ""
    """The secret that connectors have to show. Empty: they must show none."""
    version: str = "0.0.1"
    """The protocol version that connectors have to name, exactly."""
    streams: str = "{program}.{instance}.{stream}"
    """A stream's name, of what the connector says. What no stream's name has is escaped."""
    create: bool = True
    """Whether streams are made when connectors introduce them."""
    user: str | None = None
    """The user whose rights connectors have; without one they may write to all streams."""
    ack: Literal["durable", "processed"] = "durable"
    """When a message is acked: `durable`, on disk; `processed`, when `group` has read past it."""
    group: str | None = None
    """The group for `processed`. It is registered on each stream that a connector introduces."""
    credits_max: int = limits.WALLAROO_CREDITS_MAX
    """Credits of one session at most."""
    window_bytes: int = limits.WALLAROO_WINDOW_BYTES
    """What all connectors together may have on its way to the disk; credits follow it."""
    frame_bytes_max: int = limits.WALLAROO_FRAME_BYTES_MAX
    """Largest frame, and so nearly the largest message."""
    connections_max: int = limits.WALLAROO_CONNECTIONS_MAX
    """Connections open at once; further ones are closed."""
    event_time: Literal["s", "ms", "us", "ns"] = "ns"
    """The unit of connectors' event times, since 1970. Wallaroo has nanoseconds."""
    literal: bool = False
    """Messages without stream ids, as the specification's text first had them."""
    debug: bool = False
    """Allow faults to be made on purpose, for authors of connectors. Only on this machine."""


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS, for every door. The files are read again when they change."""

    certificate: str | None = None
    """PEM file with the certificate and its chain."""
    key: str | None = None
    """PEM file with the private key."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be configured, by section."""

    hub: HubSettings = HubSettings()
    http: HttpSettings = HttpSettings()
    flight: FlightSettings = FlightSettings()
    wallaroo: WallarooSettings = WallarooSettings()
    tls: TlsSettings = TlsSettings()
    log: LogSettings = LogSettings()


class Value(NamedTuple):
    """A resolved setting, and where it came from."""

    value: Any
    source: str


class Resolved(NamedTuple):
    """A configuration whose every value can be explained."""

    config: Config
    values: dict[str, Value]
    """By `section.key`."""


class Mistake(NamedTuple):
    """Something wrong in the configuration."""

    source: str
    """File and line, variable or flag."""
    message: str

    def __str__(self) -> str:
        return f"{self.source}: {self.message}"


class ConfigError(BadSetting):
    """The configuration has mistakes; all of them are listed."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


_RESERVED = {
    "PENSTOCK_PURE", "PENSTOCK_CONFIG", "PENSTOCK_URL", "PENSTOCK_TOKEN", "PENSTOCK_CA",
    "PENSTOCK_COOKIE", "PENSTOCK_WORKER",
}  # fmt: skip
_PREFIX = "PENSTOCK_"


def sections() -> dict[str, type[msgspec.Struct]]:
    """Section names and the classes that describe them."""
    return {field.name: field.type for field in msgspec.structs.fields(Config)}


def load(
    path: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Resolved:
    """Resolve the configuration, or raise `ConfigError` with every mistake found.

    Without a path, `penstock.toml` is read if it is there. `flags` are `section.key` to text.
    """
    loader = _Loader()
    loader.read_defaults()
    chosen = Path(path) if path is not None else Path("penstock.toml")
    if path is not None or chosen.exists():
        loader.read_file(chosen)
    loader.read_environment(os.environ if environment is None else environment)
    loader.read_flags(flags or {})
    return loader.resolve()


class _Loader:
    def __init__(self) -> None:
        self._values: dict[str, Value] = {}
        self._types: dict[str, Any] = {}
        self._mistakes: list[Mistake] = []
        for section, kind in sections().items():
            for field in msgspec.structs.fields(kind):
                self._types[f"{section}.{field.name}"] = field.type

    def read_defaults(self) -> None:
        for section, kind in sections().items():
            for field in msgspec.structs.fields(kind):
                self._values[f"{section}.{field.name}"] = Value(field.default, "default")

    def read_file(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            self._mistakes.append(Mistake(str(path), f"cannot be read: {error.strerror}"))
            return
        except UnicodeDecodeError:
            self._mistakes.append(Mistake(str(path), "is not UTF-8 text"))
            return
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self._mistakes.append(Mistake(str(path), f"is not TOML: {error}"))
            return
        lines = _key_lines(text)
        for section, content in document.items():
            where = f"{path}:{lines.get(section, 1)}"
            if section not in sections():
                self._mistakes.append(
                    Mistake(where, f"unknown section [{section}]{_hint(section, sections())}")
                )
            elif not isinstance(content, dict):
                self._mistakes.append(Mistake(where, f"{section} is a section: write [{section}]"))
            else:
                for key, value in content.items():
                    name = f"{section}.{key}"
                    self._set(name, value, f"{path}:{lines.get(name, lines.get(section, 1))}")

    def read_environment(self, environment: Mapping[str, str]) -> None:
        for name in sorted(environment):
            if not name.startswith(_PREFIX) or name in _RESERVED:
                continue
            section, _, key = name.removeprefix(_PREFIX).lower().partition("_")
            if section in sections():
                self._set_text(f"{section}.{key}", environment[name], name)

    def read_flags(self, flags: Mapping[str, str]) -> None:
        for name, text in flags.items():
            self._set_text(name, text, f"--set {name}")

    def _set_text(self, name: str, text: str, source: str) -> None:
        kind = self._types.get(name)
        self._set(name, text if kind is None else _from_text(text, kind), source)

    def _set(self, name: str, value: Any, source: str) -> None:
        kind = self._types.get(name)
        if kind is None:
            section, _, key = name.partition(".")
            known = [
                each.partition(".")[2] for each in self._types if each.startswith(section + ".")
            ]
            if section not in sections():
                message = f"unknown section [{section}]{_hint(section, sections())}"
            else:
                message = f"unknown key {key!r} in [{section}]{_hint(key, known)}"
            self._mistakes.append(Mistake(source, message))
            return
        try:
            converted = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            shown = f"{value!r:.100}"
            message = f"{name} is {shown}: it must be {describe_type(kind)}"
            self._mistakes.append(Mistake(source, message))
            return
        self._values[name] = Value(converted, source)

    def resolve(self) -> Resolved:
        if not self._mistakes:
            built = {}
            for section, kind in sections().items():
                own = {
                    name.partition(".")[2]: value.value
                    for name, value in self._values.items()
                    if name.startswith(section + ".")
                }
                built[section] = kind(**own)
            config = msgspec.convert(built, Config)
            try:
                config.log.check()
            except BadSetting as error:
                key = str(error).split(" ", 1)[0]
                source = self._values.get(f"log.{key}", Value(None, "[log]")).source
                self._mistakes.append(Mistake(source, str(error)))
            self._check_tls(config)
            if not self._mistakes:
                return Resolved(config, self._values)
        raise ConfigError(self._mistakes)

    def _check_tls(self, config: Config) -> None:
        if (config.tls.certificate is None) != (config.tls.key is None):
            given = "certificate" if config.tls.certificate else "key"
            self._mistakes.append(
                Mistake(
                    self._values[f"tls.{given}"].source,
                    "TLS needs both certificate and key, only the "
                    f"{given} is set: set the other, or neither",
                )
            )


def _from_text(text: str, kind: Any) -> Any:
    """Text of a variable or flag as a value the type can be made from."""
    options = set(_plain_types(kind))
    if type(None) in options and text.lower() in ("", "none"):
        return None
    if bool in options and text.lower() in ("true", "yes", "on", "1"):
        return True
    if bool in options and text.lower() in ("false", "no", "off", "0"):
        return False
    for number in (int, float):
        if number in options:
            try:
                return number(text)
            except ValueError:
                continue
    return text


def _plain_types(kind: Any) -> Iterable[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        for each in typing.get_args(kind):
            yield from _plain_types(each)
    else:
        yield kind


def describe_type(kind: Any) -> str:
    """What may stand there, in words."""
    words: list[str] = []
    for each in _plain_types(kind):
        if typing.get_origin(each) is Literal:
            words.extend(repr(value) for value in typing.get_args(each))
        elif each is not type(None):
            words.append(_WORDS.get(each, str(each)))
    return " or ".join(words)


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _hint(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"; did you mean {close[0]!r}? Valid are: {', '.join(known)}"
    return f"; valid are: {', '.join(known)}"


def _key_lines(text: str) -> dict[str, int]:
    """The line of each section and key. TOML libraries do not tell; ours is two levels deep."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped.strip("[]").split("#")[0].strip().strip("]").strip()
            lines.setdefault(section, number)
        elif "=" in stripped and not stripped.startswith("#"):
            key = stripped.partition("=")[0].strip().strip("\"'")
            lines.setdefault(f"{section}.{key}" if section else key, number)
    return lines
