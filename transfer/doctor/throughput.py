"""Measures the transports between two machines: `transfer doctor --serve` on one, `--peer` on the other.

The peer is a ROUTER with three requests: it echoes ping, does not answer data, and answers done with the
number of received bytes of data. Both sides negotiate as any two sockets do.
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
_SMALL = 64
_LARGE = 8 << 20
#: messages of _LARGE bytes in flight
_WINDOW = 4

_PING, _DATA, _DONE = b"ping", b"data", b"done"
#: the measured protocols; auto is the environment's choice. No option selects `local`
_WAYS = ("auto", "rdma", "ucx", "tcp")


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """The result of one protocol.

    Latencies are of a round trip of 64 B, in seconds; rate: bytes per second.
    """

    way: str
    transport: str
    reason: str
    device: str
    median: float
    slowest: float  # the 99th percentile
    rate: float

    @property
    def gbps(self) -> float:
        """Gigabits per second, the unit of networks."""
        return self.rate * 8 / 1e9


def endpoint_of(text: str) -> str:
    """Returns an endpoint, given a "host", a "host:port" or an endpoint. Raises UsageError."""
    if not text:
        raise UsageError("no peer named", hint=f"host, or host:port ({PORT} if none is given)")
    if "://" in text:
        return text
    host = text if text.endswith("]") or ":" not in text else text.rpartition(":")[0]
    return f"tcp://{text}" if host != text else f"tcp://{text}:{PORT}"


# --- the side that answers ------------------------------------------------------------------------


def serve(endpoint: str, started: Callable[[str], None], stop: Callable[[], bool]) -> None:
    """Answers until `stop()` is true. It calls `started` with the endpoint, which has the real port."""
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
        return  # not from a doctor
    peer, word, payload = bytes(frames[0]), bytes(frames[1]), frames[2]
    if word == _PING:
        router.send_multipart([peer, word, bytes(payload)])  # type: ignore[attr-defined]
    elif word == _DATA:
        received[peer] = received.get(peer, 0) + len(payload)
    elif word == _DONE:
        nbytes = str(received.pop(peer, 0)).encode()
        router.send_multipart([peer, word, nbytes])  # type: ignore[attr-defined]


# --- the side that measures -------------------------------------------------------------------------


def measure(endpoint: str, seconds: float, done: Callable[[str], None]) -> Iterator[ThroughputResult | Check]:
    """Yields a Result for the automatic transport and for each other one, or a Check with the reason.

    The automatic transport is what any program here gets by TRANSFER_PROTOCOL, MC_RPC_PROTOCOL and
    MC_RPC_POLICY. seconds: of each measurement. done: called with the next protocol.
    """
    wish = config.load()
    # If this side requires another transport, the other side probably does too, and refuses TCP.
    has_to_work = {"auto"} if wish.policy == "require" and wish.protocol != "auto" else {"auto", "tcp"}
    for way in _WAYS:
        done(way)
        try:
            yield _measure(way, endpoint, seconds)
        except TransferError as error:
            text, _, hint = str(error).partition("\n  hint: ")
            yield Check("peer", way, "fail" if way in has_to_work else "off", text, hint)
            if way == "auto":
                return  # the other protocols fail for the same reason


def _measure(way: str, endpoint: str, seconds: float) -> ThroughputResult:
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
    return ThroughputResult(
        way, peer.transport, peer.reason, peer.device, statistics.median(trips), slowest, rate
    )


def _round_trips(dealer: object, seconds: float) -> list[float]:
    payload = bytes(_SMALL)
    trips: list[float] = []
    end = time.perf_counter() + seconds
    while not trips or time.perf_counter() < end:
        begin = time.perf_counter()
        dealer.send_multipart([_PING, payload])  # type: ignore[attr-defined]
        dealer.recv_multipart()  # type: ignore[attr-defined]
        trips.append(time.perf_counter() - begin)
    return trips[len(trips) // 10 :]  # the first ones are slow, with cold caches


def _stream(dealer: object, seconds: float) -> float:
    """Returns bytes per second, as the other side counted them."""
    payload = bytearray(_LARGE)
    total = 0
    begin = time.perf_counter()
    while True:
        for _ in range(_WINDOW):
            dealer.send_multipart([_DATA, payload])  # type: ignore[attr-defined]
        dealer.send_multipart([_DONE, b""])  # type: ignore[attr-defined]
        total += int(dealer.recv_multipart()[1])  # type: ignore[attr-defined]
        spent = time.perf_counter() - begin
        if spent >= seconds:
            return total / spent


def as_checks(results: Iterator[ThroughputResult | Check], floor: float) -> Iterator[Check]:
    """Converts results to findings. floor: gigabits per second that the automatic transport has to reach."""
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
