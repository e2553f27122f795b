"""The options of `df.write.format("transfer")`, read and checked on the driver. No PySpark in here."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from transfer.runs import MAX_NAME
from transports.errors import AddressError, NotSupported, OptionError

#: schemes that another process can reach
_SCHEMES = ("tcp", "ipc")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked to do. Field names are the option names; times are in seconds.

    `endpoint`: where the receivers listen, separated by commas. With several, partition p goes to
    receiver p % n, whole, on every attempt. `columns`: which to send (a comma-separated list, or a
    JSON list for names with commas); empty means all. `run`: the run's name, else a fresh one.
    `ack_timeout`: how long the trainer may take to consume what a task sent. `frame_rows`: rows in a
    frame, 0 for Arrow's own batches. `checksum` and `compression` are those of the socket. `job` is for
    `transfer.spark.write` alone: what tells this try of the run from others.
    """

    endpoint: tuple[str, ...]
    columns: tuple[str, ...] = ()
    run: str = ""
    delivery: str = "eager"
    ack_timeout: float = 600.0
    connect_timeout: float = 30.0
    frame_rows: int = 0
    checksum: bool = False
    compression: str = ""
    job: str = ""


#: other spellings that people try; `path` is what `.save("tcp://…")` sets
_ALIASES = {"endpoints": "endpoint", "path": "endpoint", "column": "columns", "run_id": "run"}


def parse_options(options: Mapping[str, str]) -> WriteOptions:
    """Reads Spark's options: strings, with keys in any case.

    Raises OptionError, AddressError, NotSupported.
    """
    known = {f.name for f in fields(WriteOptions)}
    found: dict[str, str] = {}
    for key, value in options.items():
        name = _ALIASES.get(key.lower(), key.lower())
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known | set(_ALIASES)), 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known - {'job'}))}."
            raise OptionError(f"unknown option {key!r} for format('transfer')", hint=hint)
        if found.get(name, value) != value:
            raise OptionError(f"option {name!r} was given twice, with different values")
        found[name] = value
    delivery = found.get("delivery", "eager").lower()
    if delivery not in ("eager", "committed"):
        raise OptionError(f"delivery is 'eager', not {delivery!r}")
    if delivery == "committed":
        raise NotSupported(
            "delivery=committed needs the spool, which this release does not have",
            hint="Use delivery=eager; docs/spark.md says what it promises.",
        )
    compression = found.get("compression", "").lower()
    if compression not in ("", "none", "lz4"):
        raise OptionError(f"compression is 'lz4' or 'none', not {compression!r}")
    return WriteOptions(
        endpoint=_endpoints(found.get("endpoint", "")),
        columns=_names(found.get("columns", "")),
        run=_name("run", found.get("run", "")),
        delivery=delivery,
        ack_timeout=_seconds("ack_timeout", found.get("ack_timeout", "600")),
        connect_timeout=_seconds("connect_timeout", found.get("connect_timeout", "30")),
        frame_rows=_count("frame_rows", found.get("frame_rows", "0")),
        checksum=_boolean("checksum", found.get("checksum", "false")),
        compression="" if compression == "none" else compression,
        job=_name("job", found.get("job", "")),
    )


def _endpoints(text: str) -> tuple[str, ...]:
    endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
    if not endpoints:
        raise OptionError(
            "format('transfer') needs the option 'endpoint'",
            hint="Give it the address of the data set, for instance "
            ".option('endpoint', dataset.endpoint) or 'tcp://10.0.0.7:5555'.",
        )
    for endpoint in endpoints:
        scheme, separator, rest = endpoint.partition("://")
        if not separator or not rest or scheme not in _SCHEMES:
            raise AddressError(
                f"endpoint {endpoint!r} cannot be reached from a Spark task",
                hint="Use tcp://HOST:PORT; ipc:// works when Spark runs on the trainer's host.",
            )
        if scheme == "tcp" and (rest.endswith((":0", ":*")) or rest.startswith(("*:", "0.0.0.0:"))):
            raise AddressError(
                f"endpoint {endpoint!r} is one to bind, not one to connect to",
                hint="Use the data set's `endpoint`, which has the real port.",
            )
    if len(set(endpoints)) != len(endpoints):
        raise OptionError("option 'endpoint' names the same receiver twice")
    return endpoints


def _names(text: str) -> tuple[str, ...]:
    text = text.strip()
    if text.startswith("["):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise OptionError(f"option 'columns' is no JSON list: {text!r}") from error
        if not all(isinstance(name, str) for name in value):
            raise OptionError("option 'columns' is a list of names")
        names = tuple(value)
    else:
        names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"option 'columns' names {name!r} twice")
    return names


def _name(option: str, text: str) -> str:
    if len(text) > MAX_NAME:
        raise OptionError(f"option {option!r} has at most {MAX_NAME} characters")
    return text


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise OptionError(f"option {name!r} is a number of seconds above 0, not {text!r}")
    return value


def _count(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise OptionError(f"option {name!r} is a whole number from 0, not {text!r}")
    return value


def _boolean(name: str, text: str) -> bool:
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise OptionError(f"option {name!r} is true or false, not {text!r}")
    return value
