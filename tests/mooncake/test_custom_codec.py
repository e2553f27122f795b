"""A codec of the program's own at a socket: values go in, values come out."""

from __future__ import annotations

import asyncio
import json
import struct

import numpy as np
import pytest

from tests.mooncake.conftest import Inbox
from transfer.transports.errors import Again, ArgumentError, StateError

pytestmark = pytest.mark.timeout(30)


class Points:
    """Two numbers as eight bytes each, as a schema compiler would have it."""

    def encode(self, value):
        return struct.pack("<dd", *value)

    def decode(self, data):
        return struct.unpack("<dd", data)


class Json:
    def encode(self, value):
        return json.dumps(value).encode()

    def decode(self, data):
        return json.loads(data)


def with_codec(zi, link, codec, *kinds):
    ids = link(*kinds)
    for one in ids:
        assert zi.set_codec(one, codec)
    return ids


def test_requests_and_replies(zi, link):
    req, rep = with_codec(zi, link, Points(), "REQ", "REP")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, message["data"][::-1]))
    assert zi.request(req, (1.5, 2.0)) == (2.0, 1.5)
    assert zi.send(req, (1.5, 2.0)) == (2.0, 1.5)

    async def main():
        return await asyncio.gather(*(zi.request_async(req, (n, 0)) for n in range(20)))

    assert asyncio.run(main()) == [(0, n) for n in range(20)]


def test_dicts_are_the_codecs_and_tensors_are_tensors(zi, link):
    req, rep = with_codec(zi, link, Json(), "REQ", "REP")
    seen = Inbox()

    def handle(message):
        seen(message)
        if "data" in message:
            zi.reply(rep, {"got": True})
        else:
            zi.reply_tensor(rep, message["tensor"])

    zi.set_receive_callback(rep, handle)
    assert zi.request(req, {"name": "ü", "values": [1, None]}) == {"got": True}
    assert seen.get()["data"] == {"name": "ü", "values": [1, None]}
    assert (zi.request(req, np.arange(3)) == np.arange(3)).all()
    assert "data" not in seen.get()
    assert (zi.send_tensor(req, {"a": np.ones(2)})["a"] == 1).all()


@pytest.mark.parametrize("batch", [False, True])
def test_tasks_and_topics(zi, link, batch):
    push, pull = with_codec(zi, link, Json(), "PUSH", "PULL")
    seen = Inbox()
    if batch:
        zi.set_batch_receive_callback(pull, lambda messages: [seen(message) for message in messages])
    else:
        zi.set_receive_callback(pull, seen)
    for number in range(5):
        assert zi.push(push, [number]) == 0
    assert [seen.get()["data"] for _ in range(5)] == [[number] for number in range(5)]
    with pytest.raises(StateError, match="callback"):
        zi.set_codec(pull, None)


def test_what_cannot_be_decoded_stays_unread_or_fails_its_callback(zi, link):
    push, pull = link("PUSH", "PULL")
    zi.set_codec(pull, Json())
    zi.set_polling_mode(pull, True)
    zi.push(push, b"no JSON")
    with pytest.raises(ValueError, match="Expecting value"):
        zi.recv(pull)
    assert zi.recv_string(pull)["string"] == "no JSON"
    zi.push(push, b"[1]")
    assert zi.recv(pull)["data"] == [1]
    zi.set_codec(pull, None)
    zi.push(push, b"[1]")
    assert zi.recv(pull)["data"] == b"[1]"


def test_a_reply_that_cannot_be_decoded(zi, link):
    req, rep = link("REQ", "REP")
    zi.set_codec(req, Json())
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, b"{"))
    with pytest.raises(ValueError):
        zi.request(req, 1)

    async def main():
        with pytest.raises(ValueError):
            await zi.request_async(req, 1)

    asyncio.run(main())


def test_what_cannot_be_encoded_is_not_sent(zi, link):
    req, _ = with_codec(zi, link, Json(), "REQ", "REP")
    with pytest.raises(TypeError):
        zi.request(req, object())
    with pytest.raises(Again):
        zi.set_socket_option(req, "RCVTIMEO", 20)
        zi.request(req, "good")


def test_what_is_no_codec(zi):
    push = zi.create_socket("PUSH")
    for wrong in (json, 5, object(), "json"):
        with pytest.raises(ArgumentError, match="codec"):
            zi.set_codec(push, wrong)
