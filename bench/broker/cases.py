"""The cases and their goals."""

from __future__ import annotations

from functools import partial

from bench.broker import catch_up, flow, lasting, native_cycle, native_flow, nats_cycle, redis_cycle
from bench.broker.case import Case, Goal, Peer, Place, Sample
from bench.broker.cycle import Cycle, Part, measure_ours, measure_server
from bench.broker.servers import nats_server, redis_server
from bench.work import KIB, MIB

OURS, REDIS, NATS = "transfer", "Redis Streams, always", "JetStream, file"


def _ours(cycle: tuple[int, int, int, int, int], parts: tuple[Part, ...], place: Place) -> Sample:
    return measure_ours(place, _cycle(cycle, place), parts)


def _redis(cycle: tuple[int, int, int, int, int], parts: tuple[Part, ...], place: Place) -> Sample:
    return measure_server(place, _cycle(cycle, place), parts, redis_server)


def _nats(cycle: tuple[int, int, int, int, int], place: Place) -> Sample:
    parts = (nats_cycle.consume, nats_cycle.publish)
    return measure_server(place, _cycle(cycle, place), parts, nats_server)


def _cycle(cycle: tuple[int, int, int, int, int], place: Place) -> Cycle:
    size, full, quick, in_flight, topics = cycle
    return Cycle(size, place.count(full, quick), in_flight, topics)


def _peers(*cycle: int) -> tuple[Peer, ...]:
    """Returns all peers, with (size, messages, messages of a quick run, in flight)."""
    size, full, quick, in_flight = cycle
    what = (size, full, quick, in_flight, 1)
    apart, together = (native_cycle.consume, native_cycle.publish), (native_cycle.together,)
    theirs = (redis_cycle.consume, redis_cycle.publish), (redis_cycle.together,)
    return (
        Peer("transfer, two processes", OURS, partial(_ours, what, apart)),
        Peer("transfer, one process", OURS, partial(_ours, what, together)),
        Peer("Redis, two processes", REDIS, partial(_redis, what, theirs[0])),
        Peer("Redis, one process", REDIS, partial(_redis, what, theirs[1])),
        Peer("JetStream, two processes", NATS, partial(_nats, what)),
    )


def _flow_small(publish: flow.Publish, receive: flow.Receive, place: Place) -> Sample:
    return flow.measure(place, flow.small(place), publish, receive)


def _flow_fan(size: int, place: Place) -> Sample:
    return flow.measure(place, flow.fan(place, size), flow.publish, flow.drain)


def _flow_tensor(place: Place) -> Sample:
    return flow.measure(place, flow.tensor(place), flow.publish, flow.drain)


def _kept(part: Part, place: Place) -> Sample:
    return catch_up.measure_ours(place, _cycle(_READ, place), part)


def _redis_read(place: Place) -> Sample:
    return catch_up.measure_redis(place, _cycle(_READ, place))


#: (size, messages, messages of a quick run, in flight, topics)
_READ = (KIB, 200_000, 2_000, 1000, 1)
_IDLE = Goal("rss_mb", 500 * MIB / 1e6, "MB", at_least=False)
_EACH = (native_cycle.consume, native_cycle.publish_each)
_SAME_1 = (KIB, 100_000, 2_000, 64, 1)
_SAME_64 = (KIB, 100_000, 2_000, 64, 64)

