"""Many open requests of one socket: futures, threads, callbacks, and peers that die meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import transfer
from tests.mooncake.conftest import Inbox, Inside
from tests.mooncake.test_threads_of_a_socket import in_threads
from tests.sockets.helpers import Thread, eventually
from transfer import ZmqConfig, ZmqInterface
from transfer.mooncake.replies import Replies
from transfer.transports.errors import EFSM, Again, Broken, Closed, OptionError, TransferError

pytestmark = pytest.mark.timeout(60)


def linked(zi, server=None, **bound):
    """(REQ, REP) as objects."""
    rep, req = (server or zi).socket("REP"), zi.socket("REQ")
    rep.bind("127.0.0.1:0")
    req.connect(rep.get_bound_endpoint())
    return req, rep


def echoing(rep):
    rep.set_receive_callback(lambda message: rep.reply(message["data"]))


def test_a_thousand_futures_and_a_dead_peer(make):
    zi = make({"timeout_seconds": 2})
    server = make({"thread_count": 8})
    req, rep = linked(zi, server)
    dead = zi.socket("REQ")
    silent = zi.socket("REP")
    silent.bind("127.0.0.1:0")  # takes requests, and never answers
    dead.connect(silent.get_bound_endpoint())
    inside = Inside()

    def handle(message):
        with inside:
            time.sleep(0.001)
        rep.reply(message["data"])

    rep.set_receive_callback(handle)

    async def main():
        lost = [dead.request_async(b"lost") for _ in range(100)]
        futures = [req.request_async(b"%d" % number) for number in range(900)]
        assert await asyncio.gather(*futures) == [b"%d" % number for number in range(900)]
        assert not any(future.done() for future in lost)
        ends = await asyncio.gather(*lost, return_exceptions=True)
        assert {type(end) for end in ends} == {Again}

    asyncio.run(main())
    assert 2 <= inside.most <= 8
    assert not req._requests._open and not req._socket._pattern.open
    assert not dead._requests._open


def test_the_pool_is_of_requests_that_are_open_with_a_peer(make):
    zi = make({"pool_size": 3})
    req, rep = linked(zi)
    held = Inbox()
    rep.set_polling_mode(True)

    async def main():
        futures = [req.request_async(b"%d" % number) for number in range(10)]
        await asyncio.sleep(0.05)
        assert len(req._requests._open) == 3
        serving = Thread(lambda: [rep.reply(rep.recv()["data"]) for _ in range(10)])
        held(await asyncio.gather(*futures))
        serving.join(10)

    asyncio.run(main())
    assert held.get() == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("pool", [1, 0, 10])
def test_threads_and_futures_at_the_same_time(make, pool):
    zi = make({"pool_size": pool})
    req, rep = linked(zi)
    echoing(rep)
    got = Inbox()

    def asks(thread):
        for number in range(50):
            assert req.request(b"%d %d" % (thread, number)) == b"%d %d" % (thread, number)
            tensor = req.send_tensor(np.full(3, number))
            assert bytes(tensor) == np.full(3, number).tobytes() or (tensor == number).all()

    async def main():
        loop = asyncio.get_running_loop()
        threads = [loop.run_in_executor(None, asks, number) for number in range(4)]
        futures = [req.request_async(b"f%d" % number) for number in range(200)]
        got(await asyncio.gather(*futures))
        await asyncio.gather(*threads)

    rep.set_receive_callback(lambda message: rep.reply(message.get("data", message.get("tensor"))))
    asyncio.run(main())
    assert got.get() == [b"f%d" % number for number in range(200)]


def test_futures_of_two_loops(zi):
    req, rep = linked(zi)
    echoing(rep)

    def asks(number):
        async def main():
            for turn in range(20):
                futures = [req.request_async(b"%d %d" % (number, n)) for n in range(10)]
                assert await asyncio.gather(*futures) == [b"%d %d" % (number, n) for n in range(10)], turn

        asyncio.run(main())

    in_threads(2, asks)
    in_threads(1, asks)  # a later loop


def test_a_future_of_a_loop_in_another_thread(zi):
    req, rep = linked(zi)
    echoing(rep)
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    future = req.request_async(b"from elsewhere", loop)
    done = Inbox()
    loop.call_soon_threadsafe(future.add_done_callback, lambda future: done(future.result()))
    assert done.get() == b"from elsewhere"
    late = req.request_async(b"x", loop)
    late.add_done_callback(lambda future: done(future.exception()))
    assert zi.close_socket(req.id)
    assert done.get() is None or isinstance(late.exception(), Closed)
    loop.call_soon_threadsafe(loop.stop)
    running.join(10)
    loop.close()


def test_what_is_pushed_keeps_its_order_while_there_is_no_room(make):
    zi = make({"high_water_mark": 5})
    push, pull = zi.socket("PUSH"), zi.socket("PULL")
    pull.bind("127.0.0.1:0")
    push.connect(pull.get_bound_endpoint())
    push._socket.wait_for_peers(1, 10)
    size = 1 << 16  # more than the kernel takes

    async def main():
        futures = [push.push_async(b"%05d" % number + bytes(size)) for number in range(200)]
        assert not all(future.done() for future in futures)
        pull.set_receive_callback(lambda message: got.append(int(message["data"][:5])))
        assert await asyncio.gather(*futures) == [0] * 200

    got = []
    asyncio.run(main())
    assert eventually(lambda: len(got) == 200) and got == list(range(200))


def test_a_push_that_nobody_takes_in_time_gives_a_negative_code(make):
    zi = make({"snd_timeout_ms": 50, "high_water_mark": 1})
    push = zi.socket("PUSH")
    push.connect("127.0.0.1:1")

    async def main():
        return [await push.push_async(b"x") for _ in range(3)]

    assert asyncio.run(main())[-1] < 0


def test_a_future_that_was_cancelled_holds_up_no_other(make):
    zi = make({"pool_size": 2, "timeout_seconds": 0.4})
    req, rep = linked(zi)
    rep.set_polling_mode(True)

    async def main():
        futures = [req.request_async(b"%d" % number) for number in range(4)]
        await asyncio.sleep(0.05)
        for future in futures[:3]:
            future.cancel()
        with pytest.raises(Again):
            await futures[3]
        echoing(rep)
        rep.set_polling_mode(False)
        assert await req.request_async(b"next") == b"next"

    asyncio.run(main())


def test_a_peer_that_dies_fails_its_requests_and_no_others(make):
    zi = make({"timeout_seconds": 20, "pool_size": 0})
    context = transfer.Context()
    dying, living = context.socket("ROUTER"), zi.socket("REP")
    dying.bind("tcp://127.0.0.1:0")
    living.bind("127.0.0.1:0")
    echoing(living)
    req = zi.socket("REQ")
    for endpoint in (dying.last_endpoint, living.get_bound_endpoint()):
        req.connect(endpoint)
    req._socket.wait_for_peers(2, 10)

    async def main():
        futures = [req.request_async(b"%d" % number) for number in range(20)]
        taken = await asyncio.to_thread(lambda: [dying.recv_multipart() for _ in range(1)])
        await asyncio.sleep(0.2)
        context.destroy()
        ends = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(end) for end in ends} == {bytes, Broken} and taken
        assert all(end == b"%d" % number for number, end in enumerate(ends) if isinstance(end, bytes))

    begun = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begun < 15, "they waited for the time-out"
    assert req.request(b"to the other") == b"to the other"


def test_a_request_has_one_time_out(make):
    """It had three: for its turn, for a peer and for the reply."""
    zi = make({"timeout_seconds": 0.3})
    alone = zi.socket("REQ")
    alone.connect("127.0.0.1:1")
    silent, taker = zi.socket("REQ"), zi.socket("REP")
    taker.bind("127.0.0.1:0")
    silent.connect(taker.get_bound_endpoint())
    for req in (alone, silent):
        for ask in (req.request, req.send_string, lambda value: req.send_tensor(np.zeros(3))):  # noqa: B023
            begun = time.monotonic()
            with pytest.raises(Again):
                ask("x")
            assert time.monotonic() - begun < 3, "snd_timeout_ms is 5000"
            with pytest.raises(Again):
                req.request(b"x")


@pytest.mark.parametrize(
    "config",
    [{"snd_timeout_ms": 200}, {"timeout_seconds": 0.2}, {"snd_timeout_ms": -1, "timeout_seconds": 0.2}],
)
def test_an_async_request_to_nobody_ends_as_early(make, config):
    """It took `timeout_seconds`, 30 s, whatever `snd_timeout_ms` said."""
    req = make(config).socket("REQ")
    req.connect("127.0.0.1:1")
    begun = time.monotonic()
    with pytest.raises(Again):
        asyncio.run(_awaited(req))
    assert time.monotonic() - begun < 4


async def _awaited(req):
    return await req.request_async(b"x")


def test_closing_ends_every_kind_of_request(make):
    zi = make({"timeout_seconds": 20})
    req, rep = linked(zi)
    rep.set_polling_mode(True)
    ends = Inbox()

    def asks():
        try:
            ends(req.request(b"thread"))
        except TransferError as error:
            ends(type(error))

    async def main():
        futures = [req.request_async(b"future") for _ in range(30)]  # most of them wait for room
        threads = [Thread(asks) for _ in range(3)]
        await asyncio.sleep(0.1)
        closing = time.monotonic()
        assert req.close()
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(one) for one in found} == {Closed}
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)
        assert time.monotonic() - closing < 10
        with pytest.raises(Closed):
            req.request_async(b"x")

    asyncio.run(main())
    assert {ends.get() for _ in range(3)} == {Closed}


# -- the server -----------------------------------------------------------------------------------


def test_callbacks_run_concurrently_once_the_program_says_so(make):
    assert ZmqConfig().thread_count == 8 and ZmqConfig().callbacks_at_once == 1
    assert ZmqConfig(thread_count=8).callbacks_at_once == 8
    zi, server = make(), make(ZmqConfig(thread_count=3))
    req, rep = linked(zi, server)
    meet = threading.Barrier(3)

    def handle(message):
        meet.wait(10)  # three of them are here at the same time
        rep.reply(message["data"])

    rep.set_receive_callback(handle)

    async def main():
        futures = [req.request_async(b"%d" % number) for number in range(9)]
        assert await asyncio.gather(*futures) == [b"%d" % number for number in range(9)]

    asyncio.run(main())
    assert server.close_socket(rep.id)
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith(f"transfer-rep-{rep.id}")
    ]


def test_each_thread_answers_its_own_request_and_others_by_number(make):
    zi, server = make(), make({"thread_count": 4})
    req, rep = linked(zi, server)
    asked = Inbox()
    rep.set_receive_callback(asked)

    async def main():
        futures = [req.request_async(b"%d" % number) for number in range(3)]
        messages = [await asyncio.to_thread(asked.get) for _ in futures]
        assert rep.reply(b"whose?") == -EFSM, "three are open"
        for message in reversed(messages):
            assert rep.reply(b"to " + message["data"], request=message["request"]) == 0
            assert rep.reply(b"twice", request=message["request"]) == -EFSM
        assert await asyncio.gather(*futures) == [b"to %d" % number for number in range(3)]

    asyncio.run(main())


def test_a_thread_that_answers_one_after_the_other(make):
    """Its first answer was taken for the one that it owes: the second was refused."""
    zi = make()
    req, rep = linked(zi)
    asked = Inbox()
    rep.set_receive_callback(asked)

    def answers():
        for number in range(5):
            message = asked.get()
            given = message["request"] if number % 2 else None
            assert rep.reply(np.full(2, number) if number == 3 else message["data"], given) == 0

    answering = Thread(answers)
    for number in range(5):
        assert len(req.request(b"%d" % number)) == 1 + (number == 3)
    answering.join(10)


def test_an_answer_that_is_late_goes_to_nobody_elses_request(make):
    """A callback needs longer than its request is open; meanwhile another request has come."""
    zi = make({"timeout_seconds": 2, "pool_size": 0})
    server = make({"thread_count": 2, "timeout_seconds": 0.3})
    req, rep = linked(zi, server)
    codes, late = Inbox(), threading.Event()

    def handle(message):
        if message["data"] == b"slow":
            late.wait(10)
            codes(rep.reply(b"to the slow one"))

    rep.set_receive_callback(handle)

    async def main():
        words = [b"slow", b"never answered", b"nor this"]
        futures = [req.request_async(word) for word in words]
        deadline = time.monotonic() + 10
        while rep.callback_errors < 1:  # the oldest was given up, for the third to come
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        late.set()
        assert await asyncio.to_thread(codes.get) == -EFSM
        ends = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(end) for end in ends} == {Again}

    asyncio.run(main())


def test_a_short_time_out_is_short(make):
    zi = make({"timeout_seconds": 0.02})
    req, rep = linked(zi)
    rep.set_polling_mode(True)
    req._socket.wait_for_peers(1, 10)
    taken = []
    for _ in range(5):
        begun = time.monotonic()
        with pytest.raises(Again):
            req.request(b"x")
        taken.append(time.monotonic() - begun)
    assert min(taken) < 0.05


def test_a_callback_that_raises_gives_up_its_own_request(make, caplog):
    zi, server = make({"timeout_seconds": 1}), make({"thread_count": 2})
    req, rep = linked(zi, server)

    def handle(message):
        if message["data"] == b"bad":
            raise ValueError("of the program")
        rep.reply(message["data"])

    rep.set_receive_callback(handle)

    async def main():
        words = [b"good", b"bad"] * 5
        ends = await asyncio.gather(*map(req.request_async, words), return_exceptions=True)
        assert [end if isinstance(end, bytes) else type(end) for end in ends] == [b"good", Again] * 5

    asyncio.run(main())
    assert rep.callback_errors == 5 and not rep._replies._came


def test_a_program_is_told_of_a_setting_that_is_none():
    with pytest.raises(OptionError, match="thread_cout"):
        ZmqConfig(thread_cout=3)
    config = ZmqConfig()
    with pytest.raises(OptionError, match="pool_sice"):
        config.pool_sice = 3
    assert ZmqConfig(pool_size=3) == ZmqConfig(pool_size=3) != ZmqConfig()
    assert "pool_size=3" in repr(ZmqConfig(pool_size=3))


def test_round_trips_are_measured(zi):
    req, rep = linked(zi)
    echoing(rep)
    for _ in range(5):
        req.request(b"x")
    req.send_string("y")
    assert sum(req._socket._pattern.turn.counts) == 6
    assert sum(transfer_requests(zi)) == 6


def transfer_requests(zi: ZmqInterface):
    from transfer.metrics.prometheus import _round_trips

    return _round_trips(zi._context).counts


def test_a_reply_makes_room_at_once(make):
    """Threads that waited for room were never told, and waited for their whole time-out."""
    _, rep = linked(make())
    replies = Replies(SimpleNamespace(socket=rep._replies._socket), 1, -1)
    replies._came[7] = time.monotonic()
    waiting = threading.Thread(target=replies._wait_for_room, args=(50,))
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    replies.give_up(7)
    waiting.join(5)
    assert not waiting.is_alive()
