"""Every option of a socket refuses every value of a wrong kind, by each way to set it."""

from __future__ import annotations

import numpy
import pytest

import transfer
import transfer.sockets.socket
from tests.arguments.wrong_calls import KINDS
from tests.sockets.conftest import context, core  # noqa: F401 - fixtures
from transfer import DEALER, PUSH, OptionError, zmq
from transfer.sockets.options import CORE, OF_TYPES, OPTIONS

#: of each wrong kind one, besides those of calls
WRONG = {**KINDS, "1.5": 1.5, "bytes": b"1", "digits": "1", "True": True, "array": numpy.zeros(2)}
NAMES = [*OPTIONS, *CORE, "hwm", "identity"]
SWITCHES = (
    *("checksum", "immediate", "conflate", "router_mandatory", "router_handover", "req_relaxed"),
    *("req_correlate", "resend", "tcp_keepalive", "gpu_staging"),
    *("xpub_verbose", "xpub_verboser", "xpub_manual", "xpub_nodrop"),
)
#: whose -1 says: no end, no limit, or as the system has it
ENDLESS = (
    *("linger", "sndtimeo", "rcvtimeo", "reconnect_ivl", "sndbuf", "rcvbuf", "maxmsgsize", "frame_timeout"),
    *("heartbeat_timeout", "tcp_keepalive", "tcp_keepalive_cnt", "tcp_keepalive_idle", "tcp_keepalive_intvl"),
)
#: what is no wrong value after all
TAKEN: dict[str, set[str]] = {
    "routing_id": {"text", "bytes", "digits"},
    "identity": {"text", "bytes", "digits"},
    "xpub_welcome_msg": {"text", "bytes", "digits"},
    "compression": {"None"},
    "balance": {"None"},
    **{name: {"True"} for name in SWITCHES},
}
for endless in ENDLESS:
    TAKEN[endless] = TAKEN.get(endless, set()) | {"-1"}


def ways(socket):
    yield lambda name, value: setattr(socket, name, value)
    yield socket.set
    yield lambda name, value: socket.context.socket(socket.type, **{name: value})


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_value(context, name):  # noqa: F811
    socket = context.socket(OF_TYPES.get(name, (DEALER,))[0])
    before, found = socket.get(name), []
    for way in ways(socket):
        for kind in WRONG.keys() - TAKEN.get(name, set()):
            try:
                way(name, WRONG[kind])
            except OptionError as error:
                if error.hint:
                    continue
                found.append(f"{name} = {kind}: no hint")
            except Exception as error:  # noqa: BLE001 - it is what is looked at
                found.append(f"{name} = {kind}: {error!r:.150}")
            else:
                found.append(f"{name} = {kind}: taken")
    assert not found, "\n".join(found)
    assert socket.get(name) == before
    for kind in TAKEN.get(name, ()):
        socket.set(name, WRONG[kind])


@pytest.mark.parametrize("name", OF_TYPES)
def test_an_option_of_another_type_of_socket(context, name):  # noqa: F811
    socket = context.socket(PUSH)
    names = " and ".join(kind.name for kind in OF_TYPES[name])
    for way in ways(socket):
        with pytest.raises(OptionError, match=f"{name} is an option of {names}, .* a PUSH"):
            way(name, True)
    value = b"hello" if name == "xpub_welcome_msg" else True
    assert context.socket(OF_TYPES[name][0], **{name: value}).get(name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("spin_us", -2), ("spin_us", 2**40), ("copy_threshold", -2), ("copy_threshold", 2**63)],
)
def test_numbers_out_of_range(context, name, value):  # noqa: F811
    with pytest.raises(OptionError, match="a whole number"):
        setattr(context.socket(PUSH), name, value)


def test_numbers_of_other_libraries(context):  # noqa: F811
    socket = context.socket(PUSH, sndhwm=numpy.int64(7), linger=20.0, copy_threshold=numpy.uint8(3))
    assert (socket.sndhwm, socket.linger, socket.copy_threshold) == (7, 20, 3)


@pytest.mark.parametrize("value", ["x", None, b"1", -2, 1.5, float("nan")])
def test_of_the_other_surface(value):
    """Where programs of pyzmq set truth values for numbers, they may here, too."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as made:  # noqa: F811
        for name in ("copy_threshold", "spin_us", "sndhwm", "linger"):
            with pytest.raises(transfer.UsageError):
                setattr(made, name, value)
        if value is not None:
            with pytest.raises(OptionError):
                context.socket(zmq.PUSH, copy_threshold=value)
        made.linger, made.tcp_keepalive, made.immediate = False, True, True
        assert (made.linger, made.tcp_keepalive, made.immediate) == (0, 1, 1)
        assert len(context.sockets) == 1
