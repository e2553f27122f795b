"""Writes docs/zmq-compat.md: `python -m transfer.zmq.support > docs/zmq-compat.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from transfer.zmq import version
from transfer.zmq._support import GROUPS, SOCKET_TYPES, SupportVerdict
from transfer.zmq.constants import SocketOption
from transfer.zmq.options import RULES, Effect

_HEAD = f"""\
# pyzmq programs on transfer

<!-- Written by `python -m transfer.zmq.support`; a test fails when it is out of date. -->

A pyzmq program imports `transfer.zmq` instead of `zmq`, and `transfer.zmq.asyncio` instead of
`zmq.asyncio`. This page lists all that differs then. Two things first:

1. **Both ends must use this project.** The wire is not ZMTP, so no peer of libzmq can be at the other end.
   The log warns of a peer that speaks ZeroMQ's protocol.
2. **An endpoint that other machines reach asks for security.** `bind("tcp://*:5555")` raises SecurityError
   without certificates (`TRANSFER_TLS_CERT`, `TRANSFER_TLS_KEY`, `TRANSFER_TLS_CA`) or a token
   (`TRANSFER_TOKEN_FILE`), unless the socket has CURVE: [Security](security.md).
   `TRANSFER_UNAUTHENTICATED=allow` in the environment gives
   ZeroMQ's behaviour: every program that reaches the port may connect. Loopback, `ipc://` and `inproc://`
   need nothing.

```python
import transfer.zmq as zmq

with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
    push.bind("tcp://127.0.0.1:5555")
    pull.connect("tcp://127.0.0.1:5555")
    push.send_string("hello")
    assert pull.recv_string() == "hello"
```

Sockets of the types REQ, REP, PUB, SUB, PUSH, PULL, PAIR, ROUTER, DEALER, XPUB and XSUB work. Names, numbers,
defaults (linger -1, high-water mark 1000, lazy connect) and errors are those of pyzmq
{version.pyzmq_version()} over libzmq {version.zmq_version()}. `tests/zmq_compat/` runs the same programs on
both.

## Differences

* Endpoints are `tcp://`, `ipc://` and `inproc://`; `pgm`, `udp`, `ws`, `vmci`, `tipc` and `norm`
  are missing.
* `except zmq.ZMQError` catches every error raised on purpose, with pyzmq's `errno`; texts end with a hint.
* An unsupported name raises `NotSupported` (a `ZMQError` with ENOTSUP) when it is used. An unsupported
  option can be set to its default.
* A socket type can be ZeroMQ's number, a name ("PUSH"), or the member of that name of any enumeration
  (`zmq.PUSH` of pyzmq, `transfer.PUSH`). `transfer.Context` takes the same, except bare numbers, which
  differ: `zmq.PUSH == 8`, but `transfer.PUSH == zmq.REP` is false, though both are 4.
* `transfer as-zmq PROGRAM …` runs a program unchanged, with its Python children, on this package;
  `--transport` and `--policy` choose what is beneath. `from transfer.zmq import as_zmq; as_zmq.install()`,
  before a program's imports, does it in one process.
* These run so, unchanged: jupyter_client with ipykernel, zerorpc, Locust on several processes, vLLM's
  MessageQueue, 556 of TransferQueue's tests, and of the ZeroMQ guide's 98 Python files all that run on pyzmq:
  63 programs and their modules. Most others are for Python 2. See `tests/zmq_compat/`.
* Where pyzmq is installed, its modules in Python (`green`, `eventloop`, `devices`, `log`, `ssh`,
  `auth`, `curve_keygen`, `utils.garbage`) run over the sockets of this package then.
* `send_pyobj` and `recv_pyobj` do not pickle: plain types, arrays and tensors travel by msgspec, and other
  classes if TRANSFER_PICKLE_ALLOW names them ([send_pyobj](pyobj.md)). `protocol` has no effect then.
