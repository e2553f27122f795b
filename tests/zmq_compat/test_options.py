"""Options, attributes, defaults, constants."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(30)

DEFAULTS = {
    "SNDHWM": 1000,
    "RCVHWM": 1000,
    "SNDTIMEO": -1,
    "RCVTIMEO": -1,
    "LINGER": -1,
    "RECONNECT_IVL": 100,
    "RECONNECT_IVL_MAX": 0,
    "BACKLOG": 100,
    "SNDBUF": -1,
    "RCVBUF": -1,
    "MAXMSGSIZE": -1,
    "TCP_KEEPALIVE": -1,
    "TCP_KEEPALIVE_CNT": -1,
    "TCP_KEEPALIVE_IDLE": -1,
    "TCP_KEEPALIVE_INTVL": -1,
    "IMMEDIATE": 0,
    "CONFLATE": 0,
    "HANDSHAKE_IVL": 30000,
    "HEARTBEAT_IVL": 0,
    "HEARTBEAT_TTL": 0,
    "HEARTBEAT_TIMEOUT": -1,
    "ROUTING_ID": b"",
    "IDENTITY": b"",
    "LAST_ENDPOINT": b"",
    "AFFINITY": 0,
    "RATE": 100,
    "RECOVERY_IVL": 10000,
    "MULTICAST_HOPS": 1,
    "IPV6": 0,
    "IPV4ONLY": 1,
    "TOS": 0,
    "MECHANISM": 0,
    "CURVE_SERVER": 0,
    "PLAIN_USERNAME": b"",
    "ZAP_DOMAIN": b"",
    "RCVMORE": 0,
    "THREAD_SAFE": 0,
    "CONNECT_TIMEOUT": 0,
    "SOCKS_PROXY": b"",
    "INVERT_MATCHING": 0,
}
SETTABLE = {
    "SNDHWM": 5,
    "RCVHWM": 6,
    "SNDTIMEO": 70,
    "RCVTIMEO": 80,
    "LINGER": 90,
    "RECONNECT_IVL": 11,
    "RECONNECT_IVL_MAX": 12,
    "BACKLOG": 13,
    "SNDBUF": 8192,
    "RCVBUF": 8192,
    "MAXMSGSIZE": 1 << 20,
    "TCP_KEEPALIVE": 1,
    "IMMEDIATE": 1,
    "CONFLATE": 1,
    "HANDSHAKE_IVL": 1000,
    "HEARTBEAT_IVL": 1000,
    "HEARTBEAT_TIMEOUT": 2000,
    "ROUTING_ID": b"me",
    "AFFINITY": 1,
    "IPV6": 1,
    "TOS": 8,
    "CONNECT_TIMEOUT": 500,
}


@pytest.fixture
def plain(zmq):
    """A socket of a context without defaults of its own."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        yield sock


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(zmq, plain, name):
    assert plain.getsockopt(getattr(zmq, name)) == DEFAULTS[name]
    assert getattr(plain, name) == DEFAULTS[name]
    assert getattr(plain, name.lower()) == DEFAULTS[name]


@pytest.mark.parametrize("name", SETTABLE)
def test_what_is_set_is_read(zmq, plain, name):
    plain.setsockopt(getattr(zmq, name), SETTABLE[name])
    assert plain.get(getattr(zmq, name)) == SETTABLE[name]
    if name not in ("HEARTBEAT_TIMEOUT", "ROUTING_ID"):  # libzmq does not take their defaults back
        setattr(plain, name.lower(), DEFAULTS[name])
        assert plain.get(getattr(zmq, name)) == DEFAULTS[name]
    setattr(plain, name, SETTABLE[name])
    assert getattr(plain, name) == SETTABLE[name]


def test_hwm_sets_both(zmq, plain):
    plain.hwm = 7
    assert (plain.sndhwm, plain.rcvhwm, plain.hwm, plain.get_hwm()) == (7, 7, 7, 7)
    plain.set_hwm(8)
    assert (plain.sndhwm, plain.rcvhwm) == (8, 8)


