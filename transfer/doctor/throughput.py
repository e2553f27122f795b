"""What the transports between two machines make: `transfer doctor --serve` on one, `--peer` on the other.

The peer is a ROUTER that answers three words: ping (with what came), data (with nothing), and done
(with the number of bytes of data that came). Both sides negotiate as any two sockets do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transfer.doctor.finding import Check
from transfer.sockets.context import Context
from transfer.transports import config
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import TransferError, UsageError

PORT = 7590
#: seconds for the connection, and for each answer
PATIENCE = 10.0
SMALL = 64
LARGE = 8 << 20
#: messages of LARGE bytes on their way
WINDOW = 4

_PING, _DATA, _DONE = b"ping", b"data", b"done"
#: what is tried: first what the environment brings about. local is nobody's to wish for
_WAYS = ("auto", "rdma", "ucx", "tcp")


@dataclass(frozen=True, slots=True)
class Result:
    """What one way made. Latencies of a round trip of 64 B in seconds, the rate in bytes a second."""

    way: str
    transport: str
    reason: str
    device: str
    median: float
    slowest: float  # the 99th percentile
    rate: float

    @property
    def gbps(self) -> float:
        """Gigabits a second, as networks are sold."""
        return self.rate * 8 / 1e9


def endpoint_of(text: str) -> str:
    """A full endpoint from "host", "host:port" or an endpoint. Raises UsageError."""
    if not text:
        raise UsageError("no peer named", hint=f"host, or host:port ({PORT} if none is given)")
    if "://" in text:
        return text
    host = text if text.endswith("]") or ":" not in text else text.rpartition(":")[0]
    return f"tcp://{text}" if host != text else f"tcp://{text}:{PORT}"


# --- the side that answers ------------------------------------------------------------------------


def serve(endpoint: str, started: Callable[[str], None], stop: Callable[[], bool]) -> None:
    """Answers until `stop()` is true; `started` is told the endpoint with its real port."""
    with Context() as context, context.socket(SocketType.ROUTER) as router:
        router.bind(endpoint)
        started(router.last_endpoint)
        received: dict[bytes, int] = {}
        while not stop():
            if router.poll(200):
                _answer(router, received)


def _answer(router: object, received: dict[bytes, int]) -> None:
    frames = router.recv_multipart(copy=False)  # type: ignore[attr-defined]
    if len(frames) != 3:
        return  # not one of ours
    peer, word, payload = bytes(frames[0]), bytes(frames[1]), frames[2]
    if word == _PING:
        router.send_multipart([peer, word, bytes(payload)])  # type: ignore[attr-defined]
    elif word == _DATA:
        received[peer] = received.get(peer, 0) + len(payload)
    elif word == _DONE:
        told = str(received.pop(peer, 0)).encode()
        router.send_multipart([peer, word, told])  # type: ignore[attr-defined]


# --- the side that asks -----------------------------------------------------------------------------


def measure(endpoint: str, seconds: float, done: Callable[[str], None]) -> Iterator[Result | Check]:
    """A Result for what is chosen by itself and for each transport, or a Check that says why not.

    What is chosen by itself is what any program here would get: by TRANSFER_PROTOCOL, MC_RPC_PROTOCOL and
    MC_RPC_POLICY. seconds: of each measurement. done: told which way is next.
    """
    wish = config.load()
    # Where another transport is required on this side, it probably is on the other, which then refuses TCP.
    has_to_work = {"auto"} if wish.policy == "require" and wish.protocol != "auto" else {"auto", "tcp"}
    for way in _WAYS:
        done(way)
        try:
            yield _measure(way, endpoint, seconds)
        except TransferError as error:
            text, _, hint = str(error).partition("\n  hint: ")
            yield Check("peer", way, "fail" if way in has_to_work else "off", text, hint)
            if way == "auto":
                return  # whatever keeps all ways closed


def _measure(way: str, endpoint: str, seconds: float) -> Result:
    milliseconds = round(PATIENCE * 1000)
    with (
        Context() if way == "auto" else Context(protocol=way, policy="require") as context,
        context.socket(SocketType.DEALER, sndtimeo=milliseconds, rcvtimeo=milliseconds) as dealer,
    ):
        dealer.handshake_ivl = milliseconds
        dealer.connect(endpoint)
        dealer.wait_for_peers(1, PATIENCE)
        trips = _round_trips(dealer, seconds)
        rate = _stream(dealer, seconds)
        (peer,) = dealer.peers()
    trips.sort()
    slowest = trips[min(len(trips) - 1, int(len(trips) * 0.99))]
    return Result(way, peer.transport, peer.reason, peer.device, statistics.median(trips), slowest, rate)


def _round_trips(dealer: object, seconds: float) -> list[float]:
    payload = bytes(SMALL)
    trips: list[float] = []
    end = time.perf_counter() + seconds
    while not trips or time.perf_counter() < end:
        begin = time.perf_counter()
        dealer.send_multipart([_PING, payload])  # type: ignore[attr-defined]
        dealer.recv_multipart()  # type: ignore[attr-defined]
        trips.append(time.perf_counter() - begin)
    return trips[len(trips) // 10 :]  # the first ones find caches and kernels cold


def _stream(dealer: object, seconds: float) -> float:
    """Bytes a second, counted by the other side."""
    payload = bytearray(LARGE)
    total = 0
    begin = time.perf_counter()
    while True:
        for _ in range(WINDOW):
            dealer.send_multipart([_DATA, payload])  # type: ignore[attr-defined]
        dealer.send_multipart([_DONE, b""])  # type: ignore[attr-defined]
        total += int(dealer.recv_multipart()[1])  # type: ignore[attr-defined]
        spent = time.perf_counter() - begin
        if spent >= seconds:
            return total / spent


def as_checks(results: Iterator[Result | Check], floor: float) -> Iterator[Check]:
    """Findings to show. floor: gigabits a second that the way chosen by itself has to make."""
    for result in results:
        if isinstance(result, Check):
            yield result
            continue
        slow = result.way == "auto" and result.gbps < floor
        name = result.way if result.way != "auto" else f"auto ({result.transport})"
        device = f" on {result.device}" if result.device else ""
        yield Check(
            "peer",
            name,
            "fail" if slow else "ok",
            f"{result.gbps:.2f} Gbit/s; round trip {result.median * 1e6:.0f} µs, "
            f"99 % under {result.slowest * 1e6:.0f} µs{device}",
            f"less than {floor:g} Gbit/s: {result.reason}" if slow else "",
        )