CASES = (
    Case(
        "durable",
        "1 KiB, synced before it is acknowledged, published, consumed, acknowledged; 64 in flight",
        "msg_s",
        "msg/s",
        (
            *_peers(KIB, 100_000, 2_000, 64),
            Peer("transfer, a call for each", "each", partial(_ours, _SAME_1, _EACH)),
        ),
        (Goal("msg_s", 4, against=REDIS), Goal("msg_s", 4, against=NATS)),
    ),
    Case(
        "durable_topics",
        "the same over 64 topics",
        "msg_s",
        "msg/s",
        (Peer(OURS, OURS, partial(_ours, _SAME_64, (native_cycle.consume, native_cycle.publish))),),
        (Goal("msg_s", 0.5, against=OURS, of="durable"),),
    ),
    Case(
        "durable_one",
        "1 KiB, one at a time",
        "msg_s",
        "msg/s",
        _peers(KIB, 5_000, 200, 1),
        (Goal("msg_s", 1, against=REDIS),),
    ),
    Case(
        "durable_large",
        "1 MiB, 16 in flight",
        "msg_s",
        "msg/s",
        _peers(MIB, 400, 64, 16),
        (Goal("msg_s", 2, against=REDIS), Goal("msg_s", 2, against=NATS)),
    ),
    Case(
        "catch_up",
        "1 KiB, a kept topic read from its beginning",
        "msg_s",
        "msg/s",
        (
            Peer("a SUB with ?begin=old", OURS, partial(_kept, catch_up.subscribe)),
            Peer("a consumer of a group", "group", partial(_kept, catch_up.consume)),
            Peer("Redis, XREAD", "Redis Streams", _redis_read),
        ),
        (Goal("msg_s", 1, against="Redis Streams"),),
    ),
    Case(
        "ttp_small",
        "1 KiB, not kept, TTP, one to one: messages for each second of the broker's processor",
        "msg_cpu",
        "msg/CPU s",
        (
            Peer("by the client", OURS, partial(_flow_small, flow.publish, flow.receive)),
            Peer("by plain sockets", "plain", partial(_flow_small, flow.flood, flow.drain)),
        ),
        (Goal("msg_cpu", 100_000, "msg/CPU s"),),
    ),
    Case(
        "ttp_fan_1mib",
        "1 MiB, not kept, TTP, one to eight: delivered GB for each second of the broker's processor",
        "gb_cpu",
        "GB/CPU s",
        (Peer(OURS, OURS, partial(_flow_fan, MIB)),),
        (Goal("gb_cpu", 4, "GB/CPU s"),),
    ),
    Case(
        "ttp_fan_64mib",
        "the same with 64 MiB",
        "gb_cpu",
        "GB/CPU s",
        (Peer(OURS, OURS, partial(_flow_fan, 64 * MIB)),),
        (Goal("gb_cpu", 4, "GB/CPU s"),),
    ),
    Case(
        "ttp_tensor",
        "one message of 10 GB: the broker's peak of memory",
        "peak_mb",
        "MB",
        (Peer(OURS, OURS, _flow_tensor),),
        (
            Goal("peak_mb", 512 * MIB / 1e6, "MB", at_least=False),
            Goal("first_ahead_s", 0, "s from its first byte out to its last byte in"),
        ),
        lower=True,
    ),
    Case(
        "native_tensor",
        "the same in pieces by the broker's own front, out by TTP",
        "peak_mb",
        "MB",
        (Peer(OURS, OURS, native_flow.passing),),
        (
            Goal("peak_mb", 512 * MIB / 1e6, "MB", at_least=False),
            Goal("first_ahead_s", 0, "s from its first byte out to its last byte in"),
        ),
        lower=True,
    ),
    Case(
        "native_tensor_kept",
        "the same, kept, and fetched by a consumer in pieces",
        "peak_mb",
        "MB",
        (Peer(OURS, OURS, native_flow.kept),),
        (Goal("peak_mb", 512 * MIB / 1e6, "MB", at_least=False),),
        lower=True,
    ),
    Case(
        "recovery",
        "a log of 10 GB, its broker killed: until it is open again",
        "opened_s",
        "s",
        (Peer(OURS, OURS, lasting.recovery),),
        (Goal("opened_s", 5, "s", at_least=False),),
        lower=True,
    ),
    Case(
        "idle_ttp",
        "10,000 connections of TTP, each with a subscription: the broker's memory",
        "rss_mb",
        "MB",
        (Peer(OURS, OURS, lasting.idle_ttp),),
        (_IDLE,),
        lower=True,
    ),
    Case(
        "idle_native",
        "10,000 DEALERs: the broker's memory",
        "rss_mb",
        "MB",
        (Peer(OURS, OURS, lasting.idle_native),),
        (_IDLE,),
        lower=True,
    ),
)
