"""Runs one measurement: starts processes that load a broker, and combines their results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from transfer.broker.bench.figures import Latency, Result
from transfer.broker.bench.payloads import check_compression
from transfer.broker.bench.plan import Mode, Plan
from transfer.broker.bench.processes import PATIENCE, BenchMember, Processes, until_done
from transfer.broker.bench.roles import (
    LAST,
    OVER,
    Publishing,
    ReceivedCount,
    ReceivingTask,
    consume_native,
    publish_native,
    publish_ttp,
    subscribe_ttp,
)
from transfer.broker.bench.target import BenchTarget

#: seconds without any message after which missing messages count as lost
_SILENCE = 3.0
#: seconds after the duration in which the broker has to keep all published messages
_OVERTIME = 60.0
#: seconds between two checks of the broker
_CHECK_INTERVAL = 0.1


def measure(plan: Plan, target: BenchTarget) -> Result:
    """Measures a broker once.

    Raises NotSupported (no LZ4), Again (a process does not answer), InternalError (a process failed).
    """
    if plan.compress:
        check_compression()
    with Processes() as crew:
        receivers, publishers = _cast(crew, plan, target)
        for member in (*receivers, *publishers):
            member.receive(PATIENCE)
        target.begin()
        before = target.usage()
        for member in publishers:
            member.send("go")
        until_done(publishers, plan.duration + _OVERTIME, receivers)
        messages = sum(member.result[0] for member in publishers)
        _wait_for_all(receivers, messages * plan.copies, target)
        after = target.usage()
        received: list[ReceivedCount] = [member.result for member in receivers]
        begun = min(member.result[1] for member in publishers)
    delivered = sum(one.messages for one in received)
    return Result(
        plan=plan,
        messages=messages,
        delivered=delivered,
        lost=messages * plan.copies - delivered,
        seconds=max(one.end for one in received) - begun if delivered else plan.duration,
        latency=Latency.of(one.samples for one in received),
        before=before,
        after=after,
    )


@dataclass(frozen=True, slots=True)
class _Role:
    """A receiver: its protocol, its topics, and their publishers."""

    by_ttp: bool
    topics: Sequence[str]
    publishers: Sequence[int]


def _roles(plan: Plan) -> list[_Role]:
    topics, publishers = plan.topics(), range(plan.connections)
    if plan.mode is Mode.DIRECT_ACK:
        return [_Role(False, [topics[number]], [number]) for number in publishers]
    if plan.mode is Mode.FANOUT:
        return [_Role(True, topics, publishers)] * plan.fanout_subs
    return [_Role(False, topics[::2], publishers)] * plan.connections + [
        _Role(True, topics[1::2], publishers)
    ]


def _cast(crew: Processes, plan: Plan, target: BenchTarget) -> tuple[list[BenchMember], list[BenchMember]]:
    """Starts (receivers, publishers); receivers first, so that they are ready for the first message."""
    roles = _roles(plan)
    run = time.time_ns()
    paces: list[list[Connection]] = [[] for _ in range(plan.connections)]
    rivals = 1 if plan.mode is Mode.DIRECT_ACK else len(roles)
    every = max(1, plan.in_flight * plan.copies // (2 * rivals))
    receivers: list[BenchMember] = []
    publishers: list[BenchMember] = []
    for role in roles:
        steps = {}
        for number in role.publishers:
            reading, steps[number] = crew.pipe()
            paces[number].append(reading)
        receiving = ReceivingTask(plan, run, role.topics, steps, every)
        if role.by_ttp:
            receivers.append(crew.add(subscribe_ttp, receiving, target.ttp))
        else:
            receivers.append(crew.add(consume_native, receiving, target.requests))
    for number, pace in enumerate(paces):
        topics = plan.topics() if plan.mode is Mode.MIXED else [plan.topics()[number]]
        publishing = Publishing(plan, run, number, topics, pace)
        if plan.mode is Mode.FANOUT:
            publishers.append(crew.add(publish_ttp, publishing, target.ttp))
        else:
            publishers.append(crew.add(publish_native, publishing, target.requests))
    crew.started()
    return receivers, publishers


def _wait_for_all(receivers: Sequence[BenchMember], expected: int, target: BenchTarget) -> None:
    """Waits until all messages have arrived, or no more arrive, and ends the receivers."""
    for member in receivers:
        member.send(LAST)
    counts = dict.fromkeys(receivers, 0)
    before, since = 0, time.monotonic()
    while before < expected and time.monotonic() - since < _SILENCE:
        target.check()
        for line in wait([member.line for member in receivers], _CHECK_INTERVAL):
            member = next(member for member in receivers if member.line is line)
            counts[member] = member.receive(0)
        if (now := sum(counts.values())) != before:
            before, since = now, time.monotonic()
    for member in receivers:
        member.send(OVER)
    until_done(receivers, PATIENCE)
