"""What hostile clients send to each port of a broker: good conversations with wrong values. Pure, by seed.

A talk is a list of words (bytes), in the order in which they are said over one connection.
"""

from __future__ import annotations

import contextlib
import json
import random
import ssl
import struct
from collections.abc import Callable

from tests.fuzz import frames
from tests.fuzz.mutations import VALUES, damaged, disordered, name, number, payload, rewritten
from transfer.broker.protocols import pybroker, rqueue, ttp
from transfer.broker.protocols.native import Join, Op, encode, encode_deliveries
from transfer.broker.protocols.native_batch import encode_several
from transfer.broker.protocols.native_pieces import Begin, Part, Place, encode_begin, encode_place, pack_parts
from transfer.spool.format import protocol as spool
from transfer.spool.format.run_messages import Commit, RowsFrame, TaskBegin as BeginRun, TaskEnd, to_meta
from transfer.tensors.bundle import _IN_DATA, _INLINE, _first_data, _header
from transfer.transports.core.wire import SocketType

Talk = list[bytes]


def _first_of_a_handshake() -> bytes:
    """What a client of TLS says first."""
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = ssl.create_default_context().wrap_bio(came, goes, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        peer.do_handshake()
    return goes.read()


# --- own ----------------------------------------------------------------------------------------------------


def _own_word(rng: random.Random) -> tuple[bytes, list[bytes]]:
    """(head, parts) of one word of a program's."""
    op = Op(rng.randrange(1, len(Op) + 1))
    here = rng.choice((1, 2, 3, rng.randrange(10), number(rng, 64)))
    count = rng.choice((0, 1, 1, 1, 2, number(rng, 32)))
    if op is Op.PUBLISH:
        return encode(op, here, name(rng)), [payload(rng) for _ in range(rng.choice((0, 1, 1, 2, 5)))]
    if op is Op.PUBLISH_MANY:
        return encode(op, here, name(rng), count), [payload(rng) for _ in range(min(count, 5))]
    if op is Op.JOIN:
        wish = Join("fuzz.a", rng.choice(("fuzz", "fuzz2")), begin="old", several=True, pieces=True)
        return encode(op, here, rewritten(rng, wish._asdict())), []
    if op in (Op.ACK, Op.NACK):
        made = [(rng.randrange(20), number(rng, 32), number(rng, 32)) for _ in range(min(count, 5))]
        return encode(op, here, encode_deliveries(made) + rng.choice((b"", b"\xff")), count), []
    if op is Op.BEGIN:
        nbytes = rng.choice((0, 1, 1000, 20 << 20, number(rng, 64)))
        parts = [Part(number(rng, 8), rng.randbytes(rng.choice((0, 48, 24))), nbytes)] * rng.choice((0, 1, 2))
        return encode_begin(here, Begin(name(rng)[:300], nbytes, pack_parts(parts))), []
    if op is Op.PIECE:
        return encode(op, here), [payload(rng) for _ in range(rng.choice((0, 1, 1, 2)))]
    if op is Op.FETCH:
        return encode_place(op, here, Place(rng.randrange(20), number(rng, 32), number(rng, 64))), []
    if op in (Op.REGISTER, Op.RENEW, Op.UNREGISTER, Op.LOOK_UP):
        words = {"name": "fuzz", "lease": 2.0, "endpoint": "tcp://127.0.0.1:1", "epoch": 1}
        words |= {"metadata": {"a": "b"}, "watch": rng.random() < 0.5, "revision": -1}
        return encode(op, here, rewritten(rng, words)), []
    return encode(op, here, rng.choice((b"", name(rng), rewritten(rng, {"message": "x"}))), count), []


def own(rng: random.Random) -> Talk:
    """DEALER to the socket of requests, the registry's words among others."""
    words = [frames.hello(rng, SocketType.DEALER)]
    for _ in range(rng.randrange(1, 10)):
        head, parts = _own_word(rng)
        if rng.random() < 0.15:
            several = [_own_word(rng) for _ in range(rng.randrange(4))]
            pairs = [(one, len(its) + (rng.random() < 0.1)) for one, its in several]
            try:
                head = encode_several(rng.choice((Op.SEVERAL, Op.SEVERAL_FROM_BROKER)), pairs)
            except struct.error:
                continue
            parts = [part for _, its in several for part in its]
        words.append(frames.message(rng, SocketType.DEALER, head, *parts))
        if rng.random() < 0.1:
            words.append(frames.frame(rng, SocketType.DEALER))
        if rng.random() < 0.05:
            words.append(frames.any_control(rng, SocketType.DEALER))
    return words


def pushes(rng: random.Random) -> Talk:
    """PUSH: topic and payload."""
    words = [frames.hello(rng, SocketType.PUSH)]
    for _ in range(rng.randrange(1, 8)):
        words.append(frames.message(rng, SocketType.PUSH, name(rng), payload(rng)))
        if rng.random() < 0.3:
            words.append(frames.frame(rng, SocketType.PUSH))
    return words


def subscriptions(rng: random.Random) -> Talk:
    """SUB: orders, mostly."""
    words = [frames.hello(rng, SocketType.SUB)]
    words += [frames.any_control(rng, SocketType.SUB) for _ in range(rng.randrange(1, 12))]
    return words


def requests_by_req(rng: random.Random) -> Talk:
    """Another type that a ROUTER takes, and frames without any sense."""
    return frames.talk(rng, rng.choice((SocketType.REQ, SocketType.DEALER, SocketType.ROUTER)))


# --- TTP, PyBroker, rqueue ----------------------------------------------------------------------------------


def ttp_talk(rng: random.Random) -> Talk:
    """Frames of TTP; streams that are never finished, and chunks of none."""
    words = []
    for _ in range(rng.randrange(1, 10)):
        kind = rng.randrange(1, 9) if rng.random() < 0.95 else number(rng, 8)
        flags = rng.choice((0, ttp.WANTED, ttp.EOF, ttp.WANTED | ttp.EOF, number(rng, 8)))
        meta = b"" if rng.random() < 0.5 else rewritten(rng, {"nbytes": 100, "subscribe": True, "stream": 1})
        data = payload(rng)
        size = len(data) if rng.random() < 0.93 else number(rng, 64)
        stream = rng.choice((0, 1, 2, number(rng, 64)))
        words.append(ttp.encode_head(kind, name(rng), meta, size, flags, stream) + data)
    return words


def pybroker_talk(rng: random.Random) -> Talk:
    """PUBLISH and FETCH."""
    words = []
    for _ in range(rng.randrange(1, 10)):
        topic, data = name(rng)[:255], payload(rng)
        body = data if rng.random() < 0.5 else struct.pack(">Q", number(rng, 64))
        size = len(topic) + len(body) + 1 if rng.random() < 0.9 else number(rng, 32)
        command = rng.choice((pybroker.Command.PUBLISH, pybroker.Command.FETCH, number(rng, 8)))
        words.append(struct.pack(">IBB", size, command, len(topic)) + topic + body)
    return words


def rqueue_talk(rng: random.Random) -> Talk:
    """All types, and lengths within lengths that do not fit."""
    words = []
    for _ in range(rng.randrange(1, 10)):
        topic, data = name(rng)[:255], payload(rng)
        inner = bytes([len(topic) if rng.random() < 0.95 else number(rng, 8)]) + topic
        kind = rng.choice((*map(int, rqueue.Type), number(rng, 8)))
        if kind == rqueue.Type.PUBLISH:
            size = len(inner + data) if rng.random() < 0.95 else number(rng, 32)
            inner = struct.pack(">IB", size, rqueue.Type.NOTIFICATION) + inner + data
        size = len(inner) if rng.random() < 0.93 else number(rng, 32)
        words.append(struct.pack(">IB", size, kind) + inner)
    return words


# --- abtp ---------------------------------------------------------------------------------------------------


def _zmtp_frame(rng: random.Random, data: bytes, flags: int) -> bytes:
    if rng.random() < 0.03:
        flags = rng.randrange(256)
    size = len(data) if rng.random() < 0.97 else number(rng, 64)
    if flags & 2 or size > 255:
        return bytes([flags | 2]) + size.to_bytes(8, "big") + data
    return bytes([flags, size]) + data


def _zmtp(rng: random.Random, kind: bytes, messages: list[list[bytes]]) -> Talk:
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    if rng.random() < 0.1:
        ready += bytes([number(rng, 8)]) + b"Identity" + struct.pack(">I", number(rng, 32))
    words = [
        b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32),
        bytes([4, len(ready)]) + ready,
    ]
    for parts in messages:
        last = len(parts) - 1
        words.append(b"".join(_zmtp_frame(rng, part, int(at < last)) for at, part in enumerate(parts)))
        if rng.random() < 0.1:
            command = rng.choice(
                (b"\x04PING\0\0", b"\x05ERROR", b"\x09SUBSCRIBEfuzz", b"\x04PONG" + payload(rng))
            )
            words.append(_zmtp_frame(rng, command, 4))
    return words


