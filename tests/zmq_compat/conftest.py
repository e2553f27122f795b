"""Every program here runs twice: on pyzmq, which is right by definition, and on `transfer.zmq`."""

from __future__ import annotations

import importlib

import pytest

LIBRARIES = {"pyzmq": "zmq", "transfer": "transfer.zmq"}
#: ms; a test that would hang fails instead
PATIENCE = 5000


def pytest_collection_modifyitems(items):
    for item in items:
        if getattr(item, "callspec", None) and item.callspec.params.get("zmq") == "pyzmq":
            item.add_marker(pytest.mark.keeps("pyzmq keeps a thread that collects sent buffers"))


def keeping(base, kept):
    """A context class that keeps its sockets: one that a test lets go of open is no leak."""

    class Context(base):
        def socket(self, *args, **kwargs):
            kept.append(super().socket(*args, **kwargs))
            return kept[-1]

    return Context


@pytest.fixture(params=LIBRARIES)
def zmq(request):
    pytest.importorskip("zmq")
    return importlib.import_module(LIBRARIES[request.param])


@pytest.fixture
def ours(zmq):
    """Whether this run is on `transfer.zmq`."""
    return zmq.__name__ == "transfer.zmq"


@pytest.fixture
def aio(zmq):
    return importlib.import_module(f"{zmq.__name__}.asyncio")


@pytest.fixture
def ctx(zmq):
    kept = []
    context = keeping(zmq.Context, kept)()
    context.setsockopt(zmq.RCVTIMEO, PATIENCE)
    context.setsockopt(zmq.SNDTIMEO, PATIENCE)
    yield context
    context.destroy(linger=0)


@pytest.fixture
def link(zmq, ctx):
    """link(PUSH, PULL) -> two sockets of these types; the first is bound, the second connected."""

    def make(bound_type, connected_type, **options):
        bound, connected = ctx.socket(bound_type), ctx.socket(connected_type)
        for sock in (bound, connected):
            for name, value in options.items():
                setattr(sock, name, value)
        port = bound.bind_to_random_port("tcp://127.0.0.1")
        connected.connect(f"tcp://127.0.0.1:{port}")
        return bound, connected

    return make


def join(zmq, pub, sub, topic=b""):
    """Returns once what `pub` sends reaches `sub`, with nothing left unread."""
    pub.setsockopt(zmq.SNDHWM, 10_000)
    probe = topic + b"?"
    for _ in range(PATIENCE // 10):
        pub.send(probe)
        if sub.poll(10):
            break
    mark = topic + b"!"
    pub.send(mark)
    while sub.recv() != mark:
        pass
