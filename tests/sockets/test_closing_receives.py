"""A socket that is closed while another thread is inside a large receive, over every transport.

The messages come from another process, one behind the other, which is stopped most of the time where they
are to trickle: then no message is whole before the test is over.
"""

from __future__ import annotations

import pytest

from tests.sockets.processes import Program
from tests.sockets.test_signals import over
from transfer.certificates import Authority

MIB = 1 << 20
#: over `local` a message of this size lies in shared memory; a larger one would go through the Unix socket
SIZES = {"local": 64 * MIB, "inproc": 64 * MIB}

#: sends tensors to each endpoint that it reads, until nobody takes them
_SENDER = """
    import sys, numpy, transfer

    message = numpy.zeros(int(sys.argv[1]), numpy.uint8)
    message[:] = 255
    with transfer.Context() as context:
        for endpoint in sys.stdin:
            with context.socket(transfer.PUSH, linger=0, sndtimeo=200) as push:
                push.connect(endpoint.strip())
                push.wait_for_peers(1, 20)
                peer = push.peers()[0]
                print("tls" if peer.encrypted else peer.transport, flush=True)
                try:
                    while push.peers():
                        push.send_tensor(message)
                except (transfer.Again, transfer.Broken):
                    pass
            print("over", flush=True)
"""

