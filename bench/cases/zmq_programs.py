"""The loops of pyzmq's programs, called as they call: on pyzmq, and on `transfer.zmq` in its place.

Two more are programs of `transfer` itself, compared with the fastest that pyzmq has for the same work.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.cases.timing import expect, throughput
from bench.scene import Clock, Link, Outcome, play
from bench.work import KIB, MESSAGES_PER_SECOND, Case, Failed, Metric, Sample, Work

LIBRARIES = {"transfer": "transfer.zmq", "transfer-native": "transfer", "pyzmq": "zmq"}
PATIENCE_MS = 60_000
WINDOW = 100
SENDERS = 32
PARTS = 3
BATCH = 64


def library(peer: str, work: Work) -> Any:
    os.environ["TRANSFER_LOCAL"] = "off"  # pyzmq uses TCP here, too; this process ends afterwards
    name = LIBRARIES[peer]
    return import_module("transfer" if work.params.get("native") and peer == "transfer" else name)


def socket_of(zmq: Any, kind: str, context: Any = None) -> Any:
    made = (context or zmq.Context.instance()).socket(getattr(zmq, kind))
    made.rcvtimeo = made.sndtimeo = PATIENCE_MS
    made.linger = 0
    return made


def bound(zmq: Any, kind: str) -> tuple[Any, str]:
    made = socket_of(zmq, kind)
    made.bind("tcp://127.0.0.1:*")
    address = made.last_endpoint
    return made, address if isinstance(address, str) else address.decode()


# --- what a sender does with its socket, so many times ---------------------------------------------


def send(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    for _ in range(count):
        sock.send(data)


def send_keyword(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    for _ in range(count):
        sock.send(data, copy=True)


def send_parts(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    for _ in range(count):
        for _ in range(PARTS - 1):
            sock.send(data, zmq.SNDMORE)
        sock.send(data)


def send_multipart(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    for _ in range(count):
        sock.send_multipart([data] * PARTS)


def echo_client(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    ahead = min(WINDOW, count)
    for _ in range(ahead):
        sock.send(data)
    for _ in range(count - ahead):
        sock.recv()
        sock.send(data)
    for _ in range(ahead):
        sock.recv()


def send_hoisted(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    send = sock.send
    for _ in range(count):
        send(data)


def send_batches(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    if not hasattr(sock, "send_many"):  # pyzmq has no such call
        return send_hoisted(zmq, sock, data, count)
    batch = [data] * BATCH
    for _ in range(count // BATCH):
        sock.send_many(batch)
    sock.send_many(batch[: count % BATCH])


def send_awaiting(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    awaiting = import_module(f"{zmq.__name__}.asyncio").Socket.shadow(sock)

    async def run() -> None:
        for _ in range(count):
            await awaiting.send(data)

    asyncio.run(run())


def ask(zmq: Any, sock: Any, data: bytes, count: int) -> None:
    for _ in range(count):
        sock.send(data)
        sock.recv()


# --- what a receiver does ---------------------------------------------------------------------------


def recv(zmq: Any, sock: Any, count: int) -> None:
    for _ in range(count):
        sock.recv()


def recv_hoisted(zmq: Any, sock: Any, count: int) -> None:
    recv = sock.recv
    for _ in range(count):
        recv()


def recv_batches(zmq: Any, sock: Any, count: int) -> None:
    if not hasattr(sock, "recv_many"):
        return recv_hoisted(zmq, sock, count)
    while count > 0:
        count -= len(sock.recv_many(min(BATCH, count)))


def recv_awaiting(zmq: Any, sock: Any, count: int) -> None:
    awaiting = import_module(f"{zmq.__name__}.asyncio").Socket.shadow(sock)

    async def run() -> None:
        for _ in range(count):
            await awaiting.recv()

    asyncio.run(run())


def recv_parts(zmq: Any, sock: Any, count: int) -> None:
    for _ in range(count):
        sock.recv()
        while sock.getsockopt(zmq.RCVMORE):
            sock.recv()


def recv_multipart(zmq: Any, sock: Any, count: int) -> None:
    for _ in range(count):
        sock.recv_multipart()


def poll_of(sockets: int) -> Callable[[Any, Any, int], None]:
    """A Poller of so many sockets, of which one has all messages."""

    def poll(zmq: Any, sock: Any, count: int) -> None:
        others = [bound(zmq, "PULL")[0] for _ in range(sockets - 1)]
        poller = zmq.Poller()
        for one in [*others, sock]:
            poller.register(one, zmq.POLLIN)
        while count:
            events = dict(poller.poll(PATIENCE_MS))
            if sock in events:
                sock.recv(zmq.NOBLOCK)
                count -= 1
        for one in others:
            one.close()

    return poll


def echo_server(zmq: Any, sock: Any, count: int) -> None:
    for _ in range(count):
        sock.send_multipart(sock.recv_multipart())


def answer(zmq: Any, sock: Any, count: int) -> None:
    for _ in range(count):
        sock.send(sock.recv())


#: name: (about, kinds of the sender and the receiver, what each does, bytes, messages)
LOOPS: dict[str, tuple[str, str, str, Any, Any, int, int]] = {
    "send": ("s.send(b), s.recv()", "PUSH", "PULL", send, recv, 64, 600_000),
    "send_1k": ("s.send(b), s.recv()", "PUSH", "PULL", send, recv, KIB, 400_000),
    "keyword": ("s.send(b, copy=True)", "PUSH", "PULL", send_keyword, recv, 64, 600_000),
    "parts": ("SNDMORE and RCVMORE, of 3", "PUSH", "PULL", send_parts, recv_parts, 64, 100_000),
    "multipart": ("send_multipart of 3", "PUSH", "PULL", send_multipart, recv_multipart, 64, 100_000),
    "poller_1": ("Poller, recv(NOBLOCK)", "PUSH", "PULL", send, poll_of(1), 64, 100_000),
    "poller_2": ("Poller of 2", "PUSH", "PULL", send, poll_of(2), 64, 100_000),
    "poller_16": ("Poller of 16", "PUSH", "PULL", send, poll_of(16), 64, 50_000),
    "router_echo": (f"ROUTER, {WINDOW} ahead", "DEALER", "ROUTER", echo_client, echo_server, 64, 60_000),
    "dealer_router": ("DEALER to ROUTER", "DEALER", "ROUTER", send, recv_multipart, 64, 150_000),
    "req_rep": ("REQ, REP", "REQ", "REP", ask, answer, 64, 10_000),
    "pub_sub": ("PUB, SUB", "PUB", "SUB", send, recv, 64, 300_000),
    "awaiting": ("await s.send(b), await s.recv()", "PUSH", "PULL", send_awaiting, recv_awaiting, 64, 60_000),
    "hoisted": ("send = s.send; send(b)", "PUSH", "PULL", send_hoisted, recv_hoisted, 64, 600_000),
    "batches": (f"send_many, recv_many of {BATCH}", "PUSH", "PULL", send_batches, recv_batches, 64, 900_000),
}  # fmt: skip


#: called at `transfer` itself
NATIVE = ("hoisted", "batches")
#: calls that `transfer` itself does not have
FOREIGN = ("awaiting", "parts")
OTHERS = ("transfer-native", "pyzmq")


def receiver(peer: str, work: Work, links: list[Link]) -> Outcome:
    zmq = library(peer, work)
    loop = LOOPS[work.params["loop"]]
    sock, address = bound(zmq, loop[2])
    if loop[2] == "SUB":
        sock.subscribe(b"")
        sock.rcvhwm = 0
    links[0].send(address)
    loop[4](zmq, sock, work.warmup)
    links[0].send("warm")
    clock = Clock()
    loop[4](zmq, sock, work.count)
    outcome = clock.stop()
    links[0].send("done")
    expect(links[0], "over")
    return {"received": work.count, "bytes": work.count * work.size, **outcome}


def sender(peer: str, work: Work, link: Link) -> Outcome:
    zmq = library(peer, work)
    loop = LOOPS[work.params["loop"]]
    sock = socket_of(zmq, "XPUB" if peer == "pyzmq" and loop[1] == "PUB" else loop[1])
    if loop[1] == "PUB":
        sock.sndhwm = 0
    sock.connect(link.receive())
    if loop[1] == "PUB":
        _await_subscription(peer, sock)
    data = bytes(work.size)
    loop[3](zmq, sock, data, work.warmup)
    expect(link, "warm")
    clock = Clock()
    loop[3](zmq, sock, data, work.count)
    expect(link, "done")
    outcome = clock.stop()
    link.send("over")
    return outcome


def _await_subscription(peer: str, sock: Any) -> None:
    if peer != "pyzmq":
        sock.wait_for_peers(1, timeout=PATIENCE_MS / 1000)
    elif sock.recv() != b"\x01":
        raise Failed("no subscription")


def measure(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, sender, peer, work)
    return throughput(work, sent[0], [received])


# --- many senders, and loops of one process ---------------------------------------------------------


def many_senders(peer: str, work: Work, link: Link) -> Outcome:
    zmq = library(peer, work)
    address = link.receive()
    sockets = [socket_of(zmq, "PUSH") for _ in range(SENDERS)]
    for one in sockets:
        one.connect(address)
    data = bytes(work.size)

    def rounds(count: int) -> None:
        for _ in range(count // SENDERS):
            for one in sockets:
                one.send(data)

    rounds(work.warmup)
    expect(link, "warm")
    clock = Clock()
    rounds(work.count)
    expect(link, "done")
    outcome = clock.stop()
    link.send("over")
    return outcome


def measure_many(work: Work, peer: str) -> Sample:
    received, sent = play(receiver, many_senders, peer, work)
    return throughput(work, sent[0], [received])


def inproc(zmq: Any, work: Work) -> None:
    context = zmq.Context()
    pull = socket_of(zmq, "PULL", context)
    pull.bind("inproc://bench")
    push = socket_of(zmq, "PUSH", context)
    push.connect("inproc://bench")
    thread = threading.Thread(target=send, args=(zmq, push, bytes(work.size), work.count))
    thread.start()
    recv(zmq, pull, work.count)
    thread.join()
    push.close()
    pull.close()
    context.term()


def misses(zmq: Any, work: Work) -> None:
    sock, _ = bound(zmq, "PULL")
    for _ in range(work.count):
        try:
            sock.recv(zmq.NOBLOCK)
        except zmq.Again:
            pass
    sock.close()


def lives(zmq: Any, work: Work) -> None:
    pull, address = bound(zmq, "PULL")
    context = zmq.Context.instance()
    for _ in range(work.count):
        sock = context.socket(zmq.PUSH)
        sock.linger = 0
        sock.connect(address)
        sock.close()
    pull.close()


ALONE: dict[str, tuple[str, Any, int]] = {
    "inproc": ("inproc, two threads", inproc, 200_000),
    "miss": ("recv(NOBLOCK) without a message", misses, 300_000),
    "lives": ("socket, connect, close", lives, 1_500),
}


def alone(peer: str, work: Work, links: list[Link]) -> Outcome:
    zmq = library(peer, work)
    loop = ALONE[work.params["loop"]][1]
    loop(zmq, Work(work.case, work.label, work.size, max(1, work.count // 20), 0, work.peers))
    clock = Clock()
    loop(zmq, work)
    return {"received": work.count, "bytes": work.count * work.size, **clock.stop()}


def measure_alone(work: Work, peer: str) -> Sample:
    done, _ = play(alone, _nobody, peer, work)
    return throughput(work, {**done, "cpu": 0.0}, [done])


def _nobody(peer: str, work: Work, link: Link) -> Outcome:
    return {}


def metric(_: Work) -> Metric:
    return MESSAGES_PER_SECOND


def _case(name: str, about: str, size: int, count: int, measured: Any) -> Case:
    def works(quick: bool) -> list[Work]:
        number = count // (5 if quick else 1)
        number -= number % SENDERS
        params = {"loop": name if name != "many" else "send", "native": name in NATIVE}
        warm = SENDERS * max(1, number // 20 // SENDERS)
        peers = ("transfer", "pyzmq") if name in (*NATIVE, *FOREIGN) else ("transfer", *OTHERS)
        return [Work(f"zmq_{name}", f"{size}B", size, number, warm, peers, 1, params)]

    where = "transfer" if name in NATIVE else "transfer.zmq"
    return Case(f"zmq_{name}", f"{where}: {about}", works, measured, metric, any_transport=False)


CASES = {f"zmq_{name}": _case(name, loop[0], loop[5], loop[6], measure) for name, loop in LOOPS.items()}
CASES["zmq_many"] = _case("many", f"{SENDERS} PUSH, one PULL", 64, 200_000, measure_many)
CASES |= {
    f"zmq_{name}": _case(name, about, 64, count, measure_alone) for name, (about, _, count) in ALONE.items()
}
