"""Closing, lingering, terminating, leaving the interpreter, forking."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket as sockets
import threading
import time
import warnings

import pytest

import transfer
from transfer import PAIR, PUB, PULL, PUSH, REP, REQ, ROUTER, SUB
from transfer.sockets.connections.admission import ConnectionAdmission
from transfer.sockets.connections.state import ConnectionState
from transfer.sockets.peer import Endpoint, Peer
from transfer.transports.address import parse
from transfer.transports.connect.connection import Connected
from transfer.transports.errors import Again, Closed, ContextTerminated, ForkedError, InternalError

from .helpers import TCP, Thread, binds, eventually, pair_of
from .processes import Program


def test_close_sends_what_is_queued(context, endpoint):
    pull, push = pair_of(context, PULL, PUSH, endpoint, sndhwm=0)
    reader = Thread(lambda: [pull.recv() for _ in range(300)])
    for i in range(300):
        push.send(b"%d" % i * 1000)
    assert push.close(20_000) == 0
    assert reader.finish() == [b"%d" % i * 1000 for i in range(300)]


def test_close_tells_how_many_messages_were_not_sent(context):
    pull, push = pair_of(context, PULL, PUSH, sndbuf=4096, rcvbuf=4096)
    payload = b"x" * 1000
    sent = 0
    while push._writable() and sent < 900:
        push.send(payload)
        sent += 1
    unsent = push.close(50)
    assert 0 < unsent < sent
    pull.receive_timeout = 300
    received = 0
    with pytest.raises(Again):
        while True:
            assert pull.recv() == payload
            received += 1
    # Of small messages that shared a write which was cut off, all count as not sent; what is in
    # the kernel when the linger is over counts as sent, and its last bytes may be lost.
    assert received >= sent - unsent - 2


def test_lazy_messages_for_nobody_are_counted_at_close(context):
    push = context.socket(PUSH, immediate=False)
    push.connect("tcp://127.0.0.1:1")
    for _ in range(7):
        push.send(b"x")
    assert push.close(20) == 7


def test_lazy_messages_are_still_delivered_while_close_lingers(context):
    first = context.socket(PULL)
    first.bind(TCP)
    endpoint = first.last_endpoint
    first.close()
    push = context.socket(PUSH, immediate=False, reconnect_ivl=10)
    push.connect(endpoint)
    push.send(b"late")
    closing = Thread(push.close, 20_000)
    second = context.socket(PULL)
    second.bind(endpoint)
    assert second.recv() == b"late"
    assert closing.finish() == 0


def test_credits_that_nobody_read_do_not_turn_the_close_into_a_reset(context):
    for _ in range(5):
        pull, push = pair_of(context, PULL, PUSH)
        for i in range(2000):
            push.send(b"%d" % i)
            if i % 100 == 0:
                pull.recv()
        assert push.close(20_000) == 0
        assert [pull.recv() for _ in range(1980)][-1] == b"1999"
        pull.close()


def test_closing_wakes_a_waiting_receiver_and_sender(context):
    pull, push = pair_of(context, PULL, PUSH)
    receiving = Thread(pull.recv)
    lonely = context.socket(PUSH)
    lonely.bind(TCP)
    sending = Thread(lonely.send, b"x")
    time.sleep(0.05)
    pull.close()
    lonely.close()
    for thread in (receiving, sending):
        with pytest.raises(Closed):
            thread.finish()
    push.close()


def test_a_closed_socket_says_so(context):
    pull, push = pair_of(context, PULL, PUSH)
    push.close()
    assert push.close() == 0
    assert push.closed
    with pytest.raises(Closed):
        push.send(b"x")
    with pytest.raises(Closed):
        push.connect(pull.last_endpoint)
    with pytest.raises(Closed):
        push.sndhwm = 3


def test_with_statements_close(core):
    with transfer.Context(core=core) as context:
        with context.socket(PULL) as pull, pull.bind(TCP):
            endpoint = pull.last_endpoint
            with context.socket(PUSH) as push, push.connect(endpoint):
                push.send(b"x")
                assert pull.recv() == b"x"
        assert pull.closed
        assert push.closed
    with pytest.raises(ContextTerminated):
        context.socket(PULL)


def test_term_closes_what_was_left_open_and_says_so(core):
    context = transfer.Context(core=core)
    rep = context.socket(REP)
    rep.bind(TCP)
    waiting = Thread(rep.recv)
    time.sleep(0.05)
    with pytest.warns(ResourceWarning, match="unclosed <Socket REP"):
        context.term()
    with pytest.raises(Closed):
        waiting.finish()
    context.term()


def test_a_forgotten_socket_is_a_resource_warning(core):
    context = transfer.Context(core=core)
    sockets = [context.socket(REQ)]
    with pytest.warns(ResourceWarning, match="unclosed <Socket REQ"):
        sockets.clear()
    context.term()


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def ends():
    """Both ends of inproc, or a whole context, are a cycle: the next collection finds it."""
    gc.collect()
    return True


def pushed(context, endpoint):
    """Sends by a socket that nobody closes."""
    push = context.socket(PUSH)
    push.connect(endpoint)
    push.send(b"x")


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_dropped_sockets_end_and_send_what_they_had(core, endpoint, caplog):
    with transfer.Context(core=core) as context, context.socket(PULL, rcvtimeo=20_000) as pull:
        pull.bind(endpoint)
        pushed(context, pull.last_endpoint)
        pull.fileno()  # a socket opens its descriptors when it first needs them
        before = open_descriptors()
        for _ in range(20):
            pushed(context, pull.last_endpoint)
        assert [pull.recv() for _ in range(21)] == [b"x"] * 21
        assert eventually(lambda: ends() and not pull.poll(1) and not pull.peers())  # inproc looks in calls
        assert eventually(lambda: ends() and open_descriptors() <= before)
        assert len(context.sockets) == 1
    assert "not sent" not in caplog.text


def test_what_inproc_has_handed_over_is_sent_whether_or_not_it_was_received(context):
    """It counted as not sent, and the close looked for it without a pause for all of its linger."""
    pull, push = pair_of(context, PULL, PUSH, "inproc://handed-over")
    for number in range(5):
        push.send(b"%d" % number)
    assert push.close(60_000) == 0
    assert [pull.recv() for _ in range(5)] == [b"%d" % number for number in range(5)]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_dropped_socket_says_how_much_was_not_sent(core, caplog):
    with transfer.Context(core=core) as context:
        push = context.socket(PUSH, linger=-1, immediate=False)
        push.connect("tcp://127.0.0.1:1")
        push.send(b"lost")
        del push
    assert [r.getMessage() for r in caplog.records if "dropped" in r.getMessage()] == [
        "<Socket PUSH 1 peers> was dropped without close(): 1 messages were not sent"
    ]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_dropped_contexts_end(core):
    def use():
        context = transfer.Context(core=core)
        pull, push = pair_of(context, PULL, PUSH)
        push.send(b"x")
        assert pull.recv() == b"x"

    use()
    gc.collect()
    threads, before = threading.active_count(), open_descriptors()
    for _ in range(5):
        use()
    assert eventually(lambda: ends() and threading.active_count() <= threads)
    assert eventually(lambda: ends() and open_descriptors() <= before)


def test_instance_is_shared_until_it_is_terminated():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = transfer.Context.instance()
        assert transfer.Context.instance() is one
        one.term()
        two = transfer.Context.instance()
        assert two is not one
        two.term()


def test_unbind_frees_the_port_and_keeps_connections(context):
    pull, push = pair_of(context, PULL, PUSH)
    endpoint = pull.last_endpoint
    pull.unbind(endpoint)
    other = context.socket(PULL)
    assert eventually(lambda: binds(other, endpoint))
    push.send(b"x")
    assert pull.recv() == b"x"
    with pytest.raises(transfer.AddressError, match="not bound"):
        pull.unbind(endpoint)


def test_disconnect_ends_the_connection(context):
    pull, push = pair_of(context, PULL, PUSH)
    push.send(b"last")
    push.disconnect(pull.last_endpoint)
    assert pull.recv() == b"last"
    assert push.peers() == []
    assert eventually(lambda: (pull._readable(), pull.peers())[1] == [])
    with pytest.raises(Again):
        push.send(b"x", transfer.DONTWAIT)


def test_a_port_in_use_is_a_typed_error(context):
    one, other = context.socket(PULL), context.socket(PULL)
    one.bind(TCP)
    from transfer.errors import AddressInUse

    assert AddressInUse is transfer.errors.AddressInUse is transfer.AddressInUse
    with pytest.raises(AddressInUse):
        other.bind(one.last_endpoint)


UNSENT = """
    import sys, transfer
    context = transfer.Context()
    push = context.socket(transfer.PUSH, immediate=False)
    push.linger = -1
    push.reconnect_ivl = 10
    push.connect(sys.argv[1])
    push.send(b"unsent")
    print("leaving", flush=True)
