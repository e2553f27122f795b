"""Many threads at one socket: REQ and REP keep their order, parts keep together, close wakes everybody."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter, deque
from functools import partial

import pytest

import transfer
from transfer import DEALER, PAIR, PUB, PULL, PUSH, REP, REQ, ROUTER, SUB
from transfer.sockets.connections import connections
from transfer.transports.errors import Again, Broken, Closed, StateError, TensorMismatch

from .helpers import Thread, eventually, fewer, pair_of

THREADS = 4
TURNS = fewer(150)


@pytest.fixture(autouse=True)
def hasty():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*calls):
    """All calls begin together; what each returned or raised."""
    barrier = threading.Barrier(len(calls))

    def run(call):
        barrier.wait(20)
        try:
            return call()
        except transfer.TransferError as error:
            return error

    return [thread.finish(30) for thread in [Thread(run, call) for call in calls]]


class Echo:
    """Answers every request of a REP with itself until the REP is closed."""

    def __init__(self, rep):
        self._rep = rep
        self.requests = []
        self.thread = Thread(self._run)

    def _run(self):
        try:
            while True:
                request = self._rep.recv_multipart()
                self.requests.append(request[0])
                self._rep.send_multipart(request)
        except Closed:
            return


def test_of_requests_sent_at_once_one_goes(context, endpoint):
    """Exactly one of the calls succeeds, and the reply is that to its request."""
    rep, req = pair_of(context, REP, REQ, endpoint, rcvtimeo=20_000)
    echo = Echo(rep)
    for turn in range(TURNS):
        requests = [b"%d of %d" % (number, turn) for number in range(THREADS)]
        sends = [lambda request=request: req.send(request) for request in requests]
        if turn % 3 == 1:
            sends[0] = lambda request=requests[0]: req.send_multipart([request, b"more"])
        outcomes = at_once(*sends)
        assert [type(outcome) for outcome in outcomes if outcome] == [StateError] * (THREADS - 1), outcomes
        winner = requests[outcomes.index(None)]
        assert req.recv_multipart()[0] == winner
        assert echo.requests[-1] == winner
    assert len(echo.requests) == TURNS
    assert req._pattern.drops == {}
    rep.close(0)
    echo.thread.finish()


@pytest.mark.parametrize("many", [False, True], ids=["one part", "parts"])
def test_requests_of_many_threads(context, endpoint, many):
    """Whoever gets the socket has a whole dialogue: no reply is lost, mixed up or given to two."""
    rep, req = pair_of(context, REP, REQ, endpoint, rcvtimeo=20_000)
    echo = Echo(rep)
    sent, received, refused = Counter(), Counter(), Counter()
    enough, dialogues = threading.Event(), fewer(2000)

    def ask(name):
        number = 0
        while not enough.is_set():
            text = b"%d-%d" % (name, number)
            try:
                req.send_multipart([text, b"more"]) if many else req.send(text)
                sent[text] += 1
                number += 1
            except StateError:
                refused[name] += 1
            try:
                received[req.recv_multipart()[0]] += 1
            except StateError:
                refused[name] += 1
            if sum(received.values()) >= dialogues:
                enough.set()

    outcomes = at_once(*(lambda name=name: ask(name) for name in range(THREADS)))
    assert outcomes == [None] * THREADS
    if req._pattern.may_receive():
        received[req.recv_multipart()[0]] += 1
    assert received == sent
    assert set(received.values()) == {1}
    assert req._pattern.drops == {}
    rep.close(0)
    echo.thread.finish()


def test_a_rep_of_many_threads(context, endpoint):
    """Each reply goes to its request, once, although any thread receives and any thread sends."""
    rep = context.socket(REP)
    rep.bind(endpoint)
    reqs = [context.socket(REQ, rcvtimeo=20_000) for _ in range(THREADS)]
    for req in reqs:
        req.connect(rep.last_endpoint)
    rep.wait_for_peers(THREADS, 10)
    replies, requests = Counter(), fewer(400)

    def serve():
        """Does what it wants, in any order; the state says what is legal."""
        while True:
            try:
                request = rep.recv()
            except StateError:
                time.sleep(0)
                continue
            except Closed:
                return
            try:
                rep.send(b"re: " + request)
                replies[request] += 1
            except Closed:
                return

    def ask(name):
        for turn in range(requests):
            text = b"%d-%d" % (name, turn)
            reqs[name].send(text)
            assert reqs[name].recv() == b"re: " + text

    servers = [Thread(serve) for _ in range(THREADS)]
    outcomes = at_once(*(lambda name=name: ask(name) for name in range(THREADS)))
    assert outcomes == [None] * THREADS
    rep.close(0)
    for server in servers:
        server.finish()
    assert set(replies.values()) == {1}
    assert len(replies) == THREADS * requests
    assert rep._pattern.drops == {}
    assert all(req._pattern.drops == {} for req in reqs)


def test_of_replies_sent_at_once_one_goes(context, endpoint):
    rep, req = pair_of(context, REP, REQ, endpoint, rcvtimeo=20_000)
    for turn in range(TURNS):
        req.send(b"%d" % turn)
        assert rep.recv() == b"%d" % turn
        replies = [b"%d to %d" % (number, turn) for number in range(THREADS)]
        outcomes = at_once(*(lambda reply=reply: rep.send(reply) for reply in replies))
        assert [type(outcome) for outcome in outcomes if outcome] == [StateError] * (THREADS - 1), outcomes
        assert req.recv() == replies[outcomes.index(None)]
    assert req._pattern.drops == {}


def test_of_threads_that_wait_for_a_request_one_gets_it(context, endpoint):
    """The others are told that a reply is owed; the second request waits for its turn."""
    rep = context.socket(REP)
    rep.bind(endpoint)
    reqs = [context.socket(REQ, rcvtimeo=20_000) for _ in range(2)]
    for req in reqs:
        req.connect(rep.last_endpoint)
    rep.wait_for_peers(2, 10)
    for turn in range(40):
        waiting = [Thread(lambda: at_once(rep.recv)[0]) for _ in range(THREADS)]
        for number, req in enumerate(reqs):
            req.send(b"%d of %d" % (number, turn))
        outcomes = [thread.finish() for thread in waiting]
        (first,) = [outcome for outcome in outcomes if type(outcome) is bytes]
        assert [type(o) for o in outcomes if type(o) is not bytes] == [StateError] * (THREADS - 1), outcomes
        rep.send(first)
        second = rep.recv()
        rep.send(second)
        assert {first, second} == {b"0 of %d" % turn, b"1 of %d" % turn}
        assert [req.recv() for req in reqs] == [b"%d of %d" % (number, turn) for number in range(2)]


def test_a_new_request_while_the_last_reply_is_received(context):
    """req_relaxed: whichever comes first, the newest request gets its reply."""
    rep, req = pair_of(context, REP, REQ, rcvtimeo=20_000)
    req.req_relaxed = True
    echo = Echo(rep)
    for turn in range(2 * TURNS):
        old, new = b"old %d" % turn, b"new %d" % turn
        req.send(old)
        answer, _ = at_once(req.recv, lambda new=new: req.send(new))
        if answer == old:
            assert req.recv() == new
        else:
            assert answer == new
    rep.close(0)
    echo.thread.finish()


def test_the_time_out_of_a_send_that_waits_for_another_thread(context):
    """Nobody is there: the first send waits for a peer, the second for the first."""
    req = context.socket(REQ)
    req.sndtimeo = 300
    outcomes = at_once(*(lambda: req.send(b"x"),) * THREADS)
    assert [type(outcome) for outcome in outcomes] == [Again] * THREADS, outcomes


OTHERS = {REQ: REP, REP: REQ, PUSH: PULL, PULL: PUSH, DEALER: ROUTER, PAIR: PAIR, ROUTER: DEALER, SUB: PUB}


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_close_wakes_all_threads_at_once(context, endpoint, kind):
    """Those that send and those that receive, with a peer that does neither, and without one."""
    for connected in (False, True):
        here = context.socket(kind, sndhwm=1, sndhwm_bytes=1, sndbuf=4096, linger=0)
        there = context.socket(OTHERS[kind], rcvbuf=4096)
        if kind is SUB:
            here.subscribe(b"")
        if connected:
            there.bind(endpoint)
            here.connect(there.last_endpoint)
            here.wait_for_peers(1, 10)
        begun = []

        def use(here=here, begun=begun, sends=True):
            begun.append(1)
            while True:
                try:
                    here.send(bytes(100_000)) if sends else here.recv()
                except StateError:
                    time.sleep(0.001)

        calls = [use] * 2 if kind in (PUSH, DEALER, PAIR, REQ) else []
        if kind is not PUSH:
            calls += [lambda use=use: use(sends=False)] * 2
        threads = [Thread(lambda call=call: at_once(call)[0]) for call in calls]
        assert eventually(lambda begun=begun, calls=calls: len(begun) == len(calls))
        time.sleep(0.02)
        here.close(0)
        assert [type(thread.finish(10)) for thread in threads] == [Closed] * len(calls)
        there.close(0)
        here = there = None


def test_close_at_any_moment(context, endpoint):
    """Dialogues in full swing in several threads end with Closed, or with the loss of the peer."""
    for turn in range(15):
        rep, req = pair_of(context, REP, REQ, endpoint, linger=0)

        def use(socket, first):
            calls = [lambda: socket.send(b"x" * 100), socket.recv]
            while True:
                for call in calls if first else reversed(calls):
                    try:
                        call()
                    except (StateError, Broken):
                        time.sleep(0)

        threads = [Thread(at_once, partial(use, req, True)) for _ in range(2)]
        threads += [Thread(at_once, partial(use, rep, False)) for _ in range(2)]
        time.sleep(0.002 * (turn % 5))
        for socket in (req, rep) if turn % 2 else (rep, req):
            socket.close(0)
        assert [type(thread.finish(20)[0]) for thread in threads] == [Closed] * 4
        context.kept.clear()


@pytest.mark.parametrize("call", ["bind", "connect"])
def test_close_while_an_endpoint_is_made(context, endpoint, call, monkeypatch):
    """Whichever comes first: nothing goes on listening or connecting (the leak check looks)."""
    name = "serve" if call == "bind" else "reach"
    make = getattr(connections, name)
    here = context.socket(PULL)

    def make_and_close(*arguments, **options):
        made = make(*arguments, **options)
        Thread(here.close, 0).finish()
        return made

    monkeypatch.setattr(connections, name, make_and_close)
    with pytest.raises(Closed):
        getattr(here, call)(endpoint.replace(":0", ":9" if call == "connect" else ":0"))
    assert here._links.state.endpoints == []
    monkeypatch.undo()
    if call == "bind":  # it is free again
        with context.socket(PULL) as there:
            there.bind(endpoint)


SHAPES = [(b"", b"a"), (b"b" * 10, b"", b"c" * 100), (b"d" * 70_000, b"e"), (b"f",) * 7]


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [(PUSH, PULL), (PAIR, PAIR), (DEALER, DEALER), (PUB, SUB), (ROUTER, DEALER), (DEALER, ROUTER)],
    ids=lambda kind: kind.name,
)
def test_parts_of_one_message_stay_together(context, endpoint, sender, receiver):
    """Messages of many parts and sizes from many threads, some sent part by part."""
    options = {"routing_id": b"there"} if sender is ROUTER else {}
    source = context.socket(sender, sndhwm=0, sndhwm_bytes=0)
    target = context.socket(receiver, rcvtimeo=20_000, **options)
    source.bind(endpoint)
    if receiver is SUB:
        target.subscribe(b"")
    target.connect(source.last_endpoint)
    for socket in (source, target):
        socket.wait_for_peers(1, 10)
    before = [b"there"] if sender is ROUTER else []
    each = 150

    def send(name):
        for number in range(each):
            shape = SHAPES[(name + number) % len(SHAPES)]
            parts = [*before, b"%d:%d:%d" % (name, number, len(shape)), *shape]
            if number % 3:
                source.send_multipart(parts)
                continue
            for part in parts[:-1]:
                source.send(part, transfer.SNDMORE)
            source.send(parts[-1])

    threads = [Thread(send, name) for name in range(THREADS)]
    expected = dict.fromkeys(range(THREADS), 0)
    for _ in range(THREADS * each):
        parts = target.recv_multipart()
        if receiver is ROUTER:
            del parts[0]
        name, number, count = map(int, parts[0].split(b":"))
        assert number == expected[name]
        expected[name] += 1
        assert len(parts) == count + 1
        assert tuple(parts[1:]) == SHAPES[(name + number) % len(SHAPES)]
    for thread in threads:
        thread.finish()
    assert expected == dict.fromkeys(range(THREADS), each)


class Hooked(dict):
    """Does something once, when somebody looks up `key`."""

    def __init__(self, values, key, hook):
        super().__init__(values)
        self.key, self.hook = key, hook

    def __getitem__(self, key):
        if key == self.key and self.hook is not None:
            hook, self.hook = self.hook, None
            hook()
        return super().__getitem__(key)


def test_what_one_thread_began_is_not_undone_by_another_ones_decision(context):
    """The first part of a message comes while another thread decides that nothing is begun."""
    pull, push = pair_of(context, PULL, PUSH)
    began = threading.Event()
    goes_on = threading.Event()

    def send():
        push.send(b"first", transfer.SNDMORE)
        began.set()
        assert goes_on.wait(10)
        push.send(b"last")

    threads = []
    push._values = Hooked(push._values, "resend", lambda: (threads.append(Thread(send)), began.wait(0.3)))
    push._update_fast_paths()
    assert began.wait(10)
    goes_on.set()
    threads[0].finish()
    assert pull.recv_multipart() == [b"first", b"last"]


def test_all_senders_that_wait_go_on_when_there_is_room(context, endpoint):
    """One notice of room, or of a peer, is enough for all who wait."""
    push = context.socket(PUSH, sndhwm=1000)
    sends = [Thread(push.send, b"%d" % number) for number in range(8)]
    time.sleep(0.05)
    pull = context.socket(PULL, rcvtimeo=20_000)
    pull.bind(endpoint)
    push.connect(pull.last_endpoint)
    for thread in sends:
        thread.finish(10)
    assert sorted(pull.recv() for _ in range(8)) == [b"%d" % number for number in range(8)]


# --- parts of a message that are received one by one ---------------------------------------------


@pytest.mark.parametrize("whole", [False, True], ids=["by recv", "some by recv_multipart"])
def test_each_thread_receives_the_parts_of_its_own_messages(context, endpoint, whole):
    pull, push = pair_of(context, PULL, PUSH, endpoint, rcvtimeo=20_000)
    count = 1500

    def send():
        for number in range(count):
            parts = 1 + number % 4
            push.send_multipart([b"%d %d %d" % (number, part, parts) for part in range(parts)])
        for _ in range(THREADS):
            push.send(b"end")

    def receive(name):
        messages = []
        while True:
            parts = [pull.recv()]
            if parts == [b"end"]:
                return messages
            while pull.rcvmore:
                if whole and name % 2:
                    parts += pull.recv_multipart()
                else:
                    parts.append(pull.recv(copy=False).bytes)
            messages.append(parts)

    sending = Thread(send)
    outcomes = at_once(*(lambda name=name: receive(name) for name in range(THREADS)))
    sending.finish()
    received = [message for outcome in outcomes for message in outcome]
    for message in received:
        number, _, parts = message[0].split()
        assert message == [b"%s %d %s" % (number, part, parts) for part in range(int(parts))]
    assert sorted(int(message[0].split()[0]) for message in received) == list(range(count))
    assert not pull.rcvmore


def test_parts_left_behind_are_those_of_the_thread(context):
    """What another thread has not finished is in nobody's way, and ends with that thread."""
    pull, push = pair_of(context, PULL, PUSH)
    push.send_multipart([b"1", b"of the other"])
    push.send_multipart([b"2", b"ours"])
    assert Thread(lambda: (pull.recv(), pull.rcvmore)).finish() == (b"1", True)
    assert not pull.rcvmore
    assert pull.recv() == b"2"
    assert pull.rcvmore and pull.poll(0) == transfer.POLLIN
    assert pull.recv() == b"ours"
    assert not pull.rcvmore and pull.poll(0) == 0
    gc.collect()
    push.send(b"3")
    assert pull.recv() == b"3"
    assert not pull._general_recv, "the core receives alone again"


