"""The options of `format("transfer")`, parsed and checked on the driver. Does not use PySpark."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from transfer.spark.schema import DATES, DECIMALS, NULLS, TIMESTAMPS, Column, Conversions, check_schema
from transfer.spool.format.address import SCHEME, parse
from transfer.spool.format.run_messages import MAX_NAME
from transfer.transports.errors import AddressError, OptionError

#: schemes that another process can reach
_SCHEMES = ("tcp", "ipc")
_DELIVERIES = ("committed", "partition", "eager")
#: what a write to a complete run does; the first one is the default
_IF_COMPLETE = ("refuse", "skip")
#: where a stream begins; the first one is the default
_STARTS = ("earliest", "latest")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. Field names are the option names.

    Attributes:
        endpoint: `run://HOST:PORT/NAME` of a spool, or `.save("run://...")`. With `delivery=eager` where data
            sets listen, separated by commas: partition p goes to endpoint p % n, on every attempt.
        columns: the columns to send: `a,b`, or a JSON list for names with commas; empty sends all.
        run: the run's name, if the endpoint has none; by default a new one.
        delivery: `committed`, `partition` or `eager`.
        ack_timeout: seconds that the receiver may take to keep, or consume, a task's rows, and to answer
            commits.
        connect_timeout: seconds after which an endpoint without an answer is an error.
        abort_timeout: seconds that a failed job tries to reach a spool to drop its rows, which else go by
            age.
        frame_rows: rows in a frame; 0: Arrow's batches (`spark.sql.execution.arrow.maxRecordsPerBatch`).
        checksum: a CRC-32 on every frame, besides that of the rows.
        compression: `lz4` compresses frames when it pays.
        job: distinguishes this try of the run from others; for `transfer.spark.write` only.
        ragged: array columns whose rows differ in length, listed like `columns`; `*`: all arrays.
        nulls: `refuse`, `fill` or `mask`.
        if_complete: if another job has completed this run: `refuse` fails the write, `skip` succeeds and
            sends nothing. For a spool.
        timestamps: `micros` sends such columns as numbers, also inside arrays; `refuse` does not.
        dates: `days` sends them as numbers.
        decimals: `float64` or `int64` sends them as numbers.
        dense: binary columns whose rows have one length, such as images, each with the shape of a row:
            `image=32x32x3,digest`, or a JSON list.
    """

    endpoint: tuple[str, ...]
    columns: tuple[str, ...] = ()
    run: str = ""
    delivery: str = "committed"
    ack_timeout: float = 600.0
    connect_timeout: float = 30.0
    abort_timeout: float = 60.0
    frame_rows: int = 0
    checksum: bool = False
    compression: str = ""
    job: str = ""
    ragged: tuple[str, ...] = ()
    nulls: str = NULLS[0]
    if_complete: str = _IF_COMPLETE[0]
    timestamps: str = TIMESTAMPS[0]
    dates: str = DATES[0]
    decimals: str = DECIMALS[0]
    dense: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def columns_of(self, schema: Any) -> tuple[Column, ...]:
        """Returns the columns to send of a DataFrame with this schema. Raises as `check_schema`."""
        conversions = Conversions(self.timestamps, self.dates, self.decimals, self.dense)
        return check_schema(
            schema, self.columns, ragged=self.ragged, nulls=self.nulls, conversions=conversions
        )