"""


def test_the_interpreter_ends_with_unsent_messages(core):
    """Its linger is endless, and nobody comes: the exit has a bound of its own."""
    name = core.__name__.rpartition(".")[2]
    with Program(UNSENT, "tcp://127.0.0.1:1", core=name, TRANSFER_EXIT_LINGER="0.2") as program:
        assert program.line() == "leaving"
        code, _, err = program.finish(30)
        assert "unclosed <Socket PUSH" in err
        assert code == 0


def test_the_exit_sends_what_it_can(context):
    """Also where warnings are errors, as in these programs: the one of the unclosed socket comes last."""
    first = context.socket(PULL)
    first.bind(TCP)
    endpoint = first.last_endpoint
    first.close()
    name = context.core.__name__.rpartition(".")[2]
    with Program(UNSENT, endpoint, core=name, TRANSFER_EXIT_LINGER="20") as program:
        assert program.line() == "leaving"
        second = context.socket(PULL)
        assert eventually(lambda: binds(second, endpoint))
        assert second.recv() == b"unsent"
        code, _, err = program.finish(30)
        assert "unclosed <Socket PUSH" in err
        assert code == 0


SENT_AT_EXIT = """
    import sys, transfer, warnings
    warnings.simplefilter("ignore")
    push = transfer.Context().socket(transfer.PUSH)
    push.connect(sys.argv[1])
    for i in range(1000):
        push.send(b"%d" % i)
