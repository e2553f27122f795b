"""Writes docs/zmq-compat.md: `python -m transfer.zmq.support > docs/zmq-compat.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from transfer.zmq import constants, version
from transfer.zmq._support import GROUPS, SOCKET_TYPES, SupportGroup
from transfer.zmq.constants import SocketOption, SocketType
from transfer.zmq.options import RULES, Effect

_HEAD = f"""\
# pyzmq programs on transfer

<!-- Written by `python -m transfer.zmq.support`; a test fails when it is out of date. -->

This page says what a pyzmq program must change to run on transfer, and lists every name of pyzmq with its
support. Import `transfer.zmq` instead of `zmq`, and `transfer.zmq.asyncio` instead of `zmq.asyncio`.

```python
import transfer.zmq as zmq

with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
    push.bind("tcp://127.0.0.1:5555")
    pull.connect("tcp://127.0.0.1:5555")
    push.send_string("hello")
    assert pull.recv_string() == "hello"
```

Sockets of the types REQ, REP, PUB, SUB, PUSH, PULL, PAIR, ROUTER and DEALER work. Names, numbers, defaults
(linger -1, high-water mark 1000, lazy connect) and errors are those of pyzmq {version.pyzmq_version()} over
libzmq {version.zmq_version()}. The tests in `tests/zmq_compat/` run the same programs on both.

## Differences

* Both ends must use this project: the wire is not ZMTP. A warning in the log reports a peer that speaks
  ZeroMQ's protocol. Endpoints are `tcp://`, `ipc://` and `inproc://`; `pgm`, `udp`, `ws`, `vmci`, `tipc`
  and `norm` are missing.
* `except zmq.ZMQError` catches every error raised on purpose. `errno` is pyzmq's. Texts say more than
  libzmq's and end with a hint: `Again` names the endpoint that does not answer.
* An unsupported name raises `NotSupported` (a `ZMQError` with ENOTSUP) with the reason when it is used. An
  unsupported option can be set to its default.
* A socket type can be ZeroMQ's number, a name ("PUSH"), or the member of that name of any enumeration
  (`zmq.PUSH` of pyzmq, `transfer.PUSH`). `transfer.Context` takes the same, except bare numbers, which
  differ from ZeroMQ's: `zmq.PUSH == 8`, but `transfer.PUSH == zmq.REP` is false, though both are 4.
* Any thread may use a socket.
* `close` returns at once and messages are delivered in the background, as in libzmq; `Context.term` and
  `destroy` wait for that. `destroy(linger=...)` also limits the wait for sockets closed before. `term`
  closes sockets that are still open instead of waiting for their owners.
* `send_pyobj` and `recv_pyobj` are refused unless MOONCAKE_ALLOW_PICKLE=1.
* A ROUTER refuses a second peer with an identity in use, and that peer retries (libzmq leaves it connected
  and ignores it). A peer that reconnects keeps its identity. ROUTER_HANDOVER is as in libzmq.
* `transfer` is faster: `send` and `recv` run no Python, and `transfer.asyncio` makes no future when a call
  need not wait.

| case | here | in pyzmq |
|---|---|---|
| a ROUTER sends only an identity | UsageError | accepts and drops it |
| a ROUTER answers a REQ without the empty part after the identity | UsageError | accepts it; the REQ \
drops it |
| `identity = b""` | accepted: no identity | ZMQError (EINVAL) |
| an identity that begins with a zero byte | OptionError | accepted |
| an option of a closed socket, as attribute in lower case (`sock.linger`) | its last value; `get`, `fd`, \
`events`, `hwm` and upper case raise `Closed` | ZMQError (ENOTSOCK) |
| `send_multipart([])` | UsageError | IndexError |
| `Frame(b"a") == Frame(b"a")` | True: frames, and bytes, compare by content; a Frame has no hash | False |
| `send` of a non-contiguous array | BufferError; with `copy=False` below `copy_threshold` bytes sent in C \
order | ValueError; with `copy=False` BufferError |
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
        (Effect.IGNORED, "These can be set and read, and have no effect."),
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
    kinds = [kind.__name__ for kind in constants.ENUMS if kind not in (SocketType, SocketOption)]
    yield f"All constants of pyzmq exist with its numbers, supported or not: {_quoted(kinds)}.\n"


def _table(groups: Iterable[SupportGroup]) -> Iterator[str]:
    yield "| of | names | | reason |\n|---|---|---|---|"
    for group in groups:
        yield f"| `{group.where}` | {_quoted(group.names)} | {group.verdict.value} | {group.reason} |"
    yield ""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(document())
