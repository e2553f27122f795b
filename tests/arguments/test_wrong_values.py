"""Wrong arguments that a walk over kinds does not meet: what has the right type and is wrong all the same."""

from __future__ import annotations

import asyncio
import json

import numpy
import pytest

import transfer
import transfer.asyncio
from tests.arguments.wrong_calls import outcome
from tests.sockets.conftest import context, core  # noqa: F401 - fixtures
from tests.sockets.helpers import pair_of
from transfer import PULL, PUSH, ArgumentError, UsageError, zmq
from transfer.transports.errors import AddressError
from transfer.zmq import asyncio as zmq_asyncio

# -- pollers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [transfer.Poller, transfer.asyncio.Poller, zmq.Poller, zmq_asyncio.Poller])
@pytest.mark.parametrize("given", [3, [], "x"])
def test_what_is_not_registered_cannot_be_taken_out(make, given):
    poller = make()
    with pytest.raises(KeyError) as caught:
        poller.unregister(given)
    assert isinstance(caught.value, UsageError) and caught.value.hint
    assert str(caught.value) == f"{given!r} is not registered\n  hint: {caught.value.hint}"


@pytest.mark.parametrize("timeout", [None, -1])
def test_a_poll_of_nothing_without_end_returns(timeout):
    """As pyzmq's."""
    calls = {
        "Poller": transfer.Poller().poll,
        "zmq.Poller": zmq.Poller().poll,
        "zmq_poll": lambda timeout: zmq.zmq_poll([], timeout),
        "coroutine": lambda timeout: asyncio.run(transfer.asyncio.Poller().poll(timeout)),
    }
    found = {}
    for name, call in calls.items():
        ended = outcome(
            lambda timeout, call=call, name=name: found.update({name: call(timeout)}), {"timeout": timeout}
        )
        assert ended == "returns", name
    assert found == {name: [] for name in calls}
    assert transfer.Poller().poll(1) == []


def test_coroutines_that_poll_nothing_let_others_run():
    async def both():
        poller = transfer.asyncio.Poller()
        other = asyncio.ensure_future(asyncio.sleep(0, "ran"))
        for _ in range(10):
            assert await poller.poll() == []
        return other.done()

    assert asyncio.run(both())


# -- JSON --------------------------------------------------------------------------------------------

WRONG_JSON = [{"nope": 3}, {"object_hook": 3}, {"parse_int": "x"}, {"cls": 3}]


@pytest.mark.parametrize("wrong", WRONG_JSON)
def test_how_json_is_decoded_is_looked_at_before_a_message_is_taken(context, wrong):  # noqa: F811
    pull, push = pair_of(context, PULL, PUSH, rcvtimeo=0)
    with pytest.raises(ArgumentError) as caught:
        pull.recv_json(**wrong)  # and not Again: it does not wait for one
    assert caught.value.hint
    pull.rcvtimeo = 10_000
    push.send_json({"a": [1.5, 2]})
    with pytest.raises(ArgumentError):
        pull.recv_json(**wrong)
    assert pull.recv_json(object_hook=lambda found: sorted(found.items()), parse_float=str) == [
        ("a", ["1.5", 2])
    ]


@pytest.mark.parametrize("wrong", WRONG_JSON)
def test_also_of_the_other_surfaces(wrong):
    with zmq.Context() as other, other.socket(zmq.PULL) as made, pytest.raises(ArgumentError):
        made.recv_json(zmq.DONTWAIT, **wrong)

    async def receive(made):
        with pytest.raises(ArgumentError):
            await made.recv_json(transfer.DONTWAIT, **wrong)

    with transfer.asyncio.Context() as context, context.socket(PULL) as made:  # noqa: F811
        asyncio.run(receive(made))
    with zmq_asyncio.Context() as context, context.socket(zmq.PULL) as made:
        asyncio.run(receive(made))