"""


def test_what_was_sent_before_the_exit_arrives(context):
    pull = context.socket(PULL)
    pull.bind(TCP)
    with Program(SENT_AT_EXIT, pull.last_endpoint, core=context.core.__name__.rpartition(".")[2]) as program:
        assert [pull.recv() for _ in range(1000)] == [b"%d" % i for i in range(1000)]
        assert program.finish()[0] == 0


def test_use_after_fork_is_refused_and_the_parent_is_unharmed(context):
    one, other = pair_of(context, PAIR, PAIR)
    one.send(b"before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        code = 1
        try:
            refused = 0
            for call in (lambda: one.send(b"child"), other.recv, lambda: context.socket(PAIR), one.poll):
                try:
                    call()
                except ForkedError:
                    refused += 1
            one.close()
            context.destroy()
            code = 0 if refused == 4 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other.send(b"after")
    assert other.recv() == b"before"
    assert one.recv() == b"after"


def test_a_child_reads_and_changes_nothing_of_its_parents(context):
    """Not even the kernel's buffers, which both have, and no lock that another thread held at the fork."""
    one, other = pair_of(context, PAIR, PAIR)
    pub, router = context.socket(PUB), context.socket(ROUTER)
    begun, done = threading.Event(), threading.Event()

    def holds():
        with context._transfer_lock, one._links.state.lock, pub._links.state.lock:
            begun.set()
            done.wait(30)

    holder = threading.Thread(target=holds)
    holder.start()
    assert begun.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            for call in (
                one.peers,
                pub.subscribers,
                router.routes,
                lambda: one.set("sndbuf", 8192),
                lambda: setattr(one, "sndhwm", 3),
                lambda: setattr(one, "spin_us", 3),
            ):
                with pytest.raises(ForkedError):
                    call()
            code = 0 if (one.close(), context.term(), context.destroy()) == (0, None, 0) else 2
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    done.set()
    holder.join(10)
    assert os.waitstatus_to_exitcode(status) == 0
    one.send(b"after")
    assert other.recv() == b"after"
    assert len(one.peers()) == 1


