"""Writes the tables of docs/reference/ from the code: `make reference` (`python -m tests.docs.reference`)."""

from __future__ import annotations

import errno
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import transfer
import transfer.config
import transfer.transports.config
from tests.security.limits import LIMITS, size
from transfer import zmq
from transfer.broker import status
from transfer.broker.config.options import OPTIONS, BrokerOption
from transfer.broker.http.admin import AdminRoutes
from transfer.broker.http.topic_routes import TopicRoutes
from transfer.metrics import families
from transfer.metrics.families import Family
from transfer.sockets import options
from transfer.spark.options import ReadOptions, WriteOptions
from transfer.spool.client.row_stream import RowStream
from transfer.transports import errors

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
_HEAD = "<!-- Written by `make reference`; a test fails when it is out of date. -->"
_ZEROMQS = {errors.EFSM: "EFSM", errors.ETERM: "ETERM"}


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    return {
        "broker-options.md": _page(
            "Options of the broker",
            "How they are set: [the broker](../broker.md#options). Sizes are bytes or `64KiB`, times seconds "
            "or `15m`. Default none: the option is not set.",
            _table(("option", "default", "meaning", "flag; another broker's variable"), _options()),
        ),
        "errors.md": _page(
            "Types of errors",
            "Every one is a `TransferError`. What to do, and the words of `reason`: [errors](../errors.md).",
            _table(("class", "base classes", "errno", "when"), _errors()),
        ),
        "http.md": _page(
            "Operators' calls over HTTP",
            "How they are called, and by whom: [the broker](../broker.md#console-and-http-calls). `limit` is "
            "100 by default, at most 1000; a POST also has `actor` and `reason`.",
            _table(("call", "what it does"), _calls()),
        ),
        "limits.md": _page(
            "Limits",
            "What they are for, and what has no limit: [security](../security.md#limits).",
            _table(("port", "limit", "value"), _limits()),
        ),
        "socket-options.md": _page(
            "Options of a socket",
            "How they are set: [patterns](../patterns.md#options). Those marked * are for connections made "
            "later. Times are milliseconds, -1: without limit.",
            _table(("option", "default", "in `transfer.zmq`", "meaning"), _socket_options()),
        ),
        "rows.md": _page(
            "Options of rows",
            "How they are used: [Spark](../spark.md), [PyTorch](../pytorch.md).",
            "## Written by Spark\n",
            _table(("option", "default", "meaning"), _described(WriteOptions, "Attributes")),
            "## Read by Spark\n",
            "Spark's camel case works, too: `maxRowsPerTrigger`.\n",
            _table(("option", "default", "meaning"), _described(ReadOptions, "Attributes")),
            "## Read by a stream\n",
            "The arguments of `RowStream`, and of `StreamDataset` for a run.\n",
            _table(("argument", "default", "meaning"), _described(RowStream, "Args")),
        ),
        "metrics.md": _page(
            "Names of metrics",
            "Names in `_total` are counters. Labels and how to use them: [metrics](../metrics.md).",
            _table(("name", "labels", "meaning"), _metrics(families.FAMILIES)),
            "## Of a broker\n",
            _table(("name", "labels", "meaning"), _metrics(status.FAMILIES)),
            _table(("`event` of `transfer_broker_events_total`", "counts"), _events()),
        ),
        "variables.md": _page(
            "Environment variables",
            "`transports/config.py` and `transfer/config.py` read them. A misspelt one is refused.",
            _table(("variable", "meaning"), _variables()),
        ),
    }


