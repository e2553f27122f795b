"""One large message through the broker's native front, in pieces both ways."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

import transfer
from bench.broker import flow
from bench.broker.case import Place, Sample
from bench.broker.cycle import LONGEST, begin
from bench.broker.flow import TOPIC, Flow
from bench.work import Failed
from transfer.broker.bench.processes import PATIENCE, BenchMember, Processes, Stage, until_done
from transfer.broker.bench.target import Started, started
from transfer.broker.clients.native import BrokerClient
from transfer.broker.protocols.native import Join, Op, decode, encode, encode_deliveries, encode_join
from transfer.broker.protocols.native_pieces import PIECE, decode_place, encode_place

#: the beginning of the topics that are stored
_KEPT = f"{TOPIC}-kept"
#: bytes that the consumer requests ahead
_AHEAD = 8 * PIECE


def passing(place: Place) -> Sample:
    """Measures an unstored message: a subscriber of TTP has its first bytes before the last are sent."""
    what = flow.tensor(place)
    with Processes() as crew:
        target = started(crew, place.folder, flow.TRANSIENT)
        reading, writing = crew.pipe()
        drain = crew.add(flow.drain, target.ttp, what, writing)
        publisher = crew.add(publish, target.requests, what, TOPIC, reading)
        crew.started()
        seconds = _played(target, [drain, publisher])
        peak = (target.usage().peak or 0) / 1e6
        target.end()
    return {
        "peak_mb": peak,
        "gb_s": what.size / 1e9 / seconds,
        "first_ahead_s": publisher.result[1] - drain.result[0],
    }


def kept(place: Place) -> Sample:
    """Measures a message that is stored, then fetched by a consumer of a group."""
    what = flow.tensor(place)
    with Processes() as crew:
        target = started(crew, place.folder, transient=())
        publisher = crew.add(publish, target.requests, what, _KEPT, None)
        written = _played(target, [publisher])
        peak_in = (target.usage().peak or 0) / 1e6
        consumer = crew.add(fetch, target.requests, what, _KEPT)
        fetched = _played(target, [consumer])
        peak_out = (target.usage().peak or 0) / 1e6
        target.end()
    return {
        "peak_mb": max(peak_in, peak_out),
        "peak_in_mb": peak_in,
        "peak_out_mb": peak_out,
        "gb_s": what.size / 1e9 / written,
        "out_gb_s": what.size / 1e9 / fetched,
    }


def _played(target: Started, members: list[BenchMember]) -> float:
    """Returns the seconds from the start to the end of the last process."""
    for member in members:
        member.receive(PATIENCE)
    target.begin()
    begun = time.monotonic()
    for member in members:
        member.send("go")
    until_done(members, LONGEST)
    return time.monotonic() - begun


def publish(
    stage: Stage, endpoint: str, what: Flow, topic: str, line: Connection | None
) -> tuple[float, float]:
    """Publishes by the client; returns (begin, when the kernel had all bytes). line: a subscriber reports its
    progress there, which is not read here."""
    with BrokerClient(endpoint, timeout=LONGEST) as client:
        payload = what.payload
        begin(stage)
        begun = time.monotonic()
        client.publish(topic, payload, wait=False)
        end = time.monotonic()
        client.flush()
        return begun, end


def fetch(stage: Stage, endpoint: str, what: Flow, topic: str) -> None:
    """Receives by a plain DEALER, which drops each range: this process has no room for the whole message."""
    with transfer.Context() as context, context.socket(transfer.DEALER) as dealer:
        dealer.identity = b"b" + os.urandom(7)
        dealer.rcvtimeo = int(PATIENCE * 1000)
        dealer.connect(endpoint)
        dealer.wait_for_peers(1, PATIENCE)
        begin(stage)
        dealer.send(encode(Op.JOIN, 1, encode_join(Join(topic, "bench", begin="old", pieces=True))))
        came = asked = 0
        while came < what.size:
            first, *rest = dealer.recv_frames()
            head = decode(bytes(first.data))
            if head.op is Op.RANGE:
                came += len(rest[0])
            elif head.op is not Op.OFFER:
                continue
            place, _ = decode_place(head)
            if came + _AHEAD - asked >= _AHEAD // 4:
                asked = came + _AHEAD
                dealer.send(encode_place(Op.FETCH, 1, place._replace(position=asked)))
        if came != what.size:
            raise Failed(f"{came} bytes arrived")
        body = encode_deliveries([(place.offset, place.attempt, 0)])
        dealer.send(encode(Op.ACK, 1, body))
        while decode(bytes(dealer.recv_frames()[0].data)).op is not Op.ACKED:
            pass
