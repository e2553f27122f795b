"""Options by attribute, by name and by number; they apply at once."""

from __future__ import annotations

import os
import time

import pytest

import transfer
import transfer.sockets.socket
from transfer import DEALER, PAIR, PULL, PUSH, REQ, ROUTER
from transfer.config import exit_linger
from transfer.sockets import drain
from transfer.sockets.defaults import PYZMQ
from transfer.sockets.options import NUMBERS, OF_TYPES, OPTIONS, READ_ONLY, SocketOptions
from transfer.transports.core.wire import Flag
from transfer.transports.errors import Again, Closed, OptionError

from .helpers import eventually, pair_of


def test_by_attribute_name_and_number(context):
    socket = context.socket(PUSH)
    socket.sndhwm = 7
    assert socket.get("SNDHWM") == socket.getsockopt(23) == 7
    socket.set("sndtimeo", 50)
    assert (socket.sndtimeo, socket.send_timeout) == (50, 50)
    socket.setsockopt(27, 60)
    assert socket.rcvtimeo == 60
    socket.hwm = 3
    assert (socket.sndhwm, socket.rcvhwm, socket.hwm) == (3, 3, 3)
    socket.set("spin_us", 5)
    assert socket.get("spin_us") == 5
    socket.identity = "name"
    assert socket.routing_id == b"name"
    assert socket.get("type") == PUSH


def test_every_option_can_be_read_and_set_to_itself(context):
    socket = context.socket(DEALER)
    for name in OPTIONS:
        value = socket.get(name)
        assert getattr(socket, name) == value, name
        socket.set(name, value)
        assert socket.get(name) == value, name
    for number, name in NUMBERS.items():
        if name not in ("subscribe", "unsubscribe"):
            assert socket.get(number) == socket.get(name), name


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_takes_another_value_and_only_it_changes(context, name):
    socket = context.socket(OF_TYPES.get(name, (DEALER,))[0])
    before = {other: socket.get(other) for other in OPTIONS}
    another = _ANOTHER.get(name)
    if another is None:
        another = not before[name] if isinstance(before[name], bool) else 77
    socket.set(name, another)
    assert socket.get(name) == another != before[name]
    after = {other: socket.get(other) for other in OPTIONS}
    changed = {other for other in OPTIONS if after[other] != before[other]}
    assert changed == {name}


#: for what is neither a switch nor takes any number
_ANOTHER = {
    "routing_id": b"another",
    "xpub_welcome_msg": b"welcome",
    "compression": "lz4",
    "tcp_keepalive": 1,
    "balance": "load",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sndhwm", -1), ("sndhwm", "many"), ("sndhwm", 1.5), ("linger", -2), ("checksum", 2),
        ("compression", "zip"), ("balance", "best"), ("balance", {"x": 1}), ("balance", {"tcp://a:1": 0}),
        ("balance", {"tcp://a:1": True}), ("balance", {}),
        ("routing_id", b"\0x"), ("routing_id", b"x" * 256), ("rcvtimeo", None),
    ],
)  # fmt: skip
def test_what_an_option_cannot_be(context, name, value):
    with pytest.raises(OptionError, match="cannot be"):
        context.socket(REQ).set(name, value)


def test_type_checkers_know_the_keywords_of_a_socket(context):
    """tests/project/test_types.py compares the types of their values."""
    assert set(SocketOptions.__annotations__) == {*NUMBERS.values(), "identity"} - READ_ONLY
    with pytest.raises(OptionError, match=r"no option 'lingr'\n  hint: did you mean linger\?"):
        context.socket(PUSH, lingr=3)


def test_unknown_and_one_way_options(context):
    socket = context.socket(PULL)
    with pytest.raises(OptionError, match="no option"):
        socket.set("hvm", 1)
    with pytest.raises(OptionError, match="no option"):
        socket.get(9999)
    with pytest.raises(OptionError, match="only be read"):
        socket.set("fd", 1)
    with pytest.raises(OptionError, match="only be set"):
        socket.get("subscribe")


def test_the_high_water_mark_applies_to_connections_that_are_there(context):
    _pull, push = pair_of(context, PULL, PUSH, sndbuf=4096, rcvbuf=4096)
    payload = b"x" * 30_000
    with pytest.raises(Again):
        for _ in range(5000):
            push.send(payload, transfer.DONTWAIT)
    (peer,) = push.peers()
    push.sndhwm = peer.queued + 50
    for _ in range(40):
        push.send(payload, transfer.DONTWAIT)
    push.sndhwm = 10
    with pytest.raises(Again):
        push.send(payload, transfer.DONTWAIT)
    push.set("sndhwm", 0)
    push.sndhwm_bytes = 1
    with pytest.raises(Again):
        push.send(payload, transfer.DONTWAIT)


