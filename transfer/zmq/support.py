"""Writes docs/zmq-compat.md: `python -m transfer.zmq.support > docs/zmq-compat.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from transfer.zmq import constants, version
from transfer.zmq._support import GROUPS, SOCKET_TYPES, Group
from transfer.zmq.constants import SocketOption, SocketType
from transfer.zmq.options import RULES, Effect

_HEAD = f"""\
# pyzmq programs on transfer

<!-- Written by `python -m transfer.zmq.support`; a test fails when it is out of date. -->

`import transfer.zmq as zmq` instead of `import zmq`, and `import transfer.zmq.asyncio` instead of
`import zmq.asyncio`: a program with sockets of the types REQ, REP, PUB, SUB, PUSH, PULL, PAIR, ROUTER and
DEALER runs unchanged. Names, numbers, defaults (linger -1, high-water mark 1000, lazy connect) and errors
are those of pyzmq {version.pyzmq_version()} over libzmq {version.zmq_version()}. The tests in
`tests/zmq_compat/` run the same programs on both.

Good to know:

* Both ends must use this project: the wire protocol is not ZMTP. Endpoints are `tcp://`, `ipc://`
  and `inproc://`; `pgm`, `udp`, `ws`, `vmci`, `tipc` and `norm` are missing.
* `except zmq.ZMQError` catches every error raised on purpose. The texts are longer than libzmq's and end
  with a hint: `Again` names the endpoint that has no peer. `errno` is pyzmq's.
* A missing function raises `NotSupported` (a `ZMQError` with ENOTSUP) with the reason when it is used;
  a missing option may still be set to its default.
* A socket type may be a number of ZeroMQ's, a name ("PUSH"), or the member of that name of any
  enumeration (`zmq.PUSH` of pyzmq, `transfer.PUSH`). `transfer.Context` accepts the same, except for bare
  numbers: its numbers differ from ZeroMQ's. `zmq.PUSH == 8`, but `transfer.PUSH == zmq.REP` is false, though
  both are 4.
* A peer with ZeroMQ's own protocol is recognised by its greeting, and the log has a warning.
* Sockets may be used from any thread.
* `close` returns at once and queued messages are delivered in the background, as in libzmq;
  `Context.term` and `destroy` wait for that. `destroy(linger=...)` bounds the wait for sockets closed
  before, too. `term` closes open sockets instead of waiting for their owners.
* `send_pyobj` and `recv_pyobj` refuse unless MOONCAKE_ALLOW_PICKLE=1.
* A ROUTER refuses a second peer with an identity that another has, and that peer tries again (libzmq
  leaves it connected without serving it). A peer that reconnects keeps its identity. ROUTER_HANDOVER is as
  in libzmq.
* `transfer` itself is faster: its `send` and `recv` run no Python code, and `transfer.asyncio`
  makes no future for a call that need not wait.
"""


def document() -> str:
    """Returns the whole page."""
    return "\n".join([_HEAD, *_names(), *_types(), *_options(), *_constants()])


def _names() -> Iterator[str]:
    yield "## Names\n"
    yield from _table(GROUPS)


def _types() -> Iterator[str]:
    yield "## Socket types\n"
    yield from _table(SOCKET_TYPES)


def _options() -> Iterator[str]:
    yield "## Socket options\n"
    for effect, heading in (
        (Effect.FORWARDED, "These work, as numbers and as attributes in lower and upper case."),
        (Effect.IGNORED, "These are stored and have no effect."),
        (Effect.REFUSED, "These refuse any value but their default."),
    ):
        by_reason: dict[str, list[str]] = {}
        for option, rule in RULES.items():
            if rule.effect is effect:
                by_reason.setdefault(rule.reason, []).extend(_spellings(option))
        yield f"{heading}\n"
        if effect is Effect.FORWARDED:
            yield f"{_quoted(by_reason[''])}\n"
            continue
        yield "| options | reason |\n|---|---|"
        yield from (f"| {_quoted(names)} | {reason} |" for reason, names in by_reason.items())
        yield ""


def _spellings(option: SocketOption) -> list[str]:
    return [name for name, member in SocketOption.__members__.items() if member is option]


def _constants() -> Iterator[str]:
    yield "## Constants\n"
    yield "All exist with pyzmq's numbers, whether their function works or not.\n"
    for kind in constants.ENUMS:
        if kind in (SocketType, SocketOption):
            continue
        yield f"* `{kind.__name__}`: {_quoted(constants.names_of(kind))}"
    yield ""


def _table(groups: Iterable[Group]) -> Iterator[str]:
    yield "| of | names | | reason |\n|---|---|---|---|"
    for group in groups:
        yield f"| `{group.where}` | {_quoted(group.names)} | {group.verdict.value} | {group.reason} |"
    yield ""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(document())
