"""What mypy and pyright find in programs: misspelt names and options, text where bytes are wanted."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import transfer
from transfer.sockets.options import SocketOptions

ROOT = Path(__file__).parents[2]

SOCKETS = """
from typing import assert_type

import transfer


def sends(context: transfer.Context) -> None:
    push = context.socket("PUSH", sndhwm=10, linger=0, identity="me", balance="load")
    assert_type(push, transfer.Socket)
    push.linger = 100
    push.routing_id = "me"
    push.send(b"bytes")
    push.send(bytearray(3), transfer.DONTWAIT)
    push.send_multipart([b"two", memoryview(b"parts")])
    confirmed: bool = push.send(b"tracked", track=True).confirmed
    push.send_multipart([b"tracked"], track=True).wait()
    push.send_tensor(b"tracked", copy=False).wait()
    push.send_tensors({"a": b"tracked"}, track=True).wait()
    push.send("text")  # call-overload
    push.send_multipart(["text"])  # list-item
    push.sent(b"misspelt")  # attr-defined
    push.lingr = 100  # attr-defined
    push.linger = "1s"  # assignment
    push.balance = "least"  # assignment
    push.compression = "lz4"
    push.compression = "zstd"  # assignment
    push.connect(5555)  # arg-type
    context.socket(transfer.PUSH, lingr=3)  # call-arg
    context.socket(transfer.PUSH, linger="1s")  # arg-type
    context.lingr = 3  # attr-defined
    print(confirmed)


def receives(socket: transfer.Socket) -> bytes:
    hwm: int = socket.rcvhwm
    frame = socket.recv(copy=False)
    print(hwm, frame.bytes, frame.bites)  # attr-defined
    assert_type(socket.recv_multipart(), list[bytes])
    assert_type(socket.recv_multipart(copy=False)[0].more, bool)
    assert_type(socket.recv_tensor(out=bytearray(8)), bytearray)
    assert_type(socket.last_endpoint, str)
    with socket.bind("tcp://127.0.0.1:*") as bound, transfer.Context.instance() as context:
        assert_type(bound, transfer.Socket)
        assert_type(context, transfer.Context)
    return socket.recv()


config = transfer.ZmqConfig(pool_size=3, linger_ms=0)
config.pool_size = 5
config.pool_sise = 5  # attr-defined
transfer.ZmqConfig(pool_sise=3)  # call-arg
"""

COROUTINES = """
from typing import assert_type

import transfer
import transfer.asyncio


async def sends(context: transfer.asyncio.Context) -> None:
    push = context.socket(transfer.PUSH, sndhwm=10)
    assert_type(push, transfer.asyncio.Socket)
    await push.send(b"bytes")
    await push.send_string("text")
    assert_type(await push.send(b"tracked", track=True), transfer.Tracker)
    assert_type(await push.send_tensor(b"tracked", copy=False), transfer.Tracker)
    push.linger = 100
    await push.send("text")  # call-overload
    await push.sent(b"misspelt")  # attr-defined
    push.lingr = 100  # attr-defined
    context.socket(transfer.PUSH, lingr=3)  # call-arg


async def receives(socket: transfer.asyncio.Socket) -> None:
    assert_type(await socket.recv(), bytes)
    assert_type(await socket.recv_multipart(), list[bytes])
    assert_type((await socket.recv(copy=False)).more, bool)
    assert_type(await socket.recv_tensor(out=bytearray(8)), bytearray)
    assert_type(await socket.poll(10), int)
    with socket.bind("tcp://127.0.0.1:*") as bound, transfer.asyncio.Context.instance() as context:
        assert_type(bound, transfer.asyncio.Socket)
        assert_type(context, transfer.asyncio.Context)
    socket.recv().decode()  # attr-defined
"""

#: without errors with pyzmq, too
PYZMQ = """
from __future__ import annotations

import asyncio
from typing import Any

import transfer.zmq as zmq
import transfer.zmq.asyncio
from transfer.zmq.utils.monitor import recv_monitor_message


class Counting(zmq.Socket[bytes]):
    count = 0