def test_type(zmq, ctx):
    for kind in (zmq.PAIR, zmq.PUB, zmq.SUB, zmq.REQ, zmq.REP, zmq.DEALER, zmq.ROUTER, zmq.PULL, zmq.PUSH):
        sock = ctx.socket(kind)
        assert sock.type == kind == sock.getsockopt(zmq.TYPE)
        assert isinstance(sock.type, zmq.SocketType)
        assert kind.name in repr(sock)


def test_strings(zmq, plain):
    plain.setsockopt_string(zmq.IDENTITY, "né")
    assert plain.identity == "né".encode()
    assert plain.getsockopt_string(zmq.IDENTITY) == "né"
    assert plain.get_string(zmq.ROUTING_ID) == "né"
    with pytest.raises(TypeError):
        plain.get_string(zmq.LINGER)
    with pytest.raises(TypeError):
        plain.set_string(zmq.IDENTITY, b"bytes")


def test_text_needs_an_encoding(zmq, plain):
    with pytest.raises(TypeError):
        plain.setsockopt(zmq.IDENTITY, "text")
    with pytest.raises(TypeError):
        plain.setsockopt(zmq.LINGER, "text")


def test_subscribe_as_attribute(zmq, ctx):
    sub = ctx.socket(zmq.SUB)
    sub.subscribe = b"bytes"
    sub.SUBSCRIBE = "text"
    sub.unsubscribe = b"bytes"
    sub.setsockopt_string(zmq.SUBSCRIBE, "more")
    assert callable(sub.subscribe)


def test_unknown_options(zmq, plain):
    for call in (lambda: plain.getsockopt(9999), lambda: plain.setsockopt(9999, 1)):
        with pytest.raises(zmq.ZMQError) as caught:
            call()
        assert caught.value.errno == zmq.EINVAL
    with pytest.raises(AttributeError):
        _ = plain.no_such_option
    with pytest.raises(AttributeError):
        plain.no_such_option = 1


def test_values_out_of_range(zmq, plain):
    with pytest.raises(zmq.ZMQError) as caught:
        plain.setsockopt(zmq.SNDHWM, -5)
    assert caught.value.errno == zmq.EINVAL


def outcome(zmq, call):
    """The class of the error that `call` raises, as pyzmq names it; "ok" without one."""
    try:
        call()
    except (TypeError, OverflowError) as error:  # before ZMQError, since ours are both
        return "TypeError" if isinstance(error, TypeError) else "OverflowError"
    except zmq.ZMQError as error:
        return error.errno
    return "ok"


NUMBERS = "LINGER SNDHWM RCVHWM RCVTIMEO BACKLOG IMMEDIATE TCP_KEEPALIVE_CNT HEARTBEAT_TTL RATE TYPE EVENTS"


@pytest.mark.parametrize("name", [*NUMBERS.split(), "RCVMORE", "FD"])
def test_numbers_have_32_bits(zmq, plain, name):
    option = getattr(zmq, name)
    for number in (2**31, 2**63, -(2**31) - 1):
        assert outcome(zmq, lambda number=number: plain.set(option, number)) == "OverflowError", number
        with pytest.raises(OverflowError):
            setattr(plain, name, number)


@pytest.mark.parametrize("name", ["AFFINITY", "MAXMSGSIZE"])
def test_some_numbers_have_64_bits(zmq, plain, name):
    option = getattr(zmq, name)
    plain.set(option, 2**31)
    assert plain.get(option) == 2**31
    for number in (2**63, -(2**63) - 1):
        assert outcome(zmq, lambda number=number: plain.set(option, number)) == "OverflowError", number


@pytest.mark.parametrize("name", ["TYPE", "RCVMORE", "EVENTS", "FD"])
def test_read_only_numbers(zmq, plain, name):
    option = getattr(zmq, name)
    for value in (1.5, "1", b"1", None, b""):
        assert outcome(zmq, lambda value=value: plain.set(option, value)) == "TypeError", value
    assert outcome(zmq, lambda: plain.set(option, 1)) == zmq.EINVAL


def test_read_only_bytes(zmq, plain):
    for value in (1, 1.5, "1", None):
        got = outcome(zmq, lambda value=value: plain.set(zmq.LAST_ENDPOINT, value))
        assert got == "TypeError", value
    assert outcome(zmq, lambda: plain.set(zmq.LAST_ENDPOINT, b"x")) == zmq.EINVAL