def test_a_child_makes_a_context_of_its_own(context):
    pull = context.socket(PULL)
    pull.bind(TCP)
    endpoint = pull.last_endpoint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        code = 1
        try:
            with transfer.Context(core=context.core) as mine:
                push = mine.socket(PUSH)
                push.connect(endpoint)
                push.send(b"from the child")
                code = push.close(5000)
        finally:
            os._exit(code)
    assert pull.recv() == b"from the child"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_connection_that_comes_when_the_context_ends_is_closed(context):
    """It was put back until `connect` has returned, and the reactor ended before."""
    push = context.socket(PUSH)
    context.start()
    record = Endpoint(parse("tcp://127.0.0.1:1"), 0.0, outgoing=True)
    push._links.state.endpoints.append(record)
    ours = [sockets.socketpair() for _ in range(2)]

    def comes(near):
        push._links.admission.connected(record, Connected(near.detach(), None, None, record.address, "peer"))

    def end():
        comes(ours[0][0])  # waits in the reactor's queue
        context.reactor.close()
        comes(ours[1][0])

    context.reactor.call_soon(end)
    for _, far in ours:
        far.settimeout(20)
        assert far.recv(1) == b""
        far.close()
    push._links.state.endpoints.remove(record)


@pytest.mark.parametrize("receives", [False, True], ids=["sends", "receives"])
def test_a_connection_that_cannot_be_used_ends_and_comes_again(context, monkeypatch, caplog, receives):
    """What fails when it is taken in is told once, leaves no descriptor, and stops nothing."""
    failing = context.socket(PULL if receives else PUSH, reconnect_ivl=1)
    peer = context.socket(PUSH if receives else PULL)
    peer.bind(TCP)
    attach = failing._links.state.attach
    failures = []

    def once(socket, stream, sends=True):
        if not failures and stream.fd >= 0:
            failures.append(stream)
            raise InternalError("no memory in the kernel")
        return attach(socket, stream, sends)

    monkeypatch.setattr(failing._links.state, "attach", once)
    failing.connect(peer.last_endpoint)
    failing.wait_for_peers(1, 20)
    peer.wait_for_peers(1, 20)
    assert failures[0].fd == -1
    assert failing._links.state.counts["disconnected"] == 1
    assert [record.getMessage() for record in caplog.records if "cannot be used" in record.getMessage()]
    sender, receiver = (peer, failing) if receives else (failing, peer)
    assert eventually(lambda: len(sender.peers()) == 1)
    sender.send(b"x")
    assert receiver.recv() == b"x"


def test_peers_cannot_make_counters_without_end(context):
    """Reasons of refusals are words of the peer's; a few hundred are kept, then they are others."""
    pull = context.socket(PULL)
    for number in range(2000):
        pull._links.state.count(f"refused:{number}:{number}")
        pull._links.state.count(f"fallback:rdma:tcp:{number}")
    pull._links.state.count("connected", 7)
    counts = pull._links.state.counts
    assert len(counts) < 600
    assert counts["connected"] == 7
    assert counts["fallback:rdma:tcp:other"] > 1000
    for name in ("refused:", "fallback:rdma:tcp:"):
        assert sum(count for word, count in counts.items() if word.startswith(name)) == 2000


WAITING_DAEMON = """
    import sys, threading, time
    import transfer as ours, transfer.zmq as zmq
    def wait(make, call):
        made = make.Context.instance().socket("PUSH" if call == "send" else "PULL")
        kept.append(made)
        made.bind("tcp://127.0.0.1:0")
        begun.release()
        arguments = {"send": [b"x"], "poll": [-1], "wait_for_peers": [1, None]}
        while True:
            getattr(made, call)(*arguments.get(call, []))
    kept, begun = [], threading.Semaphore(0)
    if sys.argv[1:]:
        threading.excepthook = lambda args: print("hook", args.exc_type.__name__, file=sys.stderr)
    for make in (ours, zmq):
        for call in ("recv", "recv_multipart", "send", "poll", "wait_for_peers"):
            threading.Thread(target=wait, args=(make, call), daemon=True).start()
            begun.acquire(timeout=20)
    failing = threading.Thread(target=lambda: 1 / 0, daemon=True)
    failing.start()
    failing.join()
    print("leaving", flush=True)
"""


@pytest.mark.parametrize("arguments", [(), ("a hook of its own",)])
def test_daemons_that_wait_end_with_the_interpreter_in_silence(core, arguments):
    """What other threads raise is printed as ever, by the program's hook if it has one."""
    name = core.__name__.rpartition(".")[2]
    with Program(WAITING_DAEMON, *arguments, core=name) as program:
        assert program.line() == "leaving"
        code, _, err = program.finish(30)
    assert code == 0
    assert "ZeroDivisionError" in err
    assert "Closed" not in err