def options(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    context.linger = 0
    context.setsockopt(zmq.LINGER, 0)
    push = context.socket(zmq.PUSH)
    push.linger = 0
    push.LINGER = 0
    push.sndtimeo = push.rcvtimeo = 100
    push.ipv6 = True
    push.identity = b"me"
    push.hwm = 5
    push.set_hwm(5)
    push.set(zmq.SNDHWM, 10)
    push.setsockopt(zmq.RCVHWM, 10)
    push.setsockopt_string(zmq.IDENTITY, "me")
    print(push.getsockopt(zmq.LINGER), push.get(zmq.TYPE), push.FD, push.type, push.last_endpoint)
    sub = context.socket(zmq.SUB)
    sub.subscribe("topic")
    sub.setsockopt(zmq.SUBSCRIBE, b"topic")
    sub.unsubscribe(b"topic")


def sends(push: zmq.SyncSocket) -> None:
    port: int = push.bind_to_random_port("tcp://127.0.0.1")
    with push.connect(f"tcp://127.0.0.1:{port}") as connected:
        connected.send(b"bytes")
    push.send(bytearray(3), zmq.NOBLOCK | zmq.SNDMORE)
    push.send(memoryview(b"view"), copy=False)
    push.send(zmq.Frame(b"frame"))
    push.send(b"tracked", copy=False, track=True).wait(1)
    push.send_multipart([b"two", zmq.Frame(b"parts")])
    push.send_string("text", zmq.SNDMORE)
    push.send_json({"a": 1})
    push.send_serialized(3, lambda number: [bytes(number)])


def receives(pull: zmq.Socket[bytes]) -> list[bytes]:
    data: bytes = pull.recv(zmq.DONTWAIT)
    frame = pull.recv(copy=False)
    more: bool = frame.more
    text: str = pull.recv_string()
    value = pull.recv_json()
    frames: list[zmq.Frame] = pull.recv_multipart(copy=False)
    size: int = pull.recv_into(bytearray(10))
    print(data, frame.bytes, more, text, value, frames, size, pull.poll(10, zmq.POLLIN) & zmq.POLLIN)
    return pull.recv_multipart()


def polls(sockets: list[zmq.Socket[bytes]]) -> None:
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    ready = dict(poller.poll(100))
    print([socket.recv() for socket in sockets if ready.get(socket) == zmq.POLLIN])
    readable, _, _ = zmq.select(sockets, [], [])
    zmq.proxy(sockets[0], sockets[1])
    event = recv_monitor_message(sockets[0].get_monitor_socket())
    print(readable, event["event"] == zmq.EVENT_CONNECTED)


def program() -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.send(b"")
        options(context)
        context.socket(zmq.PULL, socket_class=Counting).close(linger=0)
    shared: zmq.SyncContext = zmq.Context.instance()
    try:
        sends(zmq.Context(shared).socket(zmq.PUSH))
    except zmq.Again:
        return
    except zmq.ZMQError as error:
        print(error.errno == zmq.EAGAIN, zmq.strerror(error.errno or 0), zmq.zmq_version_info() > (4, 2, 0))
    shared.term()


async def coroutine(context: zmq.asyncio.Context) -> None:
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        await dealer.send(b"bytes", zmq.SNDMORE)
        await dealer.send_multipart([b"two", b"parts"])
        await dealer.send_string("text")
        await dealer.send_json({"a": 1})
        data: bytes = await dealer.recv()
        parts: list[bytes] = await dealer.recv_multipart()
        text: str = await asyncio.wait_for(dealer.recv_string(), 1)
        value: Any = await dealer.recv_json()
        print(data, parts, text, value)
    poller = zmq.asyncio.Poller()
    poller.register(dealer, zmq.POLLIN)
    print(dict(await poller.poll(10)).get(dealer, 0) & zmq.POLLIN)
    view = zmq.asyncio.Socket.from_socket(zmq.Context().socket(zmq.PULL))
    print(await view.recv(copy=False))
    tasks: list[zmq.Socket[Any]] = [view, zmq.Context().socket(zmq.PULL)]
    print(tasks, zmq.Context(context), zmq.asyncio.Context.instance())


asyncio.run(coroutine(zmq.asyncio.Context()))
"""

PYZMQ_MISTAKES = """
from typing import assert_type

import transfer.zmq as zmq
import transfer.zmq.asyncio


class Counting(zmq.Socket):
    count = 0


def plain(context: zmq.Context) -> None:
    push = context.socket(zmq.PUSH)
    assert_type(push, zmq.Socket[bytes])
    assert_type(context.socket(zmq.PUSH, socket_class=Counting), Counting)
    assert_type(zmq.Context().socket(zmq.PUSH, zmq.asyncio.Socket), zmq.asyncio.Socket)
    assert_type(push.linger, int)
    assert_type(push.LAST_ENDPOINT, bytes)
    assert_type(push.recv_multipart(), list[bytes])
    push.send_tensor(b"of transfer.Socket")
    push.wait_for_peers(1)
    push.sent(b"misspelt")  # attr-defined
    push.set_hvm(1)  # attr-defined
    push.lingr = 3  # attr-defined
    push.LINGR = 3  # attr-defined
    push.linger = "1s"  # assignment
    push.FD = 3  # misc
    push.send("text")  # call-overload
    push.send_multipart(["text"])  # list-item
    push.recv_string().decode()  # attr-defined
    context.lingr = 3  # attr-defined
    context.socket(zmq.PUHS)  # attr-defined
    context.socket(zmq.PUSH, linger=3)  # call-overload


async def coroutine(context: zmq.asyncio.Context) -> None:
    push = context.socket(zmq.PUSH)
    assert_type(push, zmq.asyncio.Socket)
    assert_type(await push.recv(), bytes)
    assert_type(await push.recv_multipart(), list[bytes])
    assert_type(await push.recv_string(), str)
    assert_type(await push.poll(10), int)
    with push.bind("inproc://a") as bound:
        assert_type(bound, zmq.asyncio.Socket)
    push.sent(b"misspelt")  # attr-defined
    push.set_hvm(1)  # attr-defined
    push.lingr = 3  # attr-defined
    await push.send("text")  # call-overload
    push.recv().decode()  # attr-defined
    context.socket(zmq.PUSH, linger=3)  # call-overload
"""

MODULES = (
    *("transfer", "transfer.asyncio", "transfer.zmq", "transfer.zmq.asyncio", "transfer.mooncake"),
    *("transfer.sockets", "transfer.tensors", "transfer.metrics", "transfer.spark", "transfer.torch"),
    *("transfer.spool", "transfer.log", "transfer.broker", "transfer.broker.clients"),
)
NAMES = "".join(
    f"import {module}\nprint({module}.Misspelt)  # attr-defined\n"
    + "".join(f"print({module}.{name})\n" for name in getattr(importlib.import_module(module), "__all__", ()))
    for module in MODULES
)
#: what an option gives can be set, both as attribute and as keyword
OPTIONS = (
    "import transfer\nfrom transfer.sockets.options import SocketOptions\n\n\n"
    "def same(options: SocketOptions, push: transfer.Socket) -> None:\n"
    + "".join(
        f"    push.{name} = options.get({name!r}, push.{name})\n    options[{name!r}] = push.{name}\n"
        for name in SocketOptions.__annotations__
        if name not in ("subscribe", "unsubscribe")
    )
)

#: programs by name: each line that is wrong says what mypy has to say of it
PROGRAMS = {
    "sockets": SOCKETS,
    "coroutines": COROUTINES,
    "pyzmq_ours": PYZMQ,
    "pyzmq_theirs": PYZMQ.replace("transfer.zmq", "zmq"),
    "pyzmq_mistakes": PYZMQ_MISTAKES,
    "names": NAMES,
    "options": OPTIONS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pyrightconfig.json").write_text("{}")  # else one of a folder above would count
    return folder


@pytest.fixture(scope="module")
def mypy(folder):
    options = ["--strict", "--no-pretty", "--cache-dir", ROOT / ".mypy_cache"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, *folder.glob("*.py")],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def pyright(folder):
    return subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *folder.glob("*.py")],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", PROGRAMS)
def test_mypy_finds_mistakes_and_nothing_else(mypy, name):
    found = re.findall(rf"/{name}\.py:(\d+):.* error: .*\[([\w-]+)\]$", mypy.stdout, re.M)
    lines = enumerate(PROGRAMS[name].split("\n"), 1)
    wanted = [(str(number), line.split("# ")[1]) for number, line in lines if "  # " in line]
    assert found == wanted, mypy.stdout + mypy.stderr
    assert "Methods" not in mypy.stdout  # a class that users do not know


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", PROGRAMS)
def test_pyright_finds_mistakes_and_nothing_else(pyright, name):
    found = re.findall(rf"/{name}\.py:(\d+):\d+ - (?:error|warning)", pyright.stdout)
    wanted = [number for number, line in enumerate(PROGRAMS[name].split("\n"), 1) if "  # " in line]
    assert sorted(set(map(int, found))) == wanted, pyright.stdout + pyright.stderr
    assert "Methods" not in pyright.stdout


def test_the_socket_says_what_it_is():
    """`pydoc transfer.Socket` begins with it, and each public method has a docstring."""
    assert "Sends and receives messages" in transfer.Socket.__doc__
    assert "blocking methods are coroutines" in transfer.asyncio.Socket.__doc__
    public = {
        name: getattr(transfer.Socket, name) for name in dir(transfer.Socket) if not name.startswith("_")
    }
    without = [name for name, one in public.items() if callable(one) and not (one.__doc__ or "").strip()]
    assert without == []
