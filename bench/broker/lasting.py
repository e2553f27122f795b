"""The permanent load of a broker: a long log at its start, and idle connections."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import transfer
from bench.broker.case import Place, Sample
from bench.broker.cycle import LONGEST
from bench.work import KIB
from transfer.broker.bench.processes import PATIENCE, Processes, Stage, until_done
from transfer.broker.bench.target import Started, started
from transfer.broker.clients.native import BrokerClient
from transfer.broker.protocols.ttp import HEADER_SIZE, WANTED, TtpKind, encode_head

_PROCESSES = 10
_BATCH = 64
_TOPICS = 100


def recovery(place: Place, total: int = 10_000_000_000, size: int = 64 * KIB) -> Sample:
    """Writes a log through a broker, which is then killed; another one opens it, from the disk. total, size:
    bytes of the log and of a message."""
    if place.quick:
        total //= 20
    with Processes() as crew:
        target = started(crew, place.folder, transient=())
        writer = crew.add(_write, target.requests, total, size)
        until_done([writer], 4 * LONGEST)
        target.kill()
    _forget(place.folder)
    begun = time.monotonic()
    with Processes() as crew:
        target = started(crew, place.folder, transient=())
        seconds = time.monotonic() - begun
        resident = target.usage().resident or 0
        with BrokerClient(target.requests) as client:
            consumer = client.consume("bench-0", "bench", begin="old")
            assert consumer.recv().data.nbytes == size
            first = time.monotonic() - begun
        target.end()
    return {
        "opened_s": target.opened,
        "process_s": seconds,
        "first_message_s": first,
        "rss_mb": resident / 1e6,
        "gb": total / 1e9,
    }


def _write(stage: Stage, endpoint: str, total: int, size: int) -> None:
    payload, batch = os.urandom(size), _BATCH
    with BrokerClient(endpoint) as client:
        for number in range(total // (size * batch) + 1):
            client.wait_room(batch)
            client.publish_many(f"bench-{number % _TOPICS}", [payload] * batch, wait=False)
        client.flush()


def _forget(folder: Path) -> None:
    """Drops the kernel's cached pages of these files."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def idle_ttp(place: Place) -> Sample:
    """Measures connections of TTP, each with a subscription."""
    return _idle(place, "ttp")


def idle_native(place: Place) -> Sample:
    """Measures DEALERs of transfer's native front, over TCP as from other machines."""
    return _idle(place, "native")


def _idle(place: Place, kind: str) -> Sample:
    count = place.count(10_000, 500)
    _raise_limit()
    with Processes() as crew:
        target: Started = started(crew, place.folder)
        before = target.usage()
        address = target.ttp if kind == "ttp" else target.requests
        part = _connect_ttp if kind == "ttp" else _connect_own
        begun = time.monotonic()
        members = [crew.add(part, address, count // _PROCESSES) for _ in range(_PROCESSES)]
        for member in members:
            member.receive(LONGEST)
        seconds = time.monotonic() - begun
        after = target.usage()
        for member in members:
            member.send("end")
        until_done(members, PATIENCE)
        target.end()
    assert before.resident is not None and after.resident is not None
    return {
        "rss_mb": after.resident / 1e6,
        "kib_each": (after.resident - before.resident) / count / KIB,
        "connected_s": seconds,
        "connections": count,
    }


def _connect_ttp(stage: Stage, address: tuple[str, int], count: int) -> None:
    _raise_limit()
    wish = encode_head(TtpKind.SUBSCRIBE, f"bench/{os.getpid()}".encode(), flags=WANTED, stream_id=1)
    with ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(address, PATIENCE))
            one.sendall(wish)
            answer = one.recv(HEADER_SIZE, socket.MSG_WAITALL)
            assert answer[6] == TtpKind.ACK
        stage.send("connected")
        stage.receive()


def _connect_own(stage: Stage, endpoint: str, count: int) -> None:
    _raise_limit()
    os.environ["TRANSFER_LOCAL"] = "off"  # only for this process, which ends afterwards
    with transfer.Context() as context, ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(BrokerClient(endpoint, context=context))
        stage.send("connected")
        stage.receive()


def _raise_limit() -> None:
    """Raises the limit of descriptors for this process and those that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
