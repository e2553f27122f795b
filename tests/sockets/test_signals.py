"""Signals over every transport, while a stream of small messages or a large one is on its way."""

from __future__ import annotations

import signal
import threading

import pytest

from transfer.transports.ucx.installed import available

from .processes import Program

#: one program, two sockets and a handler of SIGINT that raises only inside of `interruptible`, as a program
#: sees it that is interrupted in a call
_BEGIN = """
    import itertools, os, signal, sys, threading, time
    import transfer

    kind, folder = sys.argv[1:3]
    main = threading.get_ident()
    inside = False
    hits = 0

    def handler(number, frame):
        global inside, hits
        if inside:
            inside = False
            hits += 1
            raise KeyboardInterrupt

    def interruptible(call, *arguments):
        # None: it was interrupted; else [result]. No bytecode stands between the call and the list.
        global inside
        got = []
        try:
            inside = True
            got.extend(itertools.starmap(call, [arguments]))
            inside = False
        except KeyboardInterrupt:
            pass
        except BaseException:
            inside = False
            raise
        return got

    def pair(context, **options):
        pull, push = context.socket(transfer.PULL, **options), context.socket(transfer.PUSH, **options)
        where = {"inproc": "inproc://place", "ipc": f"ipc://{folder}/place", "ucx": "ucx://127.0.0.1:*"}
        pull.bind(where.get(kind, "tcp://127.0.0.1:*"))
        push.connect(pull.last_endpoint)
        push.wait_for_peers(1, 20)
        assert kind not in ("ucx", "local") or push.peers()[0].transport == kind
        return pull, push

    class Shots(threading.Thread):
        # Sends a signal to the main thread again and again, so many times at most.
        def __init__(self, number, pause, most):
            super().__init__(daemon=True)
            self.number, self.pause, self.most = number, pause, most
            self.ended = threading.Event()
            self.start()

        def run(self):
            for _ in range(self.most):
                if self.ended.wait(self.pause):
                    return
                signal.pthread_kill(main, self.number)

        def missed(self):
            # None has hit yet, and there are more to come.
            return not hits and self.is_alive()

        def stop(self):
            self.ended.set()
            self.join(20)

    signal.signal(signal.SIGINT, handler)
"""

_RECEIVE = (
    _BEGIN
    + """
    how, size, count, pause = sys.argv[3], *map(int, sys.argv[4:7])
    with transfer.Context() as context:
        pull, push = pair(context, rcvtimeo=20000, sndtimeo=20000)

        def send():
            for number in itertools.count():
                over = number >= count and not shots.missed()
                push.send((-1 if over else number).to_bytes(4, "little", signed=True) + bytes(size))
                if over:
                    break

        shots = Shots(signal.SIGINT, pause / 1000, 200)
        sender = threading.Thread(target=send)
        sender.start()
        call = getattr(pull, how)
        numbers = [0]
        while numbers[-1] >= 0:
            for got in interruptible(call):
                part = got[0] if how == "recv_multipart" else got
                numbers.append(int.from_bytes(part[:4], "little", signed=True))
        shots.stop()
        sender.join(20)
        assert numbers[1:-1] == list(range(len(numbers) - 2)), numbers[:100]
        assert hits
        for call in (pull.recv, lambda: pull.poll(-1), lambda: push.wait_for_peers(2, 60)):
            shots = Shots(signal.SIGINT, 0.02, 1)
            assert interruptible(call) == []
            shots.stop()
        push.send(b"usable")
        assert pull.recv() == b"usable"
        push.close()
        pull.close()
    """
)