def test_a_socket_is_closed_while_a_connection_begins(context, monkeypatch, caplog):
    """Its descriptor is closed before the reactor watches it: no traceback."""
    push = context.socket(transfer.PUSH)
    watch, closed = ConnectionAdmission._watch, threading.Event()

    def closing(admission, peer):
        if admission is push._links.admission:
            closing_one = threading.Thread(target=push.close, args=(0,))
            closing_one.start()
            eventually(lambda: push.closed)
            closing_one.join(20)
            closed.set()
        watch(admission, peer)

    monkeypatch.setattr(ConnectionAdmission, "_watch", closing)
    pull = context.socket(transfer.PULL)
    pull.bind("tcp://127.0.0.1:0")
    push.connect(pull.last_endpoint)
    assert closed.wait(20)
    assert "cannot be used" not in caplog.text


def test_a_connection_of_which_no_stream_can_be_made_is_dropped(context, monkeypatch, caplog):
    """More came by TLS than the handshake's part: no traceback, and the next one is served."""
    make, failed = ConnectionState.new_stream, []

    def fails_once(state, *arguments):
        if not failed:
            failed.append(1)
            raise OSError(errno.EPROTO, "the peer sent more than its part of the handshake")
        return make(state, *arguments)

    monkeypatch.setattr(ConnectionState, "new_stream", fails_once)
    pull, push = context.socket(transfer.PULL), context.socket(transfer.PUSH)
    pull.bind("tcp://127.0.0.1:0")
    push.connect(pull.last_endpoint)

    def served():
        push.send(b"served")  # the first one may have gone into the connection that was dropped
        return pull.poll(200)

    eventually(served, 20)
    assert failed
    assert "callback" not in caplog.text


def test_one_more_connection_costs_the_same_however_many_there_are(context, monkeypatch):
    """Each is compared with those of its own endpoint, not with all: ten thousand took half a minute."""
    looked_at = 0
    origin = Peer.origin

    def counted(peer):
        nonlocal looked_at
        looked_at += 1
        return origin.fget(peer)

    monkeypatch.setattr(Peer, "origin", property(counted))
    with context.socket(PULL) as pull:
        pull.bind(TCP)
        pushes = []
        counts = []
        for count in (20, 60, 60):
            looked_at = 0
            for _ in range(count):
                pushes.append(context.socket(PUSH))
                pushes[-1].connect(pull.last_endpoint)
            pull.wait_for_peers(len(pushes), 20)
            assert eventually(lambda: all(push.peers() for push in pushes))
            counts.append(looked_at / count)
        assert max(counts) < 1.5 * min(counts), counts
        for push in pushes:
            push.close(0)
        assert eventually(lambda: not pull.peers())
        assert not pull._links.state._by_origin


class _SlowDict(dict):
    """A dict that gives another thread time after the first value."""

    meanwhile = None

    def values(self):
        for number, value in enumerate(super().values()):
            yield value
            if number == 0 and self.meanwhile is not None:
                thread, self.meanwhile = self.meanwhile, None
                thread.start()
                thread.join(0.1)


@pytest.mark.parametrize(("kind", "other"), [(PULL, PUSH), (PUB, SUB)])
def test_a_peer_that_arrives_while_peers_are_counted_waits_for_the_count(context, kind, other):
    """The reactor added a peer between two looks of `wait_for_peers`, which raised a RuntimeError."""
    peers = [context.socket(other) for _ in range(3)]
    if kind is PUB:
        for peer in peers:
            peer.subscribe(b"")
    bound = context.socket(kind)
    bound.bind(TCP)
    state = bound._links.state
    whole = state if kind is PULL else state.pattern
    name = "peers" if kind is PULL else "_subscriptions"
    for peer in peers[:2]:
        peer.connect(bound.last_endpoint)
    bound.wait_for_peers(2, 20)
    with state.lock:
        setattr(whole, name, counted := _SlowDict(getattr(whole, name)))
    counted.meanwhile = arrival = threading.Thread(target=lambda: _arrive(peers[2], bound, 3))
    bound.wait_for_peers(2, 20)
    assert counted.meanwhile is None, "a count was interrupted by the arrival"
    arrival.join(20)
    assert not arrival.is_alive() and len(bound.peers()) == 3


def _arrive(peer, bound, count):
    """Connects, and returns when the socket has its peer."""
    peer.connect(bound.last_endpoint)
    bound.wait_for_peers(count, 20)