def test_a_decoder_of_ones_own(context):  # noqa: F811
    class Decoder(json.JSONDecoder):
        def __init__(self, *, unit, **rest):
            super().__init__(**rest)
            self.unit = unit

        def decode(self, text):
            return super().decode(text) * self.unit

    pull, push = pair_of(context, PULL, PUSH)
    push.send_json(3)
    with pytest.raises(ArgumentError, match="unit"):
        pull.recv_json(cls=Decoder)
    assert pull.recv_json(cls=Decoder, unit=5) == 15


# -- frames ------------------------------------------------------------------------------------------

TENSOR, EXTENDED = 1, 64
WRONG_FRAMES = {
    "header without its flag": (None, bytes(48), 0, b"x"),
    "flag without its header": (None, None, TENSOR, b"x"),
    "header of another length": (None, b"zz", TENSOR, b"x"),
    "extended alone": (None, None, EXTENDED, b"x"),
    "extended too short": (None, b"zz", TENSOR | EXTENDED, b"x"),
    "extended that says another length": (
        None,
        (20).to_bytes(4, "little") + bytes(20),
        TENSOR | EXTENDED,
        b"x",
    ),
    "no byte": (None, None, 9999, b"x"),
    "below 0": (None, None, -1, b"x"),
    "text": (None, None, "x", b"x"),
    "a topic that is text": ("x", None, 0, b"x"),
    "a topic that is too long": (bytes(65537), None, 0, b"x"),
    "a header that is text": (None, "x" * 48, TENSOR, b"x"),
}


@pytest.mark.parametrize("given", WRONG_FRAMES)
def test_a_frame_that_would_break_the_receivers_connection(context, given):  # noqa: F811
    pull, push = pair_of(context, PULL, PUSH)
    with pytest.raises(ArgumentError) as caught:
        push.send_frames([(None, None, 0, b"first"), WRONG_FRAMES[given]])
    what = "text" if "text" in given else "a topic of 65537" if "topic" in given else "no frame has the flags"
    assert caught.value.hint and (what == "text" or str(caught.value).startswith(what))
    push.send_frames([(b"topic", None, 0, b"good")])
    assert pull.recv_multipart() == [b"topic", b"good"]


@pytest.mark.parametrize("tensor", [numpy.ones(3), numpy.ones((1, 2, 3, 4, 5)), numpy.zeros(0)])
def test_frames_that_came_go_on(context, tensor):  # noqa: F811
    pull, push = pair_of(context, PULL, PUSH)
    for _ in range(2):
        push.send_tensor(tensor)
        frames = pull.recv_frames()
        push.send_frames([(frame.topic, frame.meta, frame.flags, frame.data) for frame in frames])
        numpy.testing.assert_array_equal(pull.recv_tensor(), tensor)


# -- types and endpoints -----------------------------------------------------------------------------


@pytest.mark.parametrize("given", [-1, 9, 4711])
def test_a_number_that_is_no_type(context, given):  # noqa: F811
    with pytest.raises(UsageError, match=f"no socket type: {given}\n  hint: write transfer.PUSH") as caught:
        context.socket(given)
    assert "ZeroMQ's number of one type" not in str(caught.value)
    with pytest.raises(UsageError, match="8 is ZeroMQ's number of one type and ours of another"):
        context.socket(8)


@pytest.mark.parametrize("way", ["bind", "connect"])
@pytest.mark.parametrize("endpoint", ["shm://x", "local://x", "ws://host", "shm://", "vmci://1/2/3"])
def test_a_scheme_that_is_unknown_is_what_is_wrong(context, way, endpoint):  # noqa: F811
    with pytest.raises(AddressError) as caught:
        getattr(context.socket(PULL), way)(endpoint)
    scheme = endpoint.partition(":")[0]
    assert str(caught.value).startswith(f"nothing here speaks {scheme}://\n  hint: ")
    assert "port" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["ucx:/x", "rdma:/x", "tcp:/x"])
def test_slashes_that_lack_and_a_port(context, endpoint):  # noqa: F811
    scheme = endpoint.partition(":")[0]
    with pytest.raises(AddressError, match=f"no scheme\n  hint: write {scheme}://x:port"):
        context.socket(PULL).connect(endpoint)