* PLAIN, CURVE and authenticators work, with [differences](security.md#zeromqs-mechanisms). GSSAPI is missing.
* Any thread may use a socket.
* mypy and pyright find misspelt options and attributes of sockets and contexts, which pyzmq's types accept.
* `close` returns at once and messages are delivered in the background, as in libzmq; `Context.term` and
  `destroy` wait for that. `destroy(linger=...)` also limits the wait for sockets closed before.
* A ROUTER refuses a second peer with an identity in use, and that peer retries (libzmq leaves it connected
  and ignores it). A peer that reconnects keeps its identity. ROUTER_HANDOVER is as in libzmq.
* A full queue drops messages of a PUB, or of a ROUTER, by their number only (SNDHWM), as in libzmq. The
  option `sndhwm_bytes` of `transfer` adds a limit in bytes when the program sets it. Other sockets wait, by
  default from 64 MiB queued for a peer on, unless SNDHWM is 0.
* `RCVHWM` has no effect, 0 neither: messages for a slow receiver wait at the sender, up to its SNDHWM. A
  receiver cannot make a sender keep more. Where no message may be dropped, set `SNDHWM = 0` at the sender.
* An XSUB sends messages that are no subscriptions only to XPUBs that are connected; others are dropped and
  counted (`no_peer`), where libzmq keeps them for an endpoint that is not there yet. Messages that the
  program of an XPUB leaves unread are dropped beyond 100,000, or 64 MiB, and counted (`unread`).
* A class derived from `zmq.Socket` or `zmq.Context` may use any private name except `_transfer_*`, and its
  `send`, `recv` and `close` are called where pyzmq calls them. An object of a class derived from Socket
  stands in front of a plain socket, so its calls cost one Python call more. `isinstance` and `issubclass`
  count it as a `zmq.Socket`, but its `__mro__` does not have that class.
* What libzmq drops in silence is dropped and counted in `transfer_drops_total` ([Metrics](metrics.md)): a
  ROUTER's message for an unknown identity or of only an identity, and the request of a REQ whose server died.
  That REQ waits on, as in libzmq, where one of `transfer.Socket` raises Broken at once.
* `transfer` is faster: `send` and `recv` run no Python, and `transfer.asyncio` makes no future when a call
  need not wait.

| case | here | in pyzmq |
|---|---|---|
| a ROUTER answers a REQ without the empty part after the identity | dropped and counted (`malformed` in \
`transfer_drops_total`); the right answer may follow | the REQ drops it and ends the connection: no \
answer can follow |
| a message is sent part by part without room or a peer | the last part waits, or raises Again, and may be \
sent again; with NOBLOCK the first part raises it | the first does |
| `identity = b""`, `HEARTBEAT_TIMEOUT = -1` | accepted: the default | ZMQError (EINVAL) |
| `set(HWM, number)` | sets both marks, as `hwm` does | ZMQError (EINVAL) |
| an option of bytes is given another buffer, such as a bytearray | accepted | TypeError |
| a value that means the same as another, such as `MULTICAST_LOOP = 2` or `HEARTBEAT_TTL = 7`, is read back \
| as it was set; a MAXMSGSIZE below -1 as -1 | as libzmq keeps it (1, 0); a MAXMSGSIZE as it was set |
| an identity that begins with a zero byte | OptionError | accepted |
| an option of a closed socket, as attribute in lower case (`sock.linger`) | its last value; `get`, `fd`, \
`events`, `hwm` and upper case raise `Closed` | ZMQError (ENOTSOCK) |
| `send_multipart([])` | UsageError | IndexError |
| `Frame(b"a") == Frame(b"a")` | True: frames, and bytes, compare by content; a Frame has no hash | False |
| a `Poller`, `select` or `zmq_poll` meets a closed socket | Closed: the mistake is named | polls descriptor \
0 instead, mostly the standard input |
| `disconnect` of a bound endpoint, `unbind` of a connected one | AddressError (ENOENT): only the call that \
fits ends it | each ends either |
| `connect` to port 0 | AddressError (ENODEV): nothing can listen there | accepted, and tried for ever |
| a port above 65535 | AddressError (EINVAL) | accepted, modulo 65536 |
| the events of a monitor | inproc connections have them too; CONNECT_DELAYED only if the kernel connects \
later, mostly to another machine; no CLOSED after each failed attempt | none of inproc; CONNECT_DELAYED of \
every TCP connection |
| `send` of a REP that has not received all parts of its request | it replies; the other parts are dropped | \
ZMQError (EFSM) |
| `send` of a non-contiguous array | BufferError; with `copy=False` below `copy_threshold` bytes sent in C \
order | ValueError; with `copy=False` BufferError |

## Names

Every public name of pyzmq, its classes and modules that is not in these tables works as there. All its
constants exist with their numbers, supported or not.
"""
#: verdicts with a table, and the heading of its second column
_TABLES = (
    (SupportVerdict.DIFFERS, "works, with a difference", "difference"),
    (SupportVerdict.REFUSED, "refuses", "reason"),
    (SupportVerdict.ABSENT, "absent", "reason"),
)


def document() -> str:
    """Returns the whole page."""
    return "\n".join([_HEAD, *_names(), *_options()])


def _names() -> Iterator[str]:
    for verdict, left, right in _TABLES:
        by_reason: dict[str, list[str]] = {}
        for group in (*GROUPS, *SOCKET_TYPES):
            if group.verdict is verdict:
                prefix = "" if group.where in ("zmq", "SocketType") else f"{group.where}."
                by_reason.setdefault(group.reason, []).extend(prefix + name for name in group.names)
        yield from _table(left, right, by_reason)


def _options() -> Iterator[str]:
    yield "## Socket options\n"
    yield "All others work, as numbers and as attributes in lower and upper case.\n"
    for effect, left in (
        (Effect.IGNORED, "can be set and read, no effect"),
        (Effect.REFUSED, "refuses all but its default"),
    ):
        by_reason: dict[str, list[str]] = {}
        for option, rule in RULES.items():
            if rule.effect is effect:
                by_reason.setdefault(rule.reason, []).extend(_spellings(option))
        yield from _table(left, "reason", {reason: _families(names) for reason, names in by_reason.items()})


def _spellings(option: SocketOption) -> list[str]:
    return [name for name, member in SocketOption.__members__.items() if member is option]


def _families(names: list[str]) -> list[str]:
    """`CURVE_*` for three and more names, if no other option begins like that."""
    found: dict[str, None] = {}
    for name in names:
        prefix = name.partition("_")[0] + "_"
        family = [other for other in SocketOption.__members__ if other.startswith(prefix)]
        found[f"{prefix}*" if len(family) > 2 and set(family) <= set(names) else name] = None
    return list(found)


def _table(left: str, right: str, by_reason: dict[str, list[str]]) -> Iterator[str]:
    yield f"| {left} | {right} |\n|---|---|"
    yield from (f"| {_quoted(names)} | {reason} |" for reason, names in by_reason.items())
    yield ""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(document())
