"""Values that the calls cannot take: each is refused with what is permitted, before anything is sent."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from transfer import ZmqConfig
from transfer.transports.errors import ArgumentError, OptionError, UsageError

pytestmark = pytest.mark.timeout(30)

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("thread_count", value) for value in (0, -1, "8", None, 1.5)],
        *[("timeout_seconds", value) for value in ("30", None, NAN)],
        *[("high_water_mark", value) for value in (-1, "x", None, NAN)],
        *[(name, value) for name in ("rcv_timeout_ms", "snd_timeout_ms", "linger_ms") for value in ("1", -2)],
        *[("reconnect_interval_ms", value) for value in (-1, None)],
        *[("rcv_buffer_size", value) for value in (-1, "big")],
        *[("enable_rdma", value) for value in (1, "yes", None)],
    ],
)
def test_settings(zi, name, value):
    for config in ({name: value}, ZmqConfig(**{name: value})):
        with pytest.raises(ArgumentError, match=name):
            zi.initialize(config)


@pytest.mark.parametrize("kind", [True, 1.0, None, 7, "ROUTER", []])
def test_socket_types(zi, kind):
    with pytest.raises((OptionError, ArgumentError)):
        zi.create_socket(kind)


@pytest.mark.parametrize("number", [[], {}, None, "1", 99])
def test_ids(zi, number):
    with pytest.raises(UsageError, match="create_socket"):
        zi.push(number, b"x")
    assert zi.close_socket(number) is False


@pytest.mark.parametrize("data", [None, 5, [b"x"], object(), memoryview(bytes(8))[::2]])
def test_data(zi, link, data):
    push, pull = link("PUSH", "PULL")
    with pytest.raises(ArgumentError, match="data"):
        zi.push(push, data)
    zi.set_polling_mode(pull, True)
    zi.push(push, b"next")
    assert zi.recv(pull)["data"] == b"next"


@pytest.mark.parametrize("topic", [5, [65, 66], "\ud900", "x" * 65537, bytes(65537)])
def test_topics(zi, link, topic):
    pub, _ = link("PUB", "SUB")
    for call in (zi.publish, lambda *given: zi.send_tensor(given[0], np.zeros(2), given[1])):
        with pytest.raises(UsageError, match="topic"):
            call(pub, topic, b"x")


@pytest.mark.parametrize("frames", ["abc", b"abc", None, 5, {}])
def test_parts(zi, link, frames):
    push, _ = link("PUSH", "PULL")
    with pytest.raises(ArgumentError, match="frames"):
        zi.send_multipart(push, frames)


def test_flags_and_loops(zi, link):
    push, pull = link("PUSH", "PULL")
    zi.set_polling_mode(pull, True)
    for flags in ("x", None, 1.5, -1):
        with pytest.raises(ArgumentError, match="flags"):
            zi.recv(pull, flags)
    with pytest.raises(ArgumentError, match="loop"):
        zi.push_async(push, b"x", 5)

    async def pushed():
        return await zi.push_async(push, b"x")

    assert asyncio.run(pushed()) == 0


def test_numbers_of_numpy_keep_their_type(zi, link):
    """Their four bytes came."""
    push, pull = link("PUSH", "PULL")
    zi.set_polling_mode(pull, True)
    zi.push(push, np.float32(1.5))
    got = zi.recv(pull)["tensor"]
    assert got.dtype == np.float32 and got.shape == () and got == 1.5