def _abtp_message(rng: random.Random) -> list[bytes]:
    session = rng.choice(("", "fuzz", "0" * 32))
    if rng.random() < 0.5:
        control = rng.choice((
            {"type": "consumer.register", "consumer_id": "fuzz", "tenant_id": "t", "mode": "push",
             "subscriptions": ["fuzz.a", "fuzz.*"], "session_id": session,
             "capabilities": {"supports_ack": True, "supports_compression": ["lz4"],
                              "supports_codec": ["json"], "max_inflight": 4}},
            {"type": "consumer.heartbeat", "consumer_id": "fuzz", "session_id": session, "timestamp": 1,
             "reply": True},
            {"type": "consumer.deregister", "consumer_id": "fuzz", "session_id": session},
            {"type": "ack", "consumer_id": "fuzz", "session_id": session, "message_id": "m",
             "delivery_id": "d", "status": "processed", "processed_at": 1, "reply": True},
            {"type": "nack", "consumer_id": "fuzz", "session_id": session, "message_id": "m",
             "delivery_id": "d", "status": "retryable_error", "reason": "x", "reply": True},
        ))  # fmt: skip
        return [b"", b"_control", rewritten(rng, control)]
    envelope = {"spec_version": "1.0", "message_id": f"m{rng.randrange(9)}", "producer_id": "p", "topic": "fuzz.a",  # noqa: E501
                "timestamp_unix_ms": 1, "headers": {"priority": "high", "ttl_ms": 1000}, "payload": "YWJj"}  # fmt: skip  # noqa: E501
    body = rewritten(rng, envelope) if rng.random() < 0.7 else payload(rng)
    if rng.random() < 0.5:
        return [b"", name(rng), body]
    headers = rewritten(rng, {"message_id": "m", "codec": "json", "compression": rng.choice(("none", "lz4"))})
    version = rng.choice((b"1.0", b"0.1", b"\x01", b""))
    return [b"", version, bytes([rng.randrange(256)]), name(rng), headers, body]


