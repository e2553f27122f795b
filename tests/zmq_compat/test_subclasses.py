"""Classes that programs derive from Socket and Context: free names, and their own methods are called."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import subprocess
import sys
import typing
import warnings
import zlib

import pytest

from .conftest import LIBRARIES, PATIENCE

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def packed(zmq):
    """A class whose `send` compresses and whose `recv` decompresses, each part once."""

    class Packed(zmq.Socket):
        calls = ()

        def send(self, data, flags=0, copy=True, track=False):
            self.calls += ("send",)
            return super().send(zlib.compress(bytes(data)), flags, copy=copy, track=track)

        def recv(self, flags=0, copy=True, track=False):
            self.calls += ("recv",)
            return zlib.decompress(super().recv(flags, copy=True, track=track))

    return Packed


def joined(zmq, first, second):
    port = first.bind_to_random_port("tcp://127.0.0.1")
    second.connect(f"tcp://127.0.0.1:{port}")
    first.rcvtimeo = second.rcvtimeo = PATIENCE


def test_methods_call_send_and_recv(zmq, ctx, packed):
    with packed(ctx, zmq.PAIR) as near, packed(ctx, zmq.PAIR) as far, ctx.socket(zmq.PAIR) as plain:
        joined(zmq, near, far)
        near.send_multipart([b"a", b"b"])
        assert far.recv_multipart() == [b"a", b"b"]
        near.send_string("text")
        assert far.recv_string() == "text"
        near.send_json({"a": 1})
        assert far.recv_json() == {"a": 1}
        near.send_serialized([1], lambda parts: [json.dumps(part).encode() for part in parts])
        assert far.recv_serialized(lambda parts: [json.loads(part) for part in parts]) == [1]
        assert near.calls == ("send",) * 5
        assert far.calls == ("recv",) * 5
        near.send(b"x" * 10, copy=False)
        assert far.recv(copy=False) == b"x" * 10
        assert isinstance(near, zmq.Socket)
        assert issubclass(packed, zmq.Socket)
        assert not plain.closed


def test_parts_reach_a_plain_socket(zmq, ctx, packed):
    with packed(ctx, zmq.PUSH) as push, ctx.socket(zmq.PULL) as pull:
        joined(zmq, pull, push)
        push.send_multipart([b"a", memoryview(b"b")])
        assert [zlib.decompress(part) for part in pull.recv_multipart()] == [b"a", b"b"]
        with pytest.raises(TypeError):
            push.send_multipart([b"a", 1])
        push.send(b"next")
        assert len(pull.recv_multipart()) == 1


def test_multipart_methods_are_called(zmq, ctx):
    class Counting(zmq.Socket):
        sent = 0

        def send_multipart(self, *args, **kwargs):
            self.sent += 1
            return super().send_multipart(*args, **kwargs)

    with Counting(ctx, zmq.PUSH) as push, ctx.socket(zmq.PULL) as pull:
        joined(zmq, pull, push)
        push.send_serialized(b"a", lambda whole: [whole, whole])
        assert pull.recv_multipart() == [b"a", b"a"]
        assert push.sent == 1


def test_recv_into_is_the_sockets(zmq, ctx, packed):
    with packed(ctx, zmq.PULL) as pull, ctx.socket(zmq.PUSH) as push:
        joined(zmq, pull, push)
        push.send(b"raw")
        room = bytearray(3)
        assert pull.recv_into(room) == 3
        assert room == b"raw"
        assert pull.calls == ()


def test_calls_by_the_class(zmq, ctx):
    class Old(zmq.Socket):
        def __init__(self, context, socket_type):
            zmq.Socket.__init__(self, context, socket_type)

        def send(self, data, flags=0, **kwargs):
            return zmq.Socket.send(self, data + b"!", flags, **kwargs)

        def close(self, linger=None):
            zmq.Socket.close(self, linger)

    with Old(ctx, zmq.PUSH) as push, ctx.socket(zmq.PULL) as pull:
        joined(zmq, pull, push)
        push.send(b"a")
        assert pull.recv() == b"a!"
    assert push.closed
    with ctx.socket(zmq.PUSH) as plain:
        assert type(plain) is zmq.Socket
        zmq.Socket.close(plain)
        assert plain.closed


def private_names(ours):
    """Every private name of a plain socket, and names that known subclasses use."""
    names = ["_writable", "_ready", "_values", "_links", "_threads", "_state_event", "_recv_message", "_lock"]
    if ours:
        import transfer.zmq

        with transfer.zmq.Context() as context, context.socket(transfer.zmq.PULL) as sock:
            names += [name for name in dir(sock) if name[:1] == "_" and name[1:2] != "_"]
    free = {*names} - {"_deserialize", "_is_protocol"}
    return sorted(name for name in free if not name.startswith("_transfer_"))


def test_every_private_name_is_free_for_sockets(zmq, ctx, ours):
    names = private_names(ours)
    Methods = type("Methods", (zmq.Socket,), {name: lambda self: 1 / 0 for name in names})
    Values = type("Values", (zmq.Socket,), dict.fromkeys(names))
    with Methods(ctx, zmq.REQ) as req, Values(ctx, zmq.ROUTER) as router:
        for name in names:
            setattr(router, name, "mine")
        router.linger = req.linger = 0
        joined(zmq, router, req)
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(req, zmq.POLLIN)
        assert not poller.poll(0)
        req.send_string("question")
        assert poller.poll(PATIENCE) == [(router, zmq.POLLIN)]
        assert zmq.select([router], [], [], 1)[0] == [router]
        assert router.poll(PATIENCE) == zmq.POLLIN
        identity, _, question = router.recv_multipart()
        router.send_multipart([identity, b"", question])
        assert req.recv() == b"question"
        assert all(getattr(router, name) == "mine" for name in names)
        assert router.sndhwm == 1000
        assert router.getsockopt(zmq.LINGER) == 0


def test_every_private_name_is_free_for_contexts(zmq, ours):
    names = ["_lock", "_options", "_ending", "_hooks", "_started", "_end"]
    if ours:
        with zmq.Context() as context:
            names += [name for name in dir(context) if name[:1] == "_" and name[1:2] != "_"]
    pyzmqs = {"_instance", "_instance_lock", "_instance_pid", "_socket_class", "_sockets", "_shadow"}
    names = sorted({*names} - pyzmqs - {"_is_protocol", "_add_socket", "_rm_socket"})
    names = [name for name in names if not name.startswith("_transfer_")]
    assert not ours or set(names) == {"_lock", "_options", "_ending", "_hooks", "_started", "_end"}
    Derived = type("Derived", (zmq.Context,), dict.fromkeys(names, "class"))
    context = Derived()
    for name in names:
        setattr(context, name, "mine")
    with context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
        joined(zmq, pull, push)
        push.send(b"a")
        assert pull.recv() == b"a"
    assert all(getattr(context, name) == "mine" for name in names)
    context.term()
    assert context.closed


def test_attributes_before_init(zmq):
    class Hooked(zmq.Context):
        _instance = _middlewares = None
        colour: str

        def __init__(self, *args, **kwargs):
            self._middlewares = []
            self.colour = "red"
            super().__init__(*args, **kwargs)

    class Named(zmq.Socket):
        name = _session = None

        def __init__(self, *args, **kwargs):
            self._session = 7
            self.name = "early"
            super().__init__(*args, **kwargs)

    with Hooked() as context:
        assert (context._middlewares, context.colour) == ([], "red")
        with context.socket(zmq.PULL, socket_class=Named) as pull:
            assert (pull._session, pull.name, pull.context) == (7, "early", context)
            with pytest.raises(AttributeError):
                pull.unknown = 1
            with pytest.raises(AttributeError):
                context.unknown = 1
        with pytest.raises(AttributeError):
            pull.not_there  # noqa: B018


def test_a_shadow_has_attributes_of_its_own(zmq):
    class Counting(zmq.Context):
        _count = _early = None

        def __init__(self, *args, **kwargs):
            self._early = []
            super().__init__(*args, **kwargs)
            self._count = 0

    with Counting() as context:
        context._count, context._early = 5, ["first"]
        shadow = copy.copy(context)
        assert (context._count, context._early) == (5, ["first"])
        assert (shadow._count, shadow._early) == (0, [])
        shadow._count = 7
        assert context._count == 5
        again = Counting(shadow)
        assert again.underlying == context.underlying
        with again.socket(zmq.PULL) as pull:
            assert type(pull) is zmq.Socket
            assert pull.context is again
        del again, shadow
        gc.collect()
        assert not context.closed
    assert context.closed


def test_init_of_the_class_above(zmq):
    """As zerorpc does: it leaves pyzmq's own `__init__` out."""

    class Above(zmq.Context):
        _hooks = _sockets = None

        def __init__(self):
            super(zmq.Context, self).__init__()
            self._hooks = {}

    context = Above()
    assert context._hooks == {}
    assert not context.closed
    context.term()
    assert context.closed