#: numbers of messages whose sends are interrupted: each comes whole, once and in its order, if it comes; it
#: comes if its send was not interrupted, or what did not come is counted
_SEND = (
    _BEGIN
    + """
    import numpy

    how, size, count, pause = sys.argv[3], *map(int, sys.argv[4:7])
    parts = [size // 2, 0, size - size // 2] if how == "send_multipart" else [size]

    def message(number):
        if how == "send_tensor":
            return numpy.full(max(1, size // 8), number, numpy.int64)
        whole = [number.to_bytes(8, "little") * max(1, part // 8) for part in parts]
        return whole if how == "send_multipart" else whole[0]

    def number_of(got):
        values = set(numpy.unique(numpy.frombuffer(b"".join(got), numpy.int64)).tolist())
        assert len(got) == len(parts) and len(values) == 1, (len(got), sorted(values)[:5])
        return values.pop()

    with transfer.Context() as context:
        pull, push = pair(context, rcvtimeo=20000, sndtimeo=20000)
        numbers, last = [], 1 << 40

        def receive():
            while not numbers or numbers[-1] != last:
                numbers.append(number_of(pull.recv_multipart()))

        receiver = threading.Thread(target=receive)
        receiver.start()
        returned = []
        shots = Shots(signal.SIGINT, pause / 1000, 200)
        monitor = push.get_monitor()
        for number in itertools.count():
            if number >= count and not shots.missed():
                break
            if interruptible(getattr(push, how), message(number)):
                returned.append(number)
        shots.stop()
        push.wait_for_peers(1, 20)
        getattr(push, how)(message(last))
        receiver.join(30)
        assert not receiver.is_alive(), numbers[-5:]
        assert numbers == sorted(set(numbers)), "twice, or out of order"
        assert hits
        push.close()
        counted = 0
        while (event := monitor.recv(5)).kind != "closed":
            counted += event.count if event.kind == "unconfirmed" else 0
        missing = set(returned) - set(numbers)
        assert len(missing) <= counted, (len(missing), counted)
        pull.close()
    """
)

#: the handler runs wherever the interpreter lets it, also between the return of a call and the assignment
_DIRECT = (
    _BEGIN
    + """
    size, count = map(int, sys.argv[3:5])
    with transfer.Context() as context:
        pull, push = pair(context, rcvtimeo=20000, sndtimeo=20000)
        sender = threading.Thread(target=lambda: [push.send(bytes([n]) * size) for n in range(count)])
        sender.start()
        numbers = []
        shots = Shots(signal.SIGINT, 0.005, 100)
        while len(numbers) < count:
            try:
                inside = True
                got = pull.recv()
                inside = False
            except KeyboardInterrupt:
                continue
            numbers.append(got[-1])
        shots.stop()
        sender.join(20)
        assert numbers == list(range(count)), numbers
        assert hits > 10
        push.close()
        pull.close()
    """
)

#: a handler that returns: 1,000 signals a second, and calls whose times stay true
_STORM = (
    _BEGIN
    + """
    count = 20000
    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    with transfer.Context() as context:
        pull, push = pair(context, rcvtimeo=20000, sndtimeo=20000)
        sender = threading.Thread(target=lambda: [push.send(b"%d" % number) for number in range(count)])
        sender.start()
        assert [int(pull.recv()) for _ in range(count)] == list(range(count))
        sender.join(20)
        threading.Thread(target=push.send, args=(bytes(20_000_000),)).start()
        assert pull.recv() == bytes(20_000_000)
        pull.rcvtimeo = 100
        for call in (pull.recv, pull.recv_multipart, lambda: push.wait_for_peers(2, 0.1)):
            before = time.monotonic()
            try:
                call()
            except transfer.Again:
                assert time.monotonic() - before >= 0.1
            else:
                raise AssertionError("it ended without its time-out")
        before = time.monotonic()
        assert not pull.poll(100) and time.monotonic() - before >= 0.1
        signal.setitimer(signal.ITIMER_REAL, 0)
        push.close()
        pull.close()
    assert len(rung) > 100
    """
)


def over(*kinds):
    no_ucx = pytest.mark.skipif(not available(), reason="there is no UCX here")
    return pytest.mark.parametrize(
        "kind", [pytest.param(kind, marks=no_ucx if kind == "ucx" else ()) for kind in kinds]
    )


def run(source, kind, folder, *arguments, core="native"):
    environment = {"TRANSFER_LOCAL": "on" if kind == "local" else "off", "UCX_TLS": "tcp,self"}
    with Program(source, kind, folder, *arguments, core=core, **environment) as program:
        code, _, errors = program.finish(50)
    assert code == 0, errors[-3000:]


@over("tcp", "local", "ipc", "inproc")
@pytest.mark.parametrize("how", ["recv", "recv_multipart"])
def test_an_interrupted_receive_of_large_messages_loses_none(kind, how, tmp_path):
    run(_RECEIVE, kind, tmp_path, how, 20_000_000, 6, 10)


@over("local")
def test_an_interrupted_copy_of_a_large_message_loses_none(kind, tmp_path):
    run(_DIRECT, kind, tmp_path, 60_000_000, 5)


@over("tcp", "local", "ipc", "inproc")
def test_an_interrupted_receive_of_small_messages_loses_none(kind, tmp_path):
    run(_RECEIVE, kind, tmp_path, "recv", 50, 20_000, 1)