def abtp_router(rng: random.Random) -> Talk:
    """DEALER over ZeroMQ's protocol: control messages, envelopes of both forms."""
    return _zmtp(rng, b"DEALER", [_abtp_message(rng) for _ in range(rng.randrange(1, 8))])


def abtp_pub(rng: random.Random) -> Talk:
    """SUB: subscriptions as messages."""
    first = lambda: rng.choice((b"\1", b"\0", b"\2", b""))  # noqa: E731
    return _zmtp(rng, b"SUB", [[first() + name(rng)] for _ in range(rng.randrange(1, 8))])


# --- HTTP ---------------------------------------------------------------------------------------------------

_PATHS = (
    "/", "/livez", "/readyz", "/metrics", "/api/overview", "/api/topics", "/api/groups", "/api/fronts",
    *("/api/admin/" + path for path in (
        "dlq/list", "dlq/inspect", "dlq/replay", "dlq/dead-letter", "dlq/purge", "audit/events", "audit/verify",  # noqa: E501
        "audit/export", "groups/remove", "groups/seek", "topics/purge", "topics/remove",
    )), "/api/nothing", "/..%2f", "/%00", "*",
)  # fmt: skip


def http(rng: random.Random) -> Talk:
    """Requests, one after the other on one connection."""
    words = []
    for _ in range(rng.randrange(1, 5)):
        method = rng.choice(("GET", "GET", "POST", "POST", "DELETE", "PUT", "OPTIONS", "G\x00T", "POST" * 50))
        query = rng.choice(("", "?limit=1", "?limit=-1", "?limit=99999999999999999999", "?after=%ff&topic=fuzz",  # noqa: E501
                            "?topic=fuzz&topic=x&offset=NaN", "?" + "a" * 9000))  # fmt: skip
        body = b""
        if method in ("POST", "PUT", "DELETE") or rng.random() < 0.1:
            said = {"id": "fuzz", "consumer": "fuzz", "topic": "fuzz.a", "payload": "x", "actor": "fuzz",
                    "reason": "fuzz", "ids": ["1:fuzz"], "limit": 1, "confirm": "fuzz", "before": 5}  # fmt: skip  # noqa: E501
            body = rng.choice(
                (rewritten(rng, said), rewritten(rng, said), rng.choice(VALUES).encode("latin-1"))
            )
        size = len(body) if rng.random() < 0.93 else rng.choice((number(rng, 64), -1))
        head = (
            f"{method} {rng.choice(_PATHS)}{query} HTTP/1.1\r\nHost: {rng.choice(('127.0.0.1', 'x', ''))}\r\n"
        )
        head += rng.choice(
            ("Content-Type: application/json\r\n", "Content-Type: x\r\n", "Expect: 100-continue\r\n")
        )
        if rng.random() < 0.1:
            head += "Transfer-Encoding: chunked\r\n"
            body = b"%x\r\n" % rng.choice((len(body), number(rng, 64))) + body + b"\r\n0\r\n\r\n"
        elif body or size:
            head += f"Content-Length: {size}\r\n"
        if rng.random() < 0.05:
            head += "X: " + "x" * rng.choice((100, 9000, 70_000)) + "\r\n"
        words.append(head.encode("latin-1") + b"\r\n" + body)
    return words