#: other spellings that users try; `.save("tcp://…")` sets `path`
_ALIASES = {"endpoints": "endpoint", "path": "endpoint", "column": "columns", "run_id": "run"}
_READ_ALIASES = {"path": "endpoint", "startingoffsets": "starting_offset"}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. Spark's camel case works, too: `maxRowsPerTrigger`.

    Attributes:
        endpoint: `run://HOST:PORT/NAME`, or `.load("run://...")`.
        run: the run's name, if the endpoint has none.
        partitions: tasks of the read, or of each batch of a stream, with equal numbers of rows; 0: about
            64 MiB each.
        open: reads what is visible of a run that is not sealed.
        connect_timeout: seconds after which the planner, or a task, gives up a spool that does not answer.
        group: for streams, and required there: the group for which the spool keeps rows until they are
            processed; a separate name for each query.
        starting_offset: for streams: a new query begins with the first row that is kept (`earliest`), or
            after the last one (`latest`).
        max_rows_per_trigger: for streams: rows in a batch, 0 without limit (PySpark 4.2 and newer).
    """

    endpoint: str
    run: str
    partitions: int = 0
    open: bool = False
    connect_timeout: float = 30.0
    group: str = ""
    starting_offset: str = _STARTS[0]
    max_rows_per_trigger: int = 0


def parse_options(options: Mapping[str, str]) -> WriteOptions:
    """Parses Spark's options: strings, with keys in any case.

    Raises OptionError, AddressError.
    """
    found = _known(options, [f.name for f in fields(WriteOptions)], _ALIASES)
    delivery = found.get("delivery", "committed").lower()
    if delivery not in _DELIVERIES:
        raise OptionError(f"delivery is one of {', '.join(_DELIVERIES)}, not {delivery!r}")
    endpoint = _endpoints(found.get("endpoint", ""), delivery)
    run = _name("run", found.get("run", ""))
    if delivery != "eager":
        run = _run_of(endpoint[0], run)
    if_complete = found.get("if_complete", _IF_COMPLETE[0]).lower()
    if if_complete not in _IF_COMPLETE:
        raise OptionError(f"if_complete is one of {', '.join(_IF_COMPLETE)}, not {if_complete!r}")
    if if_complete == "skip" and delivery == "eager":
        raise OptionError("if_complete=skip needs a spool: delivery=eager keeps no record of runs")
    compression = found.get("compression", "").lower()
    if compression not in ("", "none", "lz4"):
        raise OptionError(f"compression is 'lz4' or 'none', not {compression!r}")
    return WriteOptions(
        endpoint=endpoint,
        columns=_names("columns", found.get("columns", "")),
        run=run,
        delivery=delivery,
        ack_timeout=_seconds("ack_timeout", found.get("ack_timeout", "600")),
        connect_timeout=_seconds("connect_timeout", found.get("connect_timeout", "30")),
        abort_timeout=_seconds("abort_timeout", found.get("abort_timeout", "60")),
        frame_rows=_count("frame_rows", found.get("frame_rows", "0")),
        checksum=_boolean("checksum", found.get("checksum", "false")),
        compression="" if compression == "none" else compression,
        job=_name("job", found.get("job", "")),
        ragged=_names("ragged", found.get("ragged", "")),
        nulls=_choice("nulls", found, NULLS),
        timestamps=_choice("timestamps", found, TIMESTAMPS),
        dates=_choice("dates", found, DATES),
        decimals=_choice("decimals", found, DECIMALS),
        dense=_shapes("dense", found.get("dense", "")),
        if_complete=if_complete,
    )


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """As `parse_options`, for a read. Raises OptionError, AddressError."""
    found = _known(options, [f.name for f in fields(ReadOptions)], _READ_ALIASES)
    endpoint = found.get("endpoint", "").strip()
    if not endpoint.startswith(SCHEME):
        raise OptionError(
            "reading needs a run of a spool" + (f", and {endpoint!r} is none" if endpoint else ""),
            hint="Give the option 'endpoint', for instance run://10.0.0.7:5570/NAME; `transfer runs list` "
            "lists them.",
        )
    run = _run_of(endpoint, _name("run", found.get("run", "")))
    if not run:
        raise OptionError(f"{endpoint!r} names no run", hint="run://HOST:PORT/NAME, or the option 'run'")
    start = found.get("starting_offset", _STARTS[0]).lower()
    if start not in _STARTS:
        raise OptionError(f"starting_offset is one of {', '.join(_STARTS)}, not {start!r}")
    return ReadOptions(
        endpoint=parse(endpoint).endpoint,
        run=run,
        partitions=_count("partitions", found.get("partitions", "0")),
        open=_boolean("open", found.get("open", "false")),
        connect_timeout=_seconds("connect_timeout", found.get("connect_timeout", "30")),
        group=_name("group", found.get("group", "")),
        starting_offset=start,
        max_rows_per_trigger=_count("max_rows_per_trigger", found.get("max_rows_per_trigger", "0")),
    )


def _known(options: Mapping[str, str], known: Sequence[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Returns the options under their canonical names."""
    names = {name.replace("_", ""): name for name in known} | dict(aliases)
    found: dict[str, str] = {}
    for key, value in options.items():
        name = names.get(key.lower(), names.get(key.lower().replace("_", ""), ""))
        if not name:
            close = difflib.get_close_matches(key.lower(), sorted({*known, *aliases}), 1)
            listed = ", ".join(sorted({*known} - {"job"}))
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {listed}."
            raise OptionError(f"unknown option {key!r} for format('transfer')", hint=hint)
        if found.get(name, value) != value:
            raise OptionError(f"option {name!r} was given twice, with different values")
        found[name] = value
    return found