@over("tcp", "local", "ipc", "inproc")
@pytest.mark.parametrize(
    "how", ["send", "send_tensor", pytest.param("send_multipart", marks=pytest.mark.slow)]
)
def test_an_interrupted_send_of_small_messages_is_whole_or_not_at_all(kind, how, tmp_path):
    run(_SEND, kind, tmp_path, how, 96, 20000 if how == "send" else 4000, 1)


@over("tcp", "local", "ipc", "inproc", "ucx")
def test_a_storm_of_signals_changes_nothing(kind, tmp_path):
    run(_STORM, kind, tmp_path)


#: a receiver that prints what came (how many, how many of them different, the highest), and a sender of
#: numbers until a line is read; both print a line when it goes
_ONE_SIDE = """
    import sys, threading, transfer

    side, endpoint, heartbeat = sys.argv[1], sys.argv[2], int(sys.argv[3])
    context = transfer.Context()
    made = context.socket(getattr(transfer, side), sndtimeo=50000, rcvtimeo=50000, resend=True)
    if heartbeat:
        made.heartbeat_ivl, made.heartbeat_timeout = heartbeat, 2 * heartbeat
    if side == "PULL":
        made.bind(endpoint)
        print(made.last_endpoint, flush=True)
        came, count = set(), 0
        while (number := int(made.recv())) >= 0:
            count += 1
            came.add(number)
            if count == 1000:
                print("going", flush=True)
        print(count, len(came), max(came), flush=True)
    else:
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
        made.connect(endpoint)
        number = 0
        while not over.is_set() or number < 2000:
            number += 1
            made.send(b"%d" % number)
            if number == 1000:
                print("going", flush=True)
        made.send(b"-1")
        print(number, flush=True)
        made.close(60000)
"""


def sides(kind, folder, heartbeat=0):
    """The two programs, not begun: functions that begin one."""
    local = {"TRANSFER_LOCAL": "on" if kind == "local" else "off", "UCX_TLS": "tcp,self"}

    def begin(side, endpoint):
        return Program(_ONE_SIDE, side, endpoint, heartbeat, core="native", **local)

    where = {"ipc": f"ipc://{folder}/place", "ucx": "ucx://127.0.0.1:*"}
    return begin, where.get(kind, "tcp://127.0.0.1:*")


def stopped(kind, folder, who, seconds, heartbeat=0):
    """One of two processes is stopped for a while: (sent, (received, different ones, highest))."""
    begin, place = sides(kind, folder, heartbeat)
    with begin("PULL", place) as pull, begin("PUSH", pull.line()) as push:
        assert (push.line(), pull.line()) == ("going", "going")
        victim = {"PUSH": push, "PULL": pull}[who].process
        victim.send_signal(signal.SIGSTOP)
        threading.Event().wait(seconds)
        victim.send_signal(signal.SIGCONT)
        push.tell()
        received = tuple(map(int, pull.line().split()))
        return int(push.line()), received


@over("tcp", "ucx")
def test_a_process_that_is_stopped_for_a_moment_loses_nothing(kind, tmp_path):
    sent, received = stopped(kind, tmp_path, "PUSH" if kind == "tcp" else "PULL", 2)
    assert received == (sent,) * 3


def test_a_stop_beyond_the_heartbeats_time_out_loses_nothing_with_resend(tmp_path):
    sent, (count, different, highest) = stopped("tcp", tmp_path, "PULL", 2, heartbeat=200)
    assert different == highest == sent  # the connection is replaced, and what was unconfirmed comes again
    assert count >= sent


@pytest.mark.slow
@pytest.mark.timeout(120)
@over("tcp", "local", "ipc", "ucx")
@pytest.mark.parametrize("who", ["PUSH", "PULL"])
def test_a_process_that_is_stopped_for_half_a_minute_loses_nothing(kind, who, tmp_path):
    sent, received = stopped(kind, tmp_path, who, 30)
    assert received == (sent,) * 3


@pytest.mark.parametrize(
    "kind", ["tcp", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("local", "ipc", "ucx"))]
)
def test_the_peers_of_a_terminated_process_go_on_with_the_next(kind, tmp_path):
    begin, place = sides(kind, tmp_path)
    with begin("PULL", place) as pull:
        endpoint = pull.line()
        with begin("PUSH", endpoint) as push:
            assert (push.line(), pull.line()) == ("going", "going")
            push.process.terminate()
            assert push.process.wait(20) == -signal.SIGTERM
        with begin("PUSH", endpoint) as push:
            assert push.line() == "going"
            push.tell()
            sent, (count, _, highest) = int(push.line()), map(int, pull.line().split())
            assert count >= sent + 1000 and highest >= sent