def _page(title: str, text: str, *parts: str) -> str:
    return "\n".join((f"# {title}\n\n{_HEAD}\n\n{text}\n", *parts)).rstrip("\n") + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    first = list(head)
    lines = [first, ["---"] * len(first), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _options() -> Iterator[tuple[str, ...]]:
    for option in sorted(OPTIONS, key=lambda one: one.name.partition(".")[0]):
        text, default = without_default(option)
        also = [
            f"`--{option.flag}`" if option.flag else "",
            f"`{option.variable}`" if option.variable else "",
        ]
        yield (
            f"`{option.name}`",
            f"`{default}`" if default else "none",
            _linked(text),
            "; ".join(filter(None, also)),
        )


def without_default(option: BrokerOption) -> tuple[str, str]:
    """Its help without the default in brackets at the end, and that default."""
    text, _, default = option.help.removesuffix("]").rpartition(" [default: ")
    return (text, default) if text else (option.help, "")


def _errors() -> Iterator[tuple[str, ...]]:
    for name, kind in vars(errors).items():
        if not isinstance(kind, type) or not issubclass(kind, errors.TransferError):
            continue
        if kind is errors.TransferError:
            continue
        bases = [f"`{base.__name__}`" for base in kind.__bases__ if base is not errors.TransferError]
        number = kind.errno
        word = _ZEROMQS.get(number) or errno.errorcode[number] if number else ""
        yield f"`{name}`", ", ".join(bases), word, _linked(" ".join((inspect.getdoc(kind) or "").split()))


def _described(kind: type, section: str) -> Iterator[tuple[str, ...]]:
    """Fields or arguments as the class's docstring describes them, with their defaults."""
    parameters = inspect.signature(kind).parameters
    for names, meaning in texts_in(kind, section):
        defaults = [parameters[name].default for name in names.split(", ")]
        shown = [f"`{one}`" for one in defaults if one not in (inspect.Parameter.empty, None, "", ())]
        yield f"`{names.replace(', ', '`, `')}`", ", ".join(shown), _linked(meaning)


def texts_in(documented: object, section: str) -> list[tuple[str, str]]:
    """(names, text) of each entry of a section of a docstring."""
    text = (inspect.getdoc(documented) or "").partition(f"{section}:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    ([\w, ]+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return [(names, " ".join(meaning.split())) for names, meaning in found]


def _socket_options() -> Iterator[tuple[str, ...]]:
    with transfer.Context() as context, zmq.Context() as other:
        with context.socket(transfer.PUSH) as ours, other.socket(zmq.PUSH) as theirs:
            for name, text in texts_in(options, "Attributes"):
                if name in options.ACTIONS:
                    yield f"`{name}`", "", "", text
                    continue
                value, alike = _shown(ours.get(name)), _shown(getattr(theirs, name))
                yield f"`{name}`", value, "" if alike == value else alike, text


def _variables() -> Iterator[tuple[str, ...]]:
    for module in (transfer.transports.config, transfer.config):
        for names, text in texts_in(module, "Variables"):
            yield f"`{names.replace(', ', '`, `')}`", text


def _shown(value: object) -> str:
    return size(value) if type(value) is int and value >= 1 << 20 else f"`{value!r}`"


def _calls() -> Iterator[tuple[str, ...]]:
    nothing: Any = None
    for routes in (AdminRoutes(nothing, nothing), TopicRoutes(nothing, nothing)):
        for route in routes.routes("/api/admin/"):
            yield f"{route.method} `{route.path}`", " ".join((inspect.getdoc(route.handler) or "").split())


def _limits() -> Iterator[tuple[str, ...]]:
    last = ""
    for (port, limit), (value, *_) in LIMITS.items():
        yield "" if port == last else port, limit, value
        last = port


def _metrics(named: Mapping[str, Family]) -> Iterator[tuple[str, ...]]:
    for name, family in named.items():
        yield f"`{name}`", ", ".join(f"`{label}`" for label in family.labels), family.text


def _events() -> Iterator[tuple[str, ...]]:
    for event, text in status.EVENTS.items():
        yield f"`{event}`", text


def _linked(text: str) -> str:
    """Pages that a docstring or help names, as links from here."""
    return re.sub(r"\bdocs/([\w/]+)\.md", r"[\1](../\1.md)", text)


def write() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    write()