_RECEIVER = """
    import gc, os, signal, sys, threading, time
    import numpy, transfer

    kind, folder, pace, size, rounds, sender = *sys.argv[1:4], *map(int, sys.argv[4:7])
    where = {"inproc": "inproc://place", "ipc": f"ipc://{folder}/place", "ucx": "ucx://127.0.0.1:*"}
    memory = numpy.zeros(size, numpy.uint8)
    plain = bytearray(size)
    ways = [
        lambda pull: pull.recv(),
        lambda pull: pull.recv(copy=False),
        lambda pull: pull.recv_into(plain),
        lambda pull: pull.recv_tensor(out=memory),
    ]

    def receives(pull, way, came, ends):
        try:
            while True:
                way(pull)
                came.append(1)
        except BaseException as error:
            ends.append(error.with_traceback(None))

    class Trickle(threading.Thread):
        # The sender runs for moments only.
        def __init__(self):
            super().__init__(daemon=True)
            self.over = threading.Event()
            self.start()

        def run(self):
            while pace == "trickle" and not self.over.is_set():
                os.kill(sender, signal.SIGSTOP)
                self.over.wait(0.3)
                os.kill(sender, signal.SIGCONT)
                time.sleep(0.0005)

    def floods(push):
        message = numpy.zeros(size, numpy.uint8)
        try:
            while True:
                push.send_tensor(message)
        except transfer.Closed:
            return

    def once(context, way, delay):
        pull = context.socket(transfer.PULL)
        pull.bind(where.get(kind, "tcp://127.0.0.1:*"))
        came, ends = [], []
        thread = threading.Thread(target=receives, args=(pull, way, came, ends), daemon=True)
        thread.start()
        if kind == "inproc":
            push = context.socket(transfer.PUSH)
            push.connect(pull.last_endpoint)
            sending = threading.Thread(target=floods, args=(push,))
            sending.start()
        else:
            print(pull.last_endpoint, flush=True)
            sys.stdin.readline()  # it is sending
            trickle = Trickle()
        time.sleep(delay)
        before = len(came)
        pull.close(0)
        lease = memoryview(context.pool.lease(size))
        lease[:: 4096] = bytes(len(lease[:: 4096]))
        thread.join(20)
        if kind == "inproc":
            push.close(0)
            sending.join(20)
        else:
            trickle.over.set()
            trickle.join(20)
        assert not thread.is_alive(), "the receive does not leave"
        assert type(ends[0]) is transfer.Closed, repr(ends[0])
        assert len(came) - before <= 1, "the flood went on behind the close"
        assert not any(lease[:: 4096]), "a closed socket wrote into memory of others"
        del lease
        until = time.monotonic() + 10
        while context.pool.in_use and time.monotonic() < until:
            gc.collect()
            time.sleep(0.01)
        assert not context.pool.in_use, context.pool.in_use
        if kind != "inproc":
            sys.stdin.readline()  # the sender is done

    def held():
        with open("/proc/self/maps") as maps:
            shared = maps.read().count("memfd:transfer")
        # UCX keeps connections, also such as it has ended.
        return 0 if kind == "ucx" else len(os.listdir("/proc/self/fd")), shared, threading.active_count()

    left = []
    for number, way in enumerate((ways[0], *ways[-rounds:])):
        with transfer.Context() as context:
            once(context, way, 0.05 + 0.013 * number)
        del context
        gc.collect()
        left.append(held())
    assert left[-1] == left[0], left
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def tls_variables(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("authority"))
    issued = authority.issue()
    return {
        "TRANSFER_TLS_CERT": str(issued.certificate),
        "TRANSFER_TLS_KEY": str(issued.key),
        "TRANSFER_TLS_CA": str(authority.path),
    }


def closed_inside(kind, folder, pace, tls_variables, core="native", rounds=4):
    size = SIZES.get(kind, 256 * MIB)
    environment = {"TRANSFER_LOCAL": "on" if kind == "local" else "off", "UCX_TLS": "tcp,self"}
    environment["PYTHONFAULTHANDLER"] = "1"
    if kind == "tls":
        environment.update(tls_variables)
    with Program(_SENDER, size, core=core, **environment) as sender:
        arguments = (kind, folder, pace, size, rounds, sender.process.pid)
        with Program(_RECEIVER, *arguments, core=core, **environment) as receiver:
            while (line := receiver.line()) != "done":
                sender.tell(line)
                assert sender.line() == kind
                receiver.tell()
                assert sender.line() == "over"
                receiver.tell()
            code, _, errors = receiver.finish()
            assert code == 0, errors[-3000:]


@over("local", "inproc", "tls")  # UCX itself may crash there: tests/ucx/isolated/crash_closing.py
def test_a_receive_leaves_a_flood_when_its_socket_is_closed(kind, tmp_path, tls_variables):
    closed_inside(kind, tmp_path, "flood", tls_variables, rounds=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("core", ["native", "pure"])
@pytest.mark.parametrize("pace", ["trickle", "flood"])
@over("tcp", "ipc", "local", "tls", "ucx")
def test_any_receive_leaves_when_its_socket_is_closed(kind, pace, core, tmp_path, tls_variables):
    try:
        closed_inside(kind, tmp_path, pace, tls_variables, core)
    except AssertionError as error:
        _, crash, stack = str(error).partition("Segmentation fault")
        inside = "/transports/ucx/" in stack.partition("File")[2].partition("File")[0] or "libuc" in stack
        if kind == "ucx" and crash and inside:
            pytest.skip("UCX's own TCP crashed: tests/ucx/isolated/crash_closing.py")
        raise


@pytest.mark.slow
@pytest.mark.parametrize("core", ["native", "pure"])
def test_any_receive_in_one_process_leaves_when_its_socket_is_closed(core, tmp_path, tls_variables):
    closed_inside("inproc", tmp_path, "flood", tls_variables, core)


_HALF = """
    import gc, importlib, random, socket, sys, threading, time
    import numpy, transfer
    from transfer.tensors.export import export
    from transfer.transports.core.frames import encode_head

    size, rounds = 48 << 20, 12
    memory = numpy.zeros(size, numpy.uint8)
    bits, header, _ = export(memory)
    sent = encode_head(4, bits, 1, None, header, b"", size) + bytes(size // 2)
    with transfer.Context() as context:
        for number in range(rounds):
            pull = context.socket(transfer.PULL, rcvtimeo=150)
            pull.bind("tcp://127.0.0.1:*")
            ended = []

            def receive():
                try:
                    pull.recv_tensor(out=memory)
                except transfer.TransferError as error:
                    ended.append(type(error))

            with socket.create_connection(("127.0.0.1", int(pull.last_endpoint.rpartition(":")[2]))) as peer:
                peer.sendall(sent[:100])
                receiver = threading.Thread(target=receive)
                receiver.start()
                peer.sendall(sent[100:])
                time.sleep(0.15 + random.uniform(-0.05, 0.03))
                pull.close(0)
                receiver.join(10)
            assert ended and not receiver.is_alive()
            gc.collect()
            deadline = time.monotonic() + 5
            while context.pool.in_use and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not context.pool.in_use, (number, ended)
"""


@pytest.mark.parametrize("core", ["native", "pure"])
def test_half_a_tensor_is_dropped_if_the_receive_times_out_as_the_socket_closes(core):
    """The rest went to memory of the pool while another thread dropped what was unread: it stayed there."""
    with Program(_HALF, core=core) as program:
        code, _, errors = program.finish(60)
    assert code == 0, errors