def test_peers_that_come_do_not_undo_what_a_thread_has_left(context):
    """The reactor decides anew which calls the core may do alone, out of what it saw a moment before."""
    pull, push = pair_of(context, PULL, PUSH, rcvtimeo=20_000)
    push.send_multipart([b"1", b"rest"])
    push.send(b"2")
    main = threading.get_ident()
    seen, received = threading.Event(), threading.Event()

    class Watched(type(pull._pattern)):
        @property
        def ordered(self):  # asked for when all else is known
            if threading.get_ident() != main and not seen.is_set():
                seen.set()
                received.wait(0.5)
            return False

    pull._pattern.__class__ = Watched
    deciding = Thread(pull._update_fast_paths)
    assert seen.wait(20)
    assert pull.recv() == b"1"
    received.set()
    deciding.finish()
    assert [pull.recv(), pull.recv()] == [b"rest", b"2"]


def test_another_thread_has_what_was_put_back(context):
    """It was there when this thread looked, and is gone when it reaches for it."""

    class Gone(deque):
        def __bool__(self):
            return True

    pull, push = pair_of(context, PULL, PUSH, rcvtimeo=20_000)
    pull._returned = Gone()
    pull._update_fast_paths()
    push.send_multipart([b"1", b"2"])
    assert pull.recv_multipart() == [b"1", b"2"]