# --- spool --------------------------------------------------------------------------------------------------

_KEY = ("fuzz", "job", 0, 0)
_ASKED = (
    spool.Declare(run="fuzz", job="job", delivery="committed", kind="batch"),
    spool.Ended(run="fuzz", job="job", partition=0, attempt=0),
    spool.CommitJob(run="fuzz", job="job"),
    spool.AbortJob(run="fuzz", job="job", cause=["UsageError", "x", ""]),
    spool.OpenRun(run="fuzz", group="g", shard=0, shards=1, token="t"),
    spool.Fetch(epoch=0, seed=None, begin=0, rows=1, stride=1, times=1, need=1),
    spool.Read(run="fuzz", begin=0, end=1),
    spool.Acknowledge(run="fuzz", run_id="x", group="g", shard=0, shards=1, epoch=0, row=0, steps=[[1, 2]]),
    spool.Release(used=(0, 0)),
    spool.ListRuns(),
    spool.InspectRun(run="fuzz"),
    spool.DeleteRun(run="fuzz", force=True),
    spool.ForgetGroup(run="fuzz", group="g"),
    spool.Explain(run="fuzz", epoch=0, seed=None, begin=0, end=1),
    spool.LineageRequest(run="fuzz", group="g"),
)


def _bundle(rng: random.Random, kind: SocketType, words: dict[str, object]) -> bytes:
    """A bundle without tensors that has these words, or others, as its metadata."""
    text = rewritten(rng, words, 1)
    index = struct.pack("<I", 0 if rng.random() < 0.9 else number(rng, 32))
    where = _INLINE if rng.random() < 0.9 else _IN_DATA
    size = len(text) if rng.random() < 0.95 else number(rng, 32)
    data = _first_data((index if where == _IN_DATA else b"") + text, ())
    flags = frames.TENSOR | frames.EXTENDED
    return frames.Raw(data, flags, 1, _header(index, where, size), socket_type=int(kind)).encode()


def spool_requests(rng: random.Random) -> Talk:
    """Requests of jobs, readers and operators."""
    words = [frames.hello(rng, SocketType.DEALER)]
    for _ in range(rng.randrange(1, 10)):
        words.append(_bundle(rng, SocketType.DEALER, spool.to_meta(rng.choice(_ASKED))))
        if rng.random() < 0.1:
            words.append(frames.frame(rng, SocketType.DEALER))
    return words