def test_an_identity_is_bytes(zmq, plain):
    assert outcome(zmq, lambda: plain.set(zmq.IDENTITY, None)) == "TypeError"


@pytest.mark.parametrize("name", ["ROUTER_MANDATORY", "ROUTER_HANDOVER", "REQ_RELAXED", "REQ_CORRELATE"])
def test_options_of_one_type(zmq, ctx, plain, name):
    option = getattr(zmq, name)
    assert outcome(zmq, lambda: plain.set(option, 1)) == zmq.EINVAL
    for number in (0, 1, 2, True):
        ctx.socket(zmq.ROUTER if name.startswith("ROUTER") else zmq.REQ).set(option, number)
    setattr(ctx, name.lower(), 1)  # a default for the sockets that have it
    ctx.socket(zmq.DEALER), ctx.socket(zmq.ROUTER)


def test_a_backlog_of_any_size(zmq, plain):
    for number in (0, 65_536, 2**31 - 1):
        plain.backlog = number
        assert plain.backlog == number
        plain.bind("tcp://127.0.0.1:*")
    assert outcome(zmq, lambda: plain.set(zmq.BACKLOG, -1)) == zmq.EINVAL


def test_any_negative_size_is_no_limit(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH, maxmsgsize=-2)
    push.send(b"x" * 100_000)
    assert len(pull.recv()) == 100_000


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        ("MULTICAST_HOPS", (-1, 0), (1, 2)),
        ("RATE", (-1, 0), (1,)),
        ("RECOVERY_IVL", (-1,), (0,)),
        ("MULTICAST_MAXTPDU", (0,), (1,)),
        ("TOS", (-1,), (0, 255)),
        ("TCP_MAXRT", (-1,), (0,)),
        ("IPV6", (-1, 2), (0, 1)),
        ("IPV4ONLY", (-1, 2), (0, 1)),
        ("HEARTBEAT_TTL", (-100, 6_553_600), (0, 6_553_500)),
    ],
)
def test_options_that_only_libzmq_uses(zmq, plain, name, refused, accepted):
    option = getattr(zmq, name)
    for number in refused:
        assert outcome(zmq, lambda number=number: plain.set(option, number)) == zmq.EINVAL, number
    for number in accepted:
        plain.set(option, number)
        assert plain.get(option) == number


def test_subscribe_is_for_sub_only(zmq, plain):
    with pytest.raises(zmq.ZMQError) as caught:
        plain.setsockopt(zmq.SUBSCRIBE, b"")
    assert caught.value.errno == zmq.EINVAL


def test_last_endpoint(zmq, plain):
    plain.bind("tcp://127.0.0.1:*")
    assert plain.last_endpoint.startswith(b"tcp://127.0.0.1:")
    assert plain.LAST_ENDPOINT == plain.getsockopt(zmq.LAST_ENDPOINT) == plain.last_endpoint
    assert not plain.last_endpoint.endswith((b":0", b"*"))


def test_bind_to_random_port(zmq, ctx):
    port = ctx.socket(zmq.PULL).bind_to_random_port("tcp://127.0.0.1")
    assert 0 < port < 65536
    port = ctx.socket(zmq.PULL).bind_to_random_port("tcp://127.0.0.1", min_port=20000, max_port=30000)
    assert 20000 <= port < 30000
    taken = ctx.socket(zmq.PULL).bind_to_random_port("tcp://127.0.0.1")
    with pytest.raises(zmq.ZMQBindError):
        ctx.socket(zmq.PULL).bind_to_random_port("tcp://127.0.0.1", taken, taken + 1, max_tries=2)


def test_context_defaults_for_sockets(zmq):
    with zmq.Context() as context:
        context.linger = 0
        context.setsockopt(zmq.RCVTIMEO, 50)
        context.SNDHWM = 9
        assert context.linger == context.getsockopt(zmq.LINGER) == 0
        with context.socket(zmq.PULL) as pull:
            assert (pull.linger, pull.rcvtimeo, pull.sndhwm) == (0, 50, 9)
        del context.sndhwm
        with pytest.raises(AttributeError):
            _ = context.sndhwm
        with context.socket(zmq.PULL) as pull:
            assert pull.sndhwm == 1000


