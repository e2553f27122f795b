"""Messages that are allowed by `maxmsgsize` and that the machine cannot hold: one connection ends."""

from __future__ import annotations

import pytest

from tests.core.raw_frames import TENSOR, Raw
from tests.faults.raw_peer import raw_peer, send_frames
from tests.faults.test_bad_peer import Watched, header
from tests.sockets.processes import Program
from transfer import PUSH
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again, InternalError

FRAMES = {
    "bytes": lambda size: Raw(bytes(100_000), length=size),
    "a beginning": lambda size: Raw(bytes(100), length=size),
    "a tensor": lambda size: Raw(bytes(100_000), TENSOR, meta=header(8, 1, size), length=size),
}
CALLS = {
    "recv": lambda pull: pull.recv(),
    "recv without copy": lambda pull: pull.recv(copy=False),
    "recv_multipart": lambda pull: pull.recv_multipart(),
    "recv_tensor": lambda pull: pull.recv_tensor(),
}
CASES = [(frame, call) for frame in FRAMES for call in CALLS if frame == "a tensor" or call != "recv_tensor"]


# Beyond what a process can address, so that no setting of the kernel's promises it.
@pytest.mark.parametrize("size", [1 << 48, 1 << 62])
@pytest.mark.parametrize(("frame", "call"), CASES)
def test_it_ends_its_connection_and_no_other(context, frame, call, size):
    watched = Watched(context, maxmsgsize=2**63 - 1)
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, FRAMES[frame](size))

        def look():
            watched.pull.receive_timeout = 20
            with pytest.raises(Again):
                CALLS[call](watched.pull)

        watched.refuses(bare, "no_memory", look)
    watched.pull.receive_timeout = 10_000
    watched.nobody_noticed()


def test_a_terabyte(context):
    """What began this: 2 TB are allowed, and a peer says that it sends one."""
    watched = Watched(context, maxmsgsize=2 << 40)
    try:
        context.pool.lease(1 << 40)
    except InternalError:
        pass
    else:
        pytest.skip("this kernel promises a terabyte")
    with raw_peer(watched.pull.last_endpoint) as bare:
        send_frames(bare, Raw(bytes(1000), length=1 << 40))
        watched.refuses(bare, "no_memory")
    watched.nobody_noticed()


def test_none_to_send_only_sockets_either(context):
    """A PUSH is sent data by a peer that must not: the reactor finds it, and lives on."""
    push = context.socket(PUSH, maxmsgsize=2**63 - 1)
    push.bind("tcp://127.0.0.1:0")
    monitor = push.get_monitor()
    kinds = []
    with raw_peer(push.last_endpoint, kind=SocketType.PULL) as bare:
        send_frames(bare, Raw(bytes(100_000), length=1 << 62))
        while "disconnected" not in kinds:
            event = monitor.recv(10)
            kinds.append(event.kind)
            if event.kind == "protocol_failed":
                assert event.reason == "no_memory"
    assert "protocol_failed" in kinds


LEAVING = """
    import contextlib, resource, sys
    import numpy, transfer
    from tests.core.raw_frames import TENSOR, Raw
    from tests.faults.raw_peer import is_closed, next_event, raw_peer, send_frames
    from tests.faults.test_bad_peer import header
    from tests.sockets.helpers import pair_of

    SIZE = 512 << 20
    with transfer.Context() as context:
        pull, push = pair_of(context, transfer.PULL, transfer.PUSH, rcvtimeo=500)
        out = numpy.empty(SIZE, numpy.uint8)
        monitor = pull.get_monitor()
        with raw_peer(pull.last_endpoint) as bare:
            send_frames(bare, Raw(bytes(1000_000), TENSOR, meta=header(8, 1, SIZE), length=SIZE))
            with open("/proc/self/statm") as statm:
                used = int(statm.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
            # The wait ends before the message does, and what has come must leave `out`.
            with contextlib.suppress(transfer.Again):
                pull.recv_tensor(out=out)
            pull.poll(1000)
            print(next_event(monitor, "protocol_failed").reason, flush=True)
            assert is_closed(bare)
        push.send(b"still here")
        pull.rcvtimeo = 10_000
        print(pull.recv().decode(), len(pull.peers()), flush=True)
"""


@pytest.mark.parametrize("core", ["pure", "native"], indirect=True)
def test_none_to_leave_the_callers_memory(core):
    """`out=` is the caller's again when its call is over, and there is no room for what has come."""
    with Program(LEAVING, core=core.__name__.rpartition(".")[2]) as program:
        code, out, errors = program.finish(40)
    assert (code, out.split("\n")[:2]) == (0, ["no_memory", "still here 1"])
    assert errors.count("\n") == 1 and "was ended: no_memory" in errors


SHARED = """
    import resource
    import transfer
    from tests.sockets.helpers import pair_of

    SIZE = 512 << 20
    def limited(more):
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))

    with transfer.Context() as context:
        pull, push = pair_of(context, transfer.PULL, transfer.PUSH, rcvtimeo=10_000)
        limited(256 << 20)
        try:
            context.empty((SIZE,), "uint8")
        except transfer.InternalError as error:
            print(error, flush=True)
        context.empty((1 << 20,), "uint8")
        push.send(b"still here")
        print(pull.recv().decode(), flush=True)
"""

MAPPED = """
    import contextlib, resource, sys
    import transfer

    with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=200) as pull:
        monitor = pull.get_monitor()
        pull.connect(sys.argv[1])
        pull.wait_for_peers(1, 20)
        print("connected", flush=True)
        sys.stdin.readline()
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
        print("limited", flush=True)
        while True:
            with contextlib.suppress(transfer.Again):
                pull.recv_tensor()
            with contextlib.suppress(transfer.Again):
                while (event := monitor.recv(0)).kind != "protocol_failed":
                    pass
                print(event.reason, flush=True)
                break
"""


def test_none_for_shared_memory_of_ones_own():
    with Program(SHARED, core="native", TRANSFER_LOCAL="on") as program:
        code, out, errors = program.finish(40)
    said, still = out.strip().rsplit("\n", 1)
    assert (code, still, errors) == (0, "still here", "")
    assert "memory" in said and str(512 << 20) in said


def test_none_to_map_what_a_peer_shares(context, monkeypatch):
    monkeypatch.setenv("TRANSFER_LOCAL", "on")
    push = context.socket(PUSH, sndtimeo=10_000)
    push.bind("tcp://127.0.0.1:*")
    with Program(MAPPED, push.last_endpoint, core="native", TRANSFER_LOCAL="on") as program:
        assert program.line() == "connected"
        tensor = context.empty((512 << 20,), "uint8")
        program.tell()
        assert program.line() == "limited"
        push.send_tensor(tensor)
        assert program.line() == "no_memory"
        assert program.finish(20)[0] == 0