def spool_rows(rng: random.Random) -> Talk:
    """Attempts that send rows of a run."""
    columns = json.dumps([{"name": "id", "kind": "dense", "dtype": "int64", "shape": []}])
    said = (
        BeginRun(*_KEY, 0, columns),
        RowsFrame(*_KEY, 0, 1, 0),
        TaskEnd(*_KEY, 1, 1, 0),
        Commit("fuzz", "job"),
    )
    words = [frames.hello(rng, SocketType.PUSH)]
    for _ in range(rng.randrange(1, 10)):
        words.append(_bundle(rng, SocketType.PUSH, to_meta(rng.choice(said))))
        if rng.random() < 0.2:
            words.append(frames.frame(rng, SocketType.PUSH))
    return words


# --- before TLS ---------------------------------------------------------------------------------------------

_CLIENT_HELLO = _first_of_a_handshake()


def tls_records(rng: random.Random) -> Talk:
    """A ClientHello with other bytes in it, and records that have no place behind it."""
    words = [_CLIENT_HELLO if rng.random() < 0.2 else damaged(rng, _CLIENT_HELLO)]
    for _ in range(rng.randrange(6)):
        kind, data = rng.choice((20, 21, 22, 22, 23, 24, number(rng, 8))), payload(rng)[: 1 << 14]
        size = len(data) if rng.random() < 0.9 else number(rng, 16)
        words.append(struct.pack(">BHH", kind, rng.choice((0x0301, 0x0303, 0)), size) + data)
    return words


def behind_hello(talk: Callable[[random.Random], Talk]) -> Callable[[random.Random], Talk]:
    """The same for a dial that has sent its hello."""
    return lambda rng: talk(rng)[1:]


#: by the name of a port in the broker's report; a second word stands for another way to connect to it
TALKS: dict[str, Callable[[random.Random], Talk]] = {
    "requests": own,
    "requests frames": requests_by_req,
    "pushes": pushes,
    "subscriptions": subscriptions,
    "ttp": ttp_talk,
    "pybroker": pybroker_talk,
    "rqueue": rqueue_talk,
    "abtp router": abtp_router,
    "abtp pub": abtp_pub,
    "http": http,
    "spool": spool_requests,
    "rows": spool_rows,
    "requests greeting": behind_hello(own),
    "requests local": behind_hello(own),
    "requests upgrade": behind_hello(own),
    "rows local": behind_hello(spool_rows),
}
#: the same broker with certificates and a token: inside TLS, in the exchange of the token, and before TLS
SECURED: dict[str, Callable[[random.Random], Talk]] = {
    "requests tls": own,
    "pushes tls": pushes,
    "subscriptions tls": subscriptions,
    "ttp tls": ttp_talk,
    "pybroker tls": pybroker_talk,
    "rqueue tls": rqueue_talk,
    "abtp router tls": abtp_router,
    "abtp pub tls": abtp_pub,
    "http tls": http,
    "spool tls": spool_requests,
    "rows tls": spool_rows,
    "requests proved": behind_hello(own),
    "spool proved": behind_hello(spool_requests),
    "requests proof": behind_hello(own),
    "spool proof": behind_hello(spool_requests),
    "requests records": tls_records,
    "ttp records": tls_records,
    "http records": tls_records,
    "abtp router records": tls_records,
    "requests plain": own,
    "ttp plain": ttp_talk,
    "http plain": http,
}
#: the port of each in the table of limits (docs/reference/limits.md)
PORTS = {
    "requests": ("native front", "native sockets, spool, registry: tcp, ipc", "registry"),
    "ttp": ("TTP",),
    "pybroker": ("PyBroker",),
    "rqueue": ("rqueue",),
    "abtp router": ("abtp",),
    "abtp pub": ("abtp",),
    "http": ("HTTP of a broker",),
    "metrics": ("HTTP of metrics",),
    "spool": ("spool",),
    "rows": ("spool",),
    "pushes": ("native front",),
    "subscriptions": ("native front",),
    "requests greeting": ("one host",),
    "requests tls": ("each port of a broker or spool, each bound endpoint",),
}


def talk(target: str, seed: int) -> Talk:
    """What the client of this seed sends there."""
    rng = random.Random(f"{target} {seed}")
    return disordered(rng, (TALKS | SECURED | {"metrics": http})[target](rng))
