"""Makes a broker's settings of flags, the environment and a file.

Flags override the environment, the environment overrides the file, the file overrides the defaults. An
unknown name is an error that suggests the nearest known name. The file is the only input that it reads.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transfer.broker.config.options import BY_NAME, DATA
from transfer.broker.config.settings import Settings
from transfer.transports.errors import OptionError
from transfer.transports.security.exposure import warn_of_secret
from transfer.transports.security.settings import Security

#: makes Security of the configured fields, and takes the others from elsewhere
Secured = Callable[[dict[str, Any]], Security]


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The value of one option as the user wrote it. place: its source, for error texts."""

    name: str
    value: object
    place: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The result. folder: the data folder; None: not configured. file: the file that was read."""

    settings: Settings
    folder: Path | None
    file: Path | None = None


_NAMED = "TRANSFER_BROKER_CONFIG names the file, or `transfer broker --config`"
#: options that configure fronts without tokens
_PLACES = frozenset({"ttp.port", "pybroker.port", "rqueue.port", "abtp.router", "abtp.pub"})


def configured(
    flags: Iterable[ConfigValue],
    environment: Iterable[ConfigValue] = (),
    file: Path | None = None,
    secured: Secured | None = None,
) -> Configuration:
    """Returns the settings and the data folder. secured: None: Security is made of the options alone.

    Raises SecurityError, and OptionError, whose text names the source of the value.
    """
    given: dict[str, ConfigValue] = {}
    for one in (*(read_file(file) if file is not None else ()), *environment, *_each_once(flags)):
        _check_name(one)
        given[one.name] = one
    data = given.pop(DATA, None)
    chosen: dict[str, Any] = {}
    for name, one in given.items():
        try:
            chosen[name] = BY_NAME[name].read(one.value)
        except ValueError as error:
            raise OptionError(f"{one.place} is {_shown(one)}", hint=f"it has to be {error}") from error
    return Configuration(_settings_of(chosen, secured), _folder(data, file), file)


def _settings_of(chosen: dict[str, Any], secured: Secured | None) -> Settings:
    """Returns the settings with these options, and defaults for the others."""
    changes: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in chosen.items():
        first, *rest = BY_NAME[name].path
        if rest:
            parts.setdefault(first, {})[rest[0]] = value
        else:
            changes[first] = value
    base = Settings(security=_security(parts.pop("security", {}), secured))
    for name, fields in parts.items():
        changes[name] = replace(getattr(base, name), **fields)
    native = changes.get("native", base.native)
    if native is not None and not (native.requests or native.pushes or native.subscriptions):
        changes["native"] = None
    if "abtp" in changes and not changes["abtp"].router:
        changes["abtp"] = None
    named = frozenset(name.partition(".")[0] for name in chosen if name in _PLACES)
    return replace(base, **changes, named=named)


def _security(fields: dict[str, Any], secured: Secured | None) -> Security | None:
    if fields.get("token_file"):
        fields["token"] = ""  # the file replaces it
    if secured is not None:
        return secured(fields)
    return Security(**fields) if fields else None


def read_file(path: Path) -> Iterator[ConfigValue]:
    """Reads a TOML file. Raises OptionError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", hint=_NAMED) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is no TOML: {error}") from error
    http = content.get("http")
    if isinstance(http, dict) and http.get("token"):
        warn_of_secret("http.token", path)
    for section, keys in content.items():
        if not isinstance(keys, dict):
            raise OptionError(
                f"{path}: {section} stands outside of any section",
                hint=_homes(section) or f"sections are {', '.join(_sections())}",
            )
        if section not in _sections():
            raise OptionError(
                f"{path}: there is no section [{section}]",
                hint=_nearest(section, _sections()) or f"sections are {', '.join(_sections())}",
            )
        for key, value in keys.items():
            yield ConfigValue(f"{section}.{key}", value, f"{path}: {key} in [{section}]")


def parse_flag(text: str) -> ConfigValue:
    """Parses `section.key=value`, the argument of `--set`. Raises OptionError."""
    name, sign, value = text.partition("=")
    if not sign:
        raise OptionError(f"--set {text!r} has no '='", hint="for instance --set ttp.idle_timeout=2m")
    name, value, place = name.strip(), value.strip(), f"--set {name.strip()}"
    if value[:1] not in ("[", "{"):
        return ConfigValue(name, value, place)
    try:  # a list or a table, as in the file
        return ConfigValue(name, tomllib.loads(f"value = {value}")["value"], place)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(
            f"{place}: {value} is no TOML: {error}", hint="a text with commas will do"
        ) from error


def _each_once(flags: Iterable[ConfigValue]) -> list[ConfigValue]:
    """Refuses an option that two flags set: one would win in silence. Raises OptionError."""
    given: dict[str, ConfigValue] = {}
    for one in flags:
        if other := given.get(one.name):
            places = dict.fromkeys((other.place, one.place))
            raise OptionError(f"{' and '.join(places)}: {one.name} is set twice", hint="give it once")
        given[one.name] = one
    return list(given.values())


def _check_name(one: ConfigValue) -> None:
    if one.name not in BY_NAME:
        section = one.name.partition(".")[0]
        there = [name for name in BY_NAME if name.startswith(f"{section}.")]
        names = (
            f"in [{section}] there are {', '.join(there)}" if there else "docs/broker.md lists all options"
        )
        raise OptionError(
            f"{one.place}: there is no such option",
            hint=_nearest(one.name, list(BY_NAME)) or names,
        )


def _folder(data: ConfigValue | None, file: Path | None) -> Path | None:
    """Returns the data folder; a path in the file is relative to the file."""
    if data is None:
        return None
    if not isinstance(data.value, str) or not data.value:
        raise OptionError(f"{data.place} is {_shown(data)}", hint="it has to be a folder")
    folder = Path(data.value)
    in_file = file is not None and data.place.startswith(f"{file}: ")
    return file.parent / folder if file is not None and in_file else folder


def _shown(one: ConfigValue) -> str:
    """The value, unless it is a secret."""
    return "not a text" if one.name == "http.token" else f"{one.value!r:.80}"


def _sections() -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in BY_NAME))


def _homes(word: str) -> str:
    """Names the sections that have a key of this name, or of the most similar one."""
    names = [name.partition(".")[2] for name in BY_NAME]
    found = difflib.get_close_matches(word, names, 1)
    homes = [name.partition(".")[0] for name, key in zip(BY_NAME, names, strict=True) if key in found]
    return f"{found[0]} stands in [{'], ['.join(homes)}]" if found else ""


def _nearest(word: str, words: Sequence[str]) -> str:
    found = difflib.get_close_matches(word, words, 1)
    return f"{found[0]!r} is the nearest that there is" if found else ""