def test_context_options(zmq):
    with zmq.Context(io_threads=3) as context:
        assert context.io_threads == context.IO_THREADS == context.get(zmq.IO_THREADS) == 3
        context.set(zmq.IO_THREADS, 2)
        assert context.io_threads == 2
        assert context.max_sockets == 1023
        with pytest.raises(AttributeError):
            _ = context.no_such_option
        with pytest.raises(AttributeError):
            context.no_such_option = 1


def test_context_instance(zmq):
    first = zmq.Context.instance()
    assert zmq.Context.instance() is first
    first.term()
    second = zmq.Context.instance()
    assert second is not first and not second.closed
    second.term()


def test_context_ends(zmq):
    context = zmq.Context()
    assert not context.closed
    with context.socket(zmq.PUSH) as push:
        assert push.context is context
    context.term()
    context.term()
    assert context.closed
    with pytest.raises(zmq.ZMQError):
        context.socket(zmq.PUSH)


def test_destroy_closes_sockets(zmq):
    context = zmq.Context()
    socks = [context.socket(zmq.PUSH) for _ in range(3)]
    context.destroy(linger=0)
    assert context.closed and all(sock.closed for sock in socks)


def test_closing_twice(zmq, ctx):
    sock = ctx.socket(zmq.PUSH)
    assert sock.close() is None
    assert sock.close() is None
    assert sock.closed
    assert "closed" in repr(sock)


def test_fd_is_readable_when_something_came(zmq, link):
    import select

    pull, push = link(zmq.PULL, zmq.PUSH)
    assert pull.fileno() == pull.FD == pull.getsockopt(zmq.FD)
    push.send(b"wake")
    # The descriptor is a hint (libzmq's is edge-triggered): EVENTS is the truth.
    while not pull.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        assert select.select([pull.fileno()], [], [], 5)[0]
    assert pull.recv() == b"wake"


def test_events(zmq, link):
    pull, push = link(zmq.PULL, zmq.PUSH)
    assert pull.events & zmq.POLLIN == 0
    assert push.poll(5000, zmq.POLLOUT) == zmq.POLLOUT
    assert push.events & zmq.POLLOUT
    push.send(b"x")
    assert pull.poll(5000) == zmq.POLLIN
    assert pull.EVENTS & zmq.POLLIN


def test_versions(zmq):
    assert zmq.zmq_version() == "4.3.5" and zmq.zmq_version_info() == (4, 3, 5)
    assert zmq.pyzmq_version() == zmq.__version__ == "27.3.0"
    assert zmq.pyzmq_version_info() == (27, 3, 0)


def test_has(zmq):
    assert zmq.has("ipc")
    assert not zmq.has("pgm")
    assert not zmq.has("nonsense")


def test_sockets_by_number(zmq, ctx):
    pull = ctx.socket(zmq.PULL)
    again = zmq.Socket.shadow(pull.underlying)
    again.bind("tcp://127.0.0.1:*")
    assert pull.last_endpoint == again.last_endpoint != b""
    assert zmq.Socket(pull).underlying == pull.underlying
    assert zmq.Context.shadow(ctx.underlying).underlying == ctx.underlying


def test_what_bind_and_connect_return(zmq, ctx):
    push, pull = ctx.socket(zmq.PUSH), ctx.socket(zmq.PULL)
    assert "bind='inproc://a'" in repr(push.bind("inproc://a"))
    assert "connect='inproc://a'" in repr(pull.connect("inproc://a"))


def test_subclasses_have_attributes(zmq, ctx):
    class Mine(zmq.Socket):
        colour = None

        def __init__(self, *args, **kwargs):
            self.colour = "red"
            super().__init__(*args, **kwargs)

    with Mine(ctx, zmq.REP) as mine:
        assert mine.colour == "red"
        mine.colour = "blue"
        assert mine.colour == "blue"
        assert "colour" in dir(mine) and "IDENTITY" in dir(mine) and "affinity".upper() in dir(mine)


def test_copies_share(zmq, ctx):
    import copy

    pull = ctx.socket(zmq.PULL)
    again = copy.copy(pull)
    again.bind("tcp://127.0.0.1:*")
    assert pull.last_endpoint == again.last_endpoint != b""
    assert zmq.Socket.shadow(pull).last_endpoint == pull.last_endpoint
