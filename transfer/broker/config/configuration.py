"""What a broker is told, by flags, the environment and a file, becomes its settings.

Flags go before the environment, the environment before the file, the file before the defaults. A name
that nobody knows is refused, with the nearest that there is. Reads the file, and else nothing.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transfer.broker.config.options import BY_NAME, Secured, settings_of
from transfer.broker.config.settings import Settings
from transfer.broker.config.values import Value
from transfer.transports.errors import OptionError
from transfer.transports.security.exposure import warn_of_secret


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One choice as somebody wrote it. place: where, as an error names it."""

    name: str
    value: object
    place: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """folder: of the data; None: nobody said. file: that was read."""

    settings: Settings
    folder: Path | None
    file: Path | None = None


_NAMED = "TRANSFER_BROKER_CONFIG names the file, or `transfer broker --config`"
#: the choice that is no setting: where the data lies
DATA = "broker.data"


def configured(
    flags: Iterable[ConfigValue],
    environment: Iterable[ConfigValue] = (),
    file: Path | None = None,
    secured: Secured | None = None,
) -> Configuration:
    """The settings, and the data folder. secured: see `settings_of`. Raises OptionError, whose text names the
    place, SecurityError."""
    said: dict[str, ConfigValue] = {}
    for one in (*(read_file(file) if file is not None else ()), *environment, *flags):
        _known(one)
        said[one.name] = one
    data = said.pop(DATA, None)
    chosen: dict[str, Value] = {}
    for name, one in said.items():
        try:
            chosen[name] = BY_NAME[name].read(one.value)
        except ValueError as error:
            raise OptionError(f"{one.place} is {_shown(one)}", hint=f"it has to be {error}") from error
    return Configuration(settings_of(chosen, secured), _folder(data, file), file)


def read_file(path: Path) -> Iterator[ConfigValue]:
    """What a TOML file says. Raises OptionError."""
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


def said_by_flag(text: str) -> ConfigValue:
    """`section.key=value`, as `--set` takes it. Raises OptionError."""
    name, sign, value = text.partition("=")
    if not sign:
        raise OptionError(f"--set {text!r} has no '='", hint="for instance --set ttp.idle=2m")
    return ConfigValue(name.strip(), value.strip(), f"--set {name.strip()}")


def _known(one: ConfigValue) -> None:
    if one.name not in BY_NAME and one.name != DATA:
        section = one.name.partition(".")[0]
        there = [name for name in _names() if name.startswith(f"{section}.")]
        told = f"in [{section}] there are {', '.join(there)}" if there else "docs/broker.md has all of them"
        raise OptionError(
            f"{one.place}: there is no such option",
            hint=_nearest(one.name, _names()) or told,
        )


def _folder(data: ConfigValue | None, file: Path | None) -> Path | None:
    """Where the data lies; beside the file, if that says it."""
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


def _names() -> list[str]:
    return [DATA, *BY_NAME]


def _sections() -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in _names()))


def _homes(word: str) -> str:
    """Where an option of this name, or of the nearest that there is, may stand."""
    names = [name.partition(".")[2] for name in _names()]
    found = difflib.get_close_matches(word, names, 1)
    homes = [name.partition(".")[0] for name, key in zip(_names(), names, strict=True) if key in found]
    return f"{found[0]} stands in [{'], ['.join(homes)}]" if found else ""


def _nearest(word: str, words: Sequence[str]) -> str:
    found = difflib.get_close_matches(word, words, 1)
    return f"{found[0]!r} is the nearest that there is" if found else ""
