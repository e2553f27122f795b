"""What only ours does, or does better."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings

import pytest

import transfer.zmq as zmq
import transfer.zmq.asyncio  # noqa: F401 - `zmq.asyncio`
from tests.ports import free_port
from transfer.transports.errors import TransferError
from transfer.zmq.decorators import context, socket

from .conftest import PATIENCE

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def ctx():
    with zmq.Context() as made:
        made.rcvtimeo = made.sndtimeo = PATIENCE
        yield made
        made.destroy(linger=0)


def test_again_names_the_endpoint_that_nobody_serves(ctx):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with ctx.socket(zmq.PUSH) as push, ctx.socket(zmq.SUB) as sub:
        push.linger = 0
        push.sndhwm = 1
        push.connect(endpoint)
        push.send(b"queued")
        with pytest.raises(zmq.Again, match=endpoint):
            push.send(b"too much", zmq.DONTWAIT)
        sub.connect(endpoint)
        sub.rcvtimeo = 20
        with pytest.raises(zmq.Again, match="hint: no process listens there"):
            sub.recv()
    with ctx.socket(zmq.PULL) as pull:
        pull.rcvtimeo = 1
        pull.bind("tcp://127.0.0.1:*")
        with pytest.raises(zmq.Again, match="no peer has connected"):
            pull.recv()


def test_all_our_errors_are_zmq_errors(ctx):
    assert issubclass(TransferError, zmq.ZMQError)
    with ctx.socket(zmq.PUSH) as push, pytest.raises(zmq.ZMQError) as caught:
        push.bind("nothing")
    assert caught.value.errno == zmq.EINVAL


def test_a_number_out_of_range_as_a_default(ctx):
    """Raised as in pyzmq, whose context then waits for ever for that socket."""
    ctx.sndhwm = 2**31
    with pytest.raises(OverflowError):
        ctx.socket(zmq.PUSH)


def test_any_thread_may_send(ctx):
    with ctx.socket(zmq.PULL) as pull, ctx.socket(zmq.PUSH) as push:
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")

        def send(name):
            for number in range(100):
                push.send_multipart([b"%d" % name, b"%d" % number])

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        got = [pull.recv_multipart() for _ in range(400)]
        for thread in threads:
            thread.join()
    for name in range(4):
        assert [b for a, b in got if a == b"%d" % name] == [b"%d" % number for number in range(100)]


def test_a_socket_that_nobody_closed_still_delivers(ctx):
    with ctx.socket(zmq.PULL) as pull:
        port = pull.bind_to_random_port("tcp://127.0.0.1")

        def work():
            push = ctx.socket(zmq.PUSH)
            push.connect(f"tcp://127.0.0.1:{port}")
            push.send(b"task")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            work()
            gc.collect()
        assert pull.recv() == b"task"


def test_destroy_bounds_the_linger_of_sockets_closed_before():
    ctx = zmq.Context()
    push = ctx.socket(zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{free_port()}")
    push.send(b"nobody will ever get this")
    push.close()
    ctx.destroy(linger=0)
    assert ctx.closed
    assert not [thread for thread in threading.enumerate() if thread.name == "zmq-linger"]


def test_term_waits_for_what_was_sent():
    ctx = zmq.Context()
    port = free_port()
    push = ctx.socket(zmq.PUSH)
    push.reconnect_ivl = 10
    push.connect(f"tcp://127.0.0.1:{port}")
    for number in range(100):
        push.send(b"%d" % number)
    push.close()
    thread = threading.Thread(target=ctx.term)
    thread.start()
    with zmq.Context() as other, other.socket(zmq.PULL) as pull:
        pull.rcvtimeo = PATIENCE
        pull.bind(f"tcp://127.0.0.1:{port}")
        assert [pull.recv() for _ in range(100)] == [b"%d" % number for number in range(100)]
        thread.join(PATIENCE / 1000)
        assert not thread.is_alive()


def test_closing_keeps_much_that_the_peer_has_not_read():
    """More than kernel buffers hold, closed at once, read afterwards in the same thread."""
    with zmq.Context() as ctx, ctx.socket(zmq.PULL) as pull:
        pull.rcvtimeo = PATIENCE
        push = ctx.socket(zmq.PUSH)
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
        for number in range(30):
            push.send(bytes([number]) * 1_000_000)
        push.close()
        assert [pull.recv()[0] for _ in range(30)] == list(range(30))


def test_term_cancels_futures():
    async def main():
        ctx = zmq.asyncio.Context()
        pull = ctx.socket(zmq.PULL)
        receiving = pull.recv()
        await asyncio.sleep(0)
        ctx.term()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert pull.closed

    asyncio.run(main())


def test_decorators():
    @context()
    @socket(zmq.PULL)
    @socket("push", zmq.PUSH)
    def work(ctx, pull, push=None):
        pull.rcvtimeo = PATIENCE
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
        push.send(b"x")
        return ctx, pull, push, pull.recv()

    ctx, pull, push, message = work()
    assert message == b"x"
    assert ctx.closed and pull.closed and push.closed


def test_our_own_methods_are_there_too(ctx):
    with ctx.socket(zmq.PULL) as pull, ctx.socket(zmq.PUSH) as push:
        pull.bind("tcp://127.0.0.1:*")
        push.connect(pull.last_endpoint)
        push.wait_for_peers(timeout=PATIENCE / 1000)
        (peer,) = push.peers()
        assert peer.transport == "tcp"
        push.spin_us = 10
        assert push.spin_us == 10


def test_importing_loads_no_pyzmq():
    program = "import sys, transfer.zmq.asyncio; print('zmq' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_exit_without_closing_anything():
    """An interpreter that just ends neither hangs nor crashes."""
    program = f"""
import transfer.zmq as zmq
import transfer.zmq.asyncio  # noqa: F401 - `zmq.asyncio`
ctx = zmq.Context.instance()
push = ctx.socket(zmq.PUSH)
push.connect("tcp://127.0.0.1:{free_port()}")
push.send(b"never delivered")
other = ctx.socket(zmq.PUSH)
other.connect("tcp://127.0.0.1:{free_port()}")
other.send(b"never delivered")
other.close()
"""
    env = {**os.environ, "TRANSFER_EXIT_LINGER": "0.2"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, env=env
    )
    assert (done.returncode, done.stderr) == (0, "")
