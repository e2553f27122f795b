"""Signals over every transport, while a stream of small messages or a large one is on its way."""

from __future__ import annotations

import pytest

from transports.ucx.installed import bindings

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
        where = {"inproc": "inproc://place", "ipc": f"ipc://{folder}/place"}
        pull.bind(where.get(kind, "tcp://127.0.0.1:*"))
        push.connect(pull.last_endpoint.replace("tcp", "ucx") if kind == "ucx" else pull.last_endpoint)
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
            for number in range(count):
                push.send(number.to_bytes(4, "little") + bytes(size))

        sender = threading.Thread(target=send)
        sender.start()
        call = getattr(pull, how)
        numbers = []
        shots = Shots(signal.SIGINT, pause / 1000, 200)
        while len(numbers) < count:
            for got in interruptible(call):
                part = got[0] if how == "recv_multipart" else got
                numbers.append(int.from_bytes(part[:4], "little"))
        shots.stop()
        sender.join(20)
        assert numbers == list(range(count)), numbers[:100]
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
    no_ucx = pytest.mark.skipif(not bindings(""), reason="there is no UCX here")
    return pytest.mark.parametrize(
        "kind", [pytest.param(kind, marks=no_ucx if kind == "ucx" else ()) for kind in kinds]
    )


def run(source, kind, folder, *arguments, core="native"):
    environment = {"TRANSFER_LOCAL": "on" if kind == "local" else "off", "UCX_TLS": "tcp,self"}
    with Program(source, kind, folder, *arguments, core=core, **environment) as program:
        code, _, errors = program.finish(50)
    assert code == 0, errors[-3000:]


@over("tcp", "local", "ipc")
@pytest.mark.parametrize("how", ["recv", "recv_multipart"])
def test_an_interrupted_receive_of_large_messages_loses_none(kind, how, tmp_path):
    run(_RECEIVE, kind, tmp_path, how, 20_000_000, 6, 10)


@over("tcp", "local", "ipc")
def test_an_interrupted_receive_of_small_messages_loses_none(kind, tmp_path):
    run(_RECEIVE, kind, tmp_path, "recv", 50, 20_000, 1)


@over("tcp", "local", "ipc", "inproc", "ucx")
def test_a_storm_of_signals_changes_nothing(kind, tmp_path):
    run(_STORM, kind, tmp_path)