def _endpoints(text: str, delivery: str) -> tuple[str, ...]:
    endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
    if not endpoints:
        raise OptionError(
            "format('transfer') needs the option 'endpoint'",
            hint="Give it a run at a spool, for instance .option('endpoint', 'run://10.0.0.7:5570/NAME'); "
            "`transfer serve` starts one.",
        )
    if delivery == "eager":
        return _trainers(endpoints)
    for endpoint in endpoints:
        if not endpoint.startswith(SCHEME):
            raise OptionError(
                f"delivery={delivery} needs a spool, and {endpoint!r} is none",
                hint="Give the endpoint run://HOST:PORT/NAME that `transfer serve` prints; or use "
                "delivery=eager to send directly to a trainer, which then gets rows of failed attempts, too.",
            )
    if len(endpoints) > 1:
        raise OptionError(f"delivery={delivery} has one endpoint, not {len(endpoints)}")
    return endpoints


def _run_of(endpoint: str, run: str) -> str:
    """Returns the run's name, from the endpoint or the option."""
    named = parse(endpoint).run
    if named and run and named != run:
        raise OptionError(f"the endpoint names run {named!r}, and the option 'run' {run!r}")
    return named or run


def _trainers(endpoints: tuple[str, ...]) -> tuple[str, ...]:
    for endpoint in endpoints:
        scheme, separator, rest = endpoint.partition("://")
        if endpoint.startswith(SCHEME):
            raise OptionError(
                "delivery=eager sends directly to trainers, without a spool",
                hint="Use delivery=partition for rows before the job ends, or the endpoint of a data set.",
            )
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


def _names(option: str, text: str) -> tuple[str, ...]:
    text = text.strip()
    if text.startswith("["):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise OptionError(f"option {option!r} is no JSON list: {text!r}") from error
        if not all(isinstance(name, str) for name in value):
            raise OptionError(f"option {option!r} is a list of names")
        names = tuple(value)
    else:
        names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"option {option!r} names {name!r} twice")
    return names


def _choice(option: str, found: Mapping[str, str], known: Sequence[str]) -> str:
    """Returns one of these words; the first one is the default."""
    word = found.get(option, known[0]).lower()
    if word not in known:
        raise OptionError(f"{option} is one of {', '.join(known)}, not {word!r}")
    return word


def _shapes(option: str, text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Parses `name`, or `name=32x32x3`, separated by commas."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for one in _names(option, text):
        name, separator, shape = one.rpartition("=")
        if not separator:
            found.append((one, ()))
            continue
        sizes = shape.lower().split("x")
        if not name or not all(size.isdecimal() and 0 < len(size) < 10 and int(size) for size in sizes):
            raise OptionError(f"option {option!r} has {one!r}, and a shape is like 32x32x3")
        found.append((name, tuple(int(size) for size in sizes)))
    return tuple(found)


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