def test_instance_of_a_subclass(zmq):
    class Inherits(zmq.Context):
        pass

    class Own(zmq.Context):
        _instance = None

    shared, own = zmq.Context.instance(), Own.instance()
    try:
        assert Inherits.instance() is shared
        assert own is not shared
        assert type(own) is Own
        assert Own.instance() is own
    finally:
        own.term()
        shared.term()
    first = Inherits.instance()
    assert type(first) is Inherits
    assert zmq.Context.instance() is not first
    first.term()
    zmq.Context.instance().term()


def test_destroy_calls_close_as_pyzmq_does(zmq):
    class Closing(zmq.Socket):
        closes = ()

        def close(self):  # without the argument that ours would like to give
            self.closes += ("close",)
            super().close()

    context = zmq.Context()
    push = context.socket(zmq.PUSH, socket_class=Closing)
    context.destroy(linger=0)
    assert push.closed
    assert push.closes == ("close",)


def test_a_dropped_socket_calls_close(zmq, ctx):
    seen = []

    class Closing(zmq.Socket):
        def close(self, *args):
            seen.append(self.closed)
            super().close(*args)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        Closing(ctx, zmq.PUSH)
        gc.collect()
    assert seen == [False]


@pytest.mark.parametrize("library", LIBRARIES)
def test_exit_calls_no_overridden_close(library):
    """What `close` needs may be gone by then."""
    pytest.importorskip("zmq")
    program = f"""if True:
        import atexit, {LIBRARIES[library]} as zmq
        class Closing(zmq.Socket):
            def close(self, linger=None):
                print("close")
                super().close(linger)
        context = zmq.Context()
        push = context.socket(zmq.PUSH, socket_class=Closing)
        push.linger = 0
        push.connect("tcp://127.0.0.1:9")
        keep = [push, context]
        atexit.register(print, "exit")
        import builtins
        builtins.kept = keep
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if library == "transfer":
        assert done.stdout == "exit\n"


def test_views_of_one_socket(zmq, ctx, packed):
    with ctx.socket(zmq.PUSH) as push, ctx.socket(zmq.PULL) as pull:
        joined(zmq, pull, push)
        view = packed(push)
        view.send(b"packed")
        assert zlib.decompress(pull.recv()) == b"packed"
        del view
        gc.collect()
        assert not push.closed
        assert zmq.Socket.shadow(pull.underlying).last_endpoint == pull.last_endpoint


def test_type_parameters(zmq, ctx):
    class Bytes(zmq.Socket[bytes]):
        pass

    class Typed(zmq.Context[zmq.Socket[bytes]]):
        pass

    assert zmq.Socket[typing.Any]
    assert zmq.Context[zmq.Socket[typing.Any]]
    with Bytes(ctx, zmq.PULL) as pull:
        assert isinstance(pull, zmq.Socket)
    with Typed() as context, context.socket(zmq.PULL) as pull:
        assert isinstance(pull, zmq.Socket)


def test_a_subclass_of_an_asyncio_socket(zmq, aio, ours):
    class Mine(aio.Socket):
        pass

    async def program():
        with aio.Context() as context, Mine(context, zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
            for name in private_names(ours) if ours else ():
                setattr(pull, name, "mine")
            port = pull.bind_to_random_port("tcp://127.0.0.1")
            push.connect(f"tcp://127.0.0.1:{port}")
            await push.send_multipart([b"a", b"b"])
            poller = aio.Poller()
            poller.register(pull, zmq.POLLIN)
            assert dict(await poller.poll(PATIENCE)) == {pull: zmq.POLLIN}
            assert await pull.recv_multipart() == [b"a", b"b"]
            await push.send_string("text")
            assert await pull.recv_string() == "text"
            assert isinstance(pull, zmq.Socket)
            assert issubclass(aio.Socket, zmq.Socket)

    asyncio.run(program())


def test_a_proxy_of_derived_sockets(zmq, ctx, packed):
    import threading

    with zmq.Context() as context, ctx.socket(zmq.PUSH) as push, ctx.socket(zmq.PULL) as pull:
        front, back = packed(context, zmq.PULL), packed(context, zmq.PUSH)

        def run():
            try:
                zmq.proxy(front, back)
            except zmq.ContextTerminated:
                front.close(), back.close()

        push.connect(f"tcp://127.0.0.1:{front.bind_to_random_port('tcp://127.0.0.1')}")
        pull.connect(f"tcp://127.0.0.1:{back.bind_to_random_port('tcp://127.0.0.1')}")
        thread = threading.Thread(target=run)
        thread.start()
        push.send(b"not packed")
        assert pull.recv() == b"not packed"
        context.term()
        thread.join(PATIENCE / 1000)
        assert not thread.is_alive()


def test_poll_and_repr_are_those_of_the_class(zmq, ctx):
    """As zmq.green has them, whose Poller lets other greenlets run."""

    class Poller(zmq.Poller):
        used = 0

        def poll(self, timeout=None):
            Poller.used += 1
            return super().poll(timeout)

    class Mine(zmq.Socket):
        _poller_class = Poller
        _repr_cls = "mine.Socket"

    with Mine(ctx, zmq.PULL) as pull, ctx.socket(zmq.PUSH) as push:
        assert repr(pull).startswith("<mine.Socket(zmq.PULL)")
        push.connect(f"tcp://127.0.0.1:{pull.bind_to_random_port('tcp://127.0.0.1')}")
        assert pull.poll(0) == 0
        push.send(b"ready")
        assert pull.poll(PATIENCE) == zmq.POLLIN
        assert Poller.used == 2