def test_a_limit_on_arriving_messages(context):
    pull, push = pair_of(context, PULL, PUSH, bound_options={"maxmsgsize": 1000})
    monitor = pull.get_monitor()
    push.send(b"x" * 1000)
    assert len(pull.recv()) == 1000
    push.send(b"x" * 1001)
    assert pull.poll(300) == 0
    event = monitor.recv(10)
    assert (event.kind, event.reason) == ("protocol_failed", "too_large")
    assert pull._links.state.counts["protocol:too_large"] == 1


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}], ids=["plain", "lz4"])
def test_the_limit_is_for_all_parts_together(context, options):
    pull, push = pair_of(context, PULL, PUSH, bound_options={"maxmsgsize": 10_000}, **options)
    monitor = pull.get_monitor()
    push.send_multipart([b"x" * 5000, b"y" * 5000])
    assert sum(map(len, pull.recv_multipart())) == 10_000
    push.send_multipart([b"x" * 5000, b"y" * 5001])
    pull.rcvtimeo = 300
    with pytest.raises(Again):
        pull.recv_multipart()
    reason = "compression" if options else "too_large"
    assert any(event.reason == reason for event in iter(lambda: monitor.recv(10), None))


def test_no_limit_on_arriving_messages_is_too_large_to_connect(context):
    """The hello tells it, as a number that is exact in every JSON library."""
    pull, push = pair_of(context, PULL, PUSH, maxmsgsize=2**63 - 1)
    push.send(b"x")
    assert pull.recv() == b"x"


def test_kernel_buffers(context):
    import socket as sockets

    _pull, push = pair_of(context, PULL, PUSH)
    push.sndbuf = 8192
    (stream,) = push._streams()
    with sockets.socket(fileno=_copy(stream.fd)) as raw:
        assert raw.getsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF) == 16384  # the kernel doubles it


def _copy(fd):
    return os.dup(fd)


def test_a_descriptor_stays_open_while_its_buffers_are_set(context, monkeypatch):
    pull, push = pair_of(context, PULL, PUSH)
    seen = []

    def resize(fd, send, receive):
        before = os.fstat(fd).st_ino
        push.close()
        time.sleep(0.3)  # for the reactor, which closes it for the lost peer
        seen.append(os.fstat(fd).st_ino == before)

    monkeypatch.setattr(drain, "resize", resize)
    pull.sndbuf = 8192
    assert seen == [True]


@pytest.mark.parametrize("options", [{"checksum": True}, {"compression": "lz4"}])
def test_flags_of_the_frames(context, options):
    if "compression" in options:
        pytest.importorskip("lz4")
    pull, push = pair_of(context, PULL, PUSH, **options)
    for payload in (b"", b"short", b"long" * 5000, bytes(range(256)) * 300):
        push.send(payload)
        assert pull.recv() == payload
        push.send_multipart([payload, b"x", payload])
        assert pull.recv_multipart() == [payload, b"x", payload]


def test_compression_makes_less_bytes(context):
    pytest.importorskip("lz4")
    pull, push = pair_of(context, PULL, PUSH, compression="lz4")
    push.send(bytes(1_000_000))
    assert len(pull.recv()) == 1_000_000
    (stream,) = pull._streams()
    assert stream.received_bytes < 100_000


def test_conflate_keeps_the_newest(context):
    pull, push = pair_of(context, PULL, PUSH, bound_options={"conflate": True})
    for i in range(10):
        push.send(b"%d" % i)
    last = b""

    def newest():
        nonlocal last
        last = pull.recv() if pull.poll(100) else last
        return last == b"9"

    assert eventually(newest)
    assert pull._pattern.drops.get("conflated", 0) > 0


def test_defaults_of_pyzmq(core):
    with transfer.Context(core=core, defaults=PYZMQ) as context:
        with context.socket(REQ) as socket:
            assert (socket.linger, socket.rcvtimeo, socket.immediate, socket.sndhwm) == (-1, -1, False, 1000)


def test_options_reach_only_their_socket(context):
    one, other = context.socket(ROUTER), context.socket(ROUTER)
    one.router_mandatory = True
    assert not other.router_mandatory
    one.close()
    with pytest.raises(Closed):
        one.router_mandatory = False
    assert one.get("router_mandatory") is True


def test_the_environment():
    assert exit_linger({}) == 2.0
    assert exit_linger({"TRANSFER_EXIT_LINGER": "0.5"}) == 0.5
    for bad in ("soon", "-1", "1e9"):
        with pytest.raises(OptionError):
            exit_linger({"TRANSFER_EXIT_LINGER": bad})


def test_peers_tell_their_transport(context):
    one, other = pair_of(context, PAIR, PAIR)
    other.send(b"x")
    one.recv()
    (peer,) = one.peers()
    assert (peer.transport, peer.socket_type, peer.received) == ("tcp", PAIR, 1)
    assert peer.endpoint == one.last_endpoint
    assert peer.address.startswith("127.0.0.1:")


def test_conflate_of_a_sender_keeps_the_newest_and_never_waits(context):
    push = context.socket(PUSH, conflate=True)
    push.bind("tcp://127.0.0.1:0")
    for i in range(10):
        push.send(b"%d" % i)
    assert push._pattern.drops == {"conflated": 9}
    pull = context.socket(PULL)
    pull.connect(push.last_endpoint)
    assert pull.recv() == b"9"


def test_small_messages_have_a_checksum_too(context):
    """The core sends them alone otherwise, and computes none."""
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL)
    found = []
    for wanted in (True, False):
        push.checksum = wanted
        push.send(b"x")
        push.send_multipart([b"a", b"b"])
        found += [frame.flags & Flag.CRC for _ in range(2) for frame in pull.recv_frames()]
    assert found == [Flag.CRC] * 3 + [0] * 3
