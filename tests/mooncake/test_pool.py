"""Places for open requests: each is given back however it ends, and who waits longest gets the next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

from tests.mooncake.conftest import Inbox, Inside
from tests.mooncake.test_open_requests import echoing, linked
from tests.sockets.helpers import Thread, eventually
from transfer.transports.errors import Again

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("pool", [1, 2, 10])
def test_threads_and_loops_get_equal_shares(make, pool):
    """One thread had 43,365 answers, three others one each, and a loop of twenty two."""
    zi = make({"pool_size": pool, "timeout_seconds": 20, "snd_timeout_ms": -1})
    req, rep = linked(zi)
    echoing(rep)
    ended, got = threading.Event(), Counter()

    def asks(name):
        while not ended.is_set():
            req.request(b"x")
            got[name] += 1

    async def one():
        while not ended.is_set():
            await req.request_async(b"y")
            got["loop"] += 1

    async def main():
        await asyncio.gather(*(one() for _ in range(5)))

    threads = [Thread(asks, number) for number in range(4)] + [Thread(lambda: asyncio.run(main()))]
    names = (0, 1, 2, 3, "loop")
    assert eventually(lambda: min(got[name] for name in names) >= 30, 40), got  # all of them have begun
    before = got.copy()
    assert eventually(lambda: sum((got - before).values()) > 500, 40)
    ended.set()
    for thread in threads:
        thread.join(20)
    if pool == 1:  # else who runs more often has more
        assert min(got[name] - before[name] for name in names) > 20, (before, got)
    assert not req._requests._open and not req._requests._pool.waits


def test_no_more_are_open_than_the_pool_has_places(make):
    zi, server = make({"pool_size": 2, "snd_timeout_ms": -1}), make({"thread_count": 16})
    req, rep = linked(zi, server)
    inside = Inside()

    def handle(message):
        with inside:
            time.sleep(0.002)
        rep.reply(message["data"])

    rep.set_receive_callback(handle)
    threads = [Thread(lambda: [req.request(b"x") for _ in range(10)]) for _ in range(12)]
    for thread in threads:
        thread.join(30)
    assert inside.most == 2


def test_loops_that_end_with_requests_open_give_their_places_back(make):
    """The socket was stuck for good: only their loop's timer would have ended them."""
    zi = make({"pool_size": 3, "timeout_seconds": 1})
    req, rep = linked(zi)
    silent = Inbox()
    rep.set_receive_callback(silent)

    async def gives_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(req.request_async(b"never"), 0.02)

    for _ in range(6):
        asyncio.run(gives_up())
    rep.abandon(silent.get()["request"])
    echoing(rep)
    assert req.request(b"next") == b"next"


def test_requests_that_were_cancelled_give_their_places_back_also_without_a_time_out(make):
    zi = make({"pool_size": 2, "timeout_seconds": -1, "snd_timeout_ms": 5000})
    server = make({"thread_count": 3})
    req, rep = linked(zi, server)
    rep.set_receive_callback(lambda message: message["data"] == b"good" and rep.reply(b"done"))

    async def main():
        lost = [req.request_async(b"bad") for _ in range(2)]
        await asyncio.sleep(0.05)
        for future in lost:
            future.cancel()
        assert await asyncio.wait_for(req.request_async(b"good"), 10) == b"done"

    asyncio.run(main())
    assert req.request(b"good") == b"done"


def test_a_shorter_time_out_behind_a_longer_one(zi):
    req, rep = linked(zi)
    rep.set_polling_mode(True)

    async def main():
        req.set_socket_option("RCVTIMEO", 20_000)
        long = req.request_async(b"long")
        req.set_socket_option("RCVTIMEO", 100)
        begun = time.monotonic()
        with pytest.raises(Again):
            await req.request_async(b"short")
        assert time.monotonic() - begun < 5
        assert not long.done()
        long.cancel()

    asyncio.run(main())


def test_a_polling_requester_need_not_wait(zi):
    req, rep = linked(zi)
    echoing(rep)
    req.set_polling_mode(True)
    assert req.send(b"x") == 0
    found = []

    def comes():
        try:
            found.append(req.recv(1))
        except Again:
            pass
        return found

    assert eventually(comes) and found[0]["data"] == b"x"


def test_a_request_in_the_thread_of_a_loop_that_has_many_open(make):
    """Nobody read while it waited for room: its server could not send, and so took nothing."""
    zi = make({"pool_size": 0, "high_water_mark": 100})
    req, rep = linked(zi)
    echoing(rep)

    async def main():
        futures = [req.request_async(b"%d" % number + bytes(2000)) for number in range(2000)]
        assert req.request(b"sync" + bytes(2000))[:4] == b"sync"
        for number, reply in enumerate(await asyncio.gather(*futures)):
            assert reply == b"%d" % number + bytes(2000)

    asyncio.run(main())


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit])
def test_whatever_a_callback_raises_the_next_is_called(make, error, caplog):
    zi = make({"timeout_seconds": 0.3})
    req, rep = linked(zi)

    def handle(message):
        if message["data"] == b"bad":
            raise error
        rep.reply(message["data"])

    rep.set_receive_callback(handle)
    with pytest.raises(Again):
        req.request(b"bad")
    assert req.request(b"good") == b"good"
    assert rep.callback_errors == 1


def test_a_request_for_the_callback_that_is_never_answered_is_logged_and_gives_its_place_back(make, caplog):
    """With the pool full, the next request ended it in silence."""
    zi = make({"pool_size": 1, "timeout_seconds": 0.3})
    req, rep = linked(zi)
    rep.set_polling_mode(True)
    req.set_receive_callback(lambda message: None)
    assert req.send(b"never answered") == 0
    req.send(b"waits for the place")
    assert eventually(lambda: req.callback_errors)
    assert eventually(lambda: "no reply arrived in time" in caplog.text)  # it is counted first
