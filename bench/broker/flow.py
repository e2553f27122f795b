"""TTP on topics without storage: throughput for each second of the broker's processor.

Publishers keep step with subscribers by pipes that bypass the broker, so that nothing is dropped.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from bench.broker.case import Place, Sample
from bench.broker.cycle import LONGEST, begin
from bench.broker.plain import Drain, Source, frame_size
from bench.work import MIB, Failed
from transfer.broker.bench.pacing import Pace, PacingSteps
from transfer.broker.bench.processes import PATIENCE, Processes, Stage, until_done
from transfer.broker.bench.target import Started, started
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.protocols.ttp import HEADER_SIZE, TtpKind, encode_head

TOPIC = "bench"
#: frames that a flooding publisher gives to the kernel at once
_AT_ONCE = 64
TRANSIENT = (pattern(Kind.EXACT, TOPIC),)
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Flow:
    """size: bytes of a message. in_flight: messages that some subscriber does not have yet."""

    size: int
    count: int
    in_flight: int
    subscribers: int = 1
    #: bytes that are never written to, for payloads that do not fit into memory
    hollow: bool = False

    @property
    def payload(self) -> Any:
        """Bytes that do not compress, or zeros that take no memory."""
        if self.hollow:
            return mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return os.urandom(self.size)


Publish = Callable[[Stage, Address, Flow, list[Connection]], tuple[float, float]]
Receive = Callable[[Stage, Address, Flow, Connection], tuple[float, float]]


def measure(place: Place, flow: Flow, publish: Publish, receive: Receive) -> Sample:
    """Measures one publisher, some subscribers, and the broker, each in a process."""
    with Processes() as crew:
        target = started(crew, place.folder, TRANSIENT)
        sample = _measure(crew, target, flow, publish, receive)
        target.end()
    return sample


def _measure(crew: Processes, target: Started, flow: Flow, publish: Publish, receive: Receive) -> Sample:
    pipes = [crew.pipe() for _ in range(flow.subscribers)]
    receivers = [crew.add(receive, target.ttp, flow, writing) for _, writing in pipes]
    publisher = crew.add(publish, target.ttp, flow, [reading for reading, _ in pipes])
    crew.started()
    members = [*receivers, publisher]
    for member in members:
        member.receive(PATIENCE)
    target.begin()
    before = target.usage()
    for member in members:
        member.send("go")
    until_done(members, LONGEST)
    after = target.usage()
    assert before.cpu is not None and after.cpu is not None and after.peak is not None
    cpu = after.cpu - before.cpu
    seconds = max(one.result[1] for one in receivers) - publisher.result[0]
    delivered = flow.count * flow.size * flow.subscribers / 1e9
    return {
        "seconds": seconds,
        "msg_s": flow.count / seconds,
        "gb_s": delivered / seconds,
        "msg_cpu": flow.count / cpu,
        "gb_cpu": delivered / cpu,
        "cpu_us": cpu / flow.count * 1e6,
        "peak_mb": after.peak / 1e6,
        "first_ahead_s": publisher.result[1] - min(one.result[0] for one in receivers),
    }


def publish(stage: Stage, address: Address, flow: Flow, lines: list[Connection]) -> tuple[float, float]:
    """Publishes by the client, one call for each message; returns (begin, when the kernel had all bytes)."""
    with TtpClient(*address, name="bench") as client:
        payload, pace = flow.payload, Pace(lines, flow.in_flight, flow.subscribers)
        begin(stage)
        begun = time.monotonic()
        for _ in range(flow.count):
            pace.take(PATIENCE)
            client.publish(TOPIC, payload)
        end = time.monotonic()
        client.subscribe("nothing")  # answered after all published messages
        return begun, end


def flood(stage: Stage, address: Address, flow: Flow, lines: list[Connection]) -> tuple[float, float]:
    """Publishes by a plain socket, many messages with one call."""
    frame = encode_head(TtpKind.PUBLISH, TOPIC.encode(), size=flow.size) + flow.payload
    many, pace = memoryview(frame * _AT_ONCE), Pace(lines, flow.in_flight, flow.subscribers)
    with closing(Source(address)) as source:
        begin(stage)
        begun, left = time.monotonic(), flow.count
        while left:
            some = min(_AT_ONCE, left)
            for _ in range(some):
                pace.take(PATIENCE)
            source.send(many[: some * len(frame)])
            left -= some
        return begun, time.monotonic()


def receive(stage: Stage, address: Address, flow: Flow, line: Connection) -> tuple[float, float]:
    """Receives by the client; returns (time of the first message, time of the last)."""
    steps = PacingSteps({0: line}, _every(flow))
    first = 0.0
    with TtpClient(*address, name="bench") as client:
        client.subscribe(TOPIC)
        begin(stage)
        for _ in range(flow.count):
            got = client.recv()
            first = first or time.monotonic()
            if len(got.data) != flow.size:
                raise Failed(f"a message of {len(got.data)} bytes")
            steps.took(0)
    return first, time.monotonic()


def drain(stage: Stage, address: Address, flow: Flow, line: Connection) -> tuple[float, float]:
    """Receives by a plain socket, without parsing; returns (time of the first payload byte, end)."""
    steps, first = PacingSteps({0: line}, _every(flow)), 0.0
    size, reported = frame_size(TOPIC, flow.size), 0
    with closing(Drain(address, TOPIC)) as one:
        begin(stage)
        for received in one.until(size * flow.count):
            if not first and received > size - flow.size:
                first = time.monotonic()
            while reported < received // size:
                steps.took(0)
                reported += 1
        if (one.received - size * flow.count) % HEADER_SIZE:  # the rest are heartbeats
            raise Failed(f"{one.received} bytes arrived")
    return first, time.monotonic()


def _every(flow: Flow) -> int:
    return max(1, flow.in_flight // 2)


def small(place: Place) -> Flow:
    """1 KiB, one to one; at most 4 MiB in flight."""
    return Flow(1 << 10, place.count(200_000, 20_000), 4096)


def fan(place: Place, size: int) -> Flow:
    """One to eight."""
    return Flow(
        size, place.count(max(24, 2048 * MIB // size), max(2, 32 * MIB // size)), max(2, 8 * MIB // size), 8
    )


def tensor(place: Place) -> Flow:
    """One message of 10 GB."""
    return Flow(10**9 if place.quick else 10**10, 1, 1, hollow=True)
