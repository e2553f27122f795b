"""A thousand requests of one event loop, to a REP whose callbacks sleep; some of them go to a dead peer.

The ideal time is that of the answered requests on all callback threads, without any overhead.
"""

from __future__ import annotations

import asyncio
import time

from bench.cases.timing import expect
from bench.peers.base import host_of
from bench.scene import Link, Outcome, play
from bench.work import Case, Metric, Sample, Work
from transfer import ZmqInterface


def replier(peer: str, work: Work, links: list[Link]) -> Outcome:
    """Reports two addresses: of a peer that answers, and of one that only takes requests."""
    with ZmqInterface() as interface:
        interface.initialize({"thread_count": work.params["threads"]})
        answers, dead = interface.socket("REP"), interface.socket("REP")

        def answer(message: dict[str, bytes]) -> None:
            time.sleep(work.params["sleep"])
            answers.reply(message["data"])

        answers.set_receive_callback(answer)
        for socket in (answers, dead):
            socket.bind(f"tcp://{host_of(work)}:0")
            links[0].send(socket.get_bound_endpoint())
        expect(links[0], "over")
    return {}


async def ask(interface: ZmqInterface, work: Work, answers: int, dead: int) -> float:
    """Returns the seconds until all answered requests are done, while those to the dead peer are open."""
    lost = [interface.request_async(dead, b"lost") for _ in range(work.params["dead"])]
    begun = time.perf_counter()
    words = [b"%d" % number for number in range(work.count)]
    found = await asyncio.gather(*(interface.request_async(answers, word) for word in words))
    took = time.perf_counter() - begun
    assert found == words and not any(future.done() for future in lost)
    for future in lost:
        future.cancel()
    return took


def requester(peer: str, work: Work, link: Link) -> Outcome:
    with ZmqInterface() as interface:
        sockets = []
        for _ in range(2):
            sockets.append(interface.create_socket("REQ"))
            interface.connect(sockets[-1], link.receive())
        interface.request(sockets[0], b"warm")
        took = asyncio.run(ask(interface, work, *sockets))
        link.send("over")
    return {"seconds": took}


def measure(work: Work, peer: str) -> Sample:
    _, asked = play(replier, requester, peer, work)
    ideal = work.count * work.params["sleep"] / work.params["threads"]
    return {"ideal_ratio": asked[0]["seconds"] / ideal}


def metric(_: Work) -> Metric:
    return Metric("ideal_ratio", "× the ideal time", False)


def works(quick: bool) -> list[Work]:
    params = {"threads": 8, "sleep": 0.01, "dead": 100}
    return [Work("interface_futures", "64B", 64, 90 if quick else 900, 0, ("interface",), 1, params)]


CASES = {
    "interface_futures": Case(
        "interface_futures",
        "ZmqInterface: 900 futures of a REP that sleeps 10 ms on 8 threads, 100 more to a dead one",
        works,
        measure,
        metric,
        any_transport=False,
    )
}
