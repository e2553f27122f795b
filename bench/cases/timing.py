"""The common part of the throughput cases: the loops, the handshake around them, the sums at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peers import Channel
from bench.scene import Clock, Link, Outcome
from bench.work import Failed, Sample, Work


def length(message: Any) -> int:
    """Returns the bytes of a received message, frame, array, or dict of arrays."""
    if isinstance(message, dict):
        return sum(length(value) for value in message.values())
    size = getattr(message, "nbytes", None)
    return len(message) if size is None else int(size)


def receive_all(recv: Callable[[], Any], count: int, size: int) -> int:
    """Receives `count` messages, one call each; returns their bytes, if all are as long as the last.

    Raises Failed, with the number of received messages, when one is missing.
    """
    done = 0
    message: Any = None
    try:
        for done in range(count):  # noqa: B007 (named in the error)
            message = recv()
    except Exception as error:
        raise Failed(f"only {done} of {count} messages arrived: {error!r}") from error
    if length(message) != size:
        raise Failed(f"a message of {length(message)} bytes arrived instead of {size}")
    return count * size


def sending_side(channel: Channel, work: Work, payload: Any, link: Link) -> Outcome:
    """Warm-up, then the timed part: from before the first send to the reply after the last receive."""
    send = channel.send
    for _ in range(work.warmup):
        send(payload)
    expect(link, "warm")
    clock = Clock()
    for _ in range(work.count):
        send(payload)
    expect(link, "done")
    outcome = clock.stop()
    link.send("over")
    return outcome


def receiving_side(channel: Channel, work: Work, link: Link) -> Outcome:
    """The other half of `sending_side`. CPU seconds count from the end of the warm-up."""
    receive_all(channel.recv, work.warmup, work.size)
    clock = Clock()
    link.send("warm")
    nbytes = receive_all(channel.recv, work.count, work.size)
    link.send("done")
    outcome = clock.stop()
    expect(link, "over")
    return {"received": work.count, "bytes": nbytes, **outcome}


def expect(link: Link, word: str) -> None:
    """Receives the next word of the other side, which must be this one."""
    word_received = link.receive()
    if word_received != word:
        raise Failed(f"expected {word!r} from the other side, got {word_received!r}")


def throughput(work: Work, sender: Outcome, receivers: list[Outcome]) -> Sample:
    """Rates by the sender's clock; the CPU seconds of all processes per GB and per million messages."""
    received = sum(receiver["received"] for receiver in receivers)
    nbytes = sum(receiver["bytes"] for receiver in receivers)
    cpu = sender["cpu"] + sum(receiver["cpu"] for receiver in receivers)
    return {
        "seconds": sender["seconds"],
        "msg_s": received / sender["seconds"],
        "gb_s": nbytes / sender["seconds"] / 1e9,
        "cpu_s": cpu,
        "cpu_s_per_gb": cpu / nbytes * 1e9 if nbytes else 0.0,
        "cpu_s_per_m": cpu / received * 1e6 if received else 0.0,
        "lost": work.count * len(receivers) - received,
    }