def test_of_what_is_received_again_each_thread_has_its_own(context):
    """Messages that were asked for as tensors and are none go back, and are received as what they are."""
    pull, push = pair_of(context, PULL, PUSH, rcvtimeo=20_000, compression="lz4")
    count = 600
    sending = Thread(lambda: [push.send_multipart([bytes(5000), b"%d" % number]) for number in range(count)])
    received = Counter()

    def receive():
        while sum(received.values()) < count:
            try:
                pull.recv_tensor(transfer.DONTWAIT)
            except (Again, TensorMismatch):
                pass
            try:
                _, number = pull.recv_multipart(transfer.DONTWAIT)
            except Again:
                continue
            received[int(number)] += 1

    assert at_once(*[receive] * THREADS) == [None] * THREADS
    sending.finish()
    assert received == Counter(range(count))


def test_a_request_that_was_put_back_keeps_its_requester(context):
    """Another thread receives and answers a request in between: the reply goes to who asked first."""
    rep, one = pair_of(context, REP, REQ, rcvtimeo=20_000, compression="lz4")
    other = context.socket(REQ, rcvtimeo=20_000)
    other.connect(rep.last_endpoint)
    rep.wait_for_peers(2, 20)
    one.send(b"of one" * 1000)
    with pytest.raises(TensorMismatch):
        rep.recv_tensor()
    kept = rep._returned.popleft()  # as if a thread were between the two steps of putting it back
    rep._update_fast_paths()
    other.send(b"of the other")
    assert rep.recv() == b"of the other"
    rep._returned.append(kept)
    rep._update_fast_paths()
    with pytest.raises(StateError):
        rep.recv()
    rep.send(b"to the other")
    assert rep.recv() == b"of one" * 1000
    rep.send(b"to one")
    assert (one.recv(), other.recv()) == (b"to one", b"to the other")
