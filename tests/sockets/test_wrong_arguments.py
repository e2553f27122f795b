"""What callers get wrong is one of our errors, with what to do."""

from __future__ import annotations

import subprocess
import sys
from inspect import getmembers_static

import pytest

import transfer
from transfer import PUB, PULL, PUSH, ROUTER, ArgumentError, OptionError, UsageError, zmq
from transfer.transports.address import parse
from transfer.transports.errors import AddressError
from transfer.transports.registry import find

from .helpers import pair_of

WRONG = {
    "text": "send_string",
    5: "send_json",
    None: "send_json",
    ("a", b"b"): "send_multipart",
}


@pytest.mark.parametrize("kind", [PUSH, PUB])
@pytest.mark.parametrize(("given", "hint"), WRONG.items())
def test_send_takes_bytes(context, kind, given, hint):
    made, _ = pair_of(context, kind, PULL if kind is PUSH else transfer.SUB)
    for call in (made.send, lambda given: made.send_multipart([b"topic", given])):
        with pytest.raises(ArgumentError, match=f"{type(given).__name__}\n  hint: .*{hint}") as caught:
            call(given)
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(("given", "hint"), WRONG.items())
def test_send_of_the_other_surface(given, hint):
    with zmq.Context() as context, context.socket(zmq.PUSH) as made:
        made.linger = 0
        for copy in (True, False):
            with pytest.raises(ArgumentError, match=hint):
                made.send(given, zmq.DONTWAIT, copy=copy)
        with pytest.raises(ArgumentError, match=hint):
            made.send_multipart([b"x", given], zmq.DONTWAIT)


@pytest.mark.parametrize("kind", transfer.SocketType)
def test_a_message_without_parts(context, kind):
    """On a PUB it ended the process."""
    made = context.socket(kind, sndtimeo=0)
    with pytest.raises(UsageError):
        made.send_multipart([])
    with zmq.Context() as other, other.socket(kind) as of_zmq, pytest.raises(UsageError):
        of_zmq.send_multipart([])


@pytest.mark.parametrize("parts", ["abc", b"abc", None, 5])
def test_parts_are_a_list(context, parts):
    with pytest.raises(ArgumentError, match="are a list"):
        context.socket(ROUTER).send_multipart(parts)


def test_send_string_takes_text(context):
    with pytest.raises(ArgumentError, match="text is wanted, not bytes"):
        context.socket(PUSH).send_string(b"x")


@pytest.mark.parametrize("given", [[bytearray(4)], bytearray(4), None])
def test_send_tensors_takes_a_dict(context, given):
    with pytest.raises(ArgumentError, match=r"a dict of tensors by name.*\n  hint: send_tensor\(x\)"):
        context.socket(PUSH).send_tensors(given)


@pytest.mark.parametrize("value", ["5s", None, 1.5, [], 2**40])
def test_times_are_milliseconds(context, value):
    made = context.socket(PUSH)
    with pytest.raises(OptionError, match="a whole number of milliseconds"):
        made.rcvtimeo = value
    with zmq.Context() as other, other.socket(zmq.PUSH) as of_zmq:
        with pytest.raises((ArgumentError, OptionError)) as caught:
            of_zmq.rcvtimeo = value
        assert "setsockopt_string" not in str(caught.value)


def test_the_nearest_option(context):
    with pytest.raises(OptionError, match=r"did you mean rcvtimeo\?"):
        context.socket(PUSH, rcvtimo=3)
    with pytest.raises(OptionError, match=r"did you mean rcvtimeo\?"):
        context.socket(PUSH).set("RCVTIMEOUT", 3)
    assert len(context.sockets) == 1, "one with a wrong option is closed"
    with pytest.raises(ArgumentError):
        context.socket(PUSH).set(None, 3)


# -- endpoints -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("tcp:/127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        ("tcp:127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        ("tcp//host:5555", "tcp://host:5555"),
        ("tcp:://host:5555", "tcp://host:5555"),
        ("tpc:/host:5555", "tcp://host:5555"),
        ("ipc:/tmp/x", "ipc:///tmp/x"),
        ("ipc:x", "ipc://x"),
        ("inproc:x", "inproc://x"),
        ("dns:/trainers:5555", "dns://trainers:5555"),
        ("host:5555", "tcp://host:5555"),
        ("tcp:5555", "tcp://tcp:5555"),
        ("127.0.0.1:5555", "tcp://127.0.0.1:5555"),
    ],
)
def test_a_broken_scheme_is_shown_whole(given, meant):
    with pytest.raises(AddressError) as caught:
        parse(given)
    assert caught.value.hint == f"write {meant}"
    assert parse(meant)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("tpc://h:1", "tcp"),
        ("tcps://h:1", "tcp"),
        ("dsn://h:1", "dns"),
        ("regostry://h:1/name", "registry"),
        ("registrys://h:1/name", "registry"),
        ("rmda://h:1", "rdma"),
        ("ipcs:///tmp/x", "ipc"),
        ("inprocs://x", "inproc"),
    ],
)
def test_the_nearest_scheme(given, meant):
    with pytest.raises(AddressError, match=f"did you mean .*{meant}://"):
        find(parse(given).scheme)


def test_all_schemes_are_said():
    with pytest.raises(AddressError, match="dns, inproc, ipc, rdma, registry, tcp, ucx"):
        find("http")


# -- libraries and attributes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name", "missing", "extra"),
    [
        ("transfer.spark", "write", "msgspec", "spark"),
        ("transfer.spark", "TransferDataSource", "pyspark", "spark"),
        ("transfer.torch", "StreamDataset", "torch", "torch"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(module, name, missing, extra):
    program = f"""
import sys; sys.modules[{missing!r}] = None
import {module} as package
try:
    package.{name}
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith(f"MissingLibrary {module}.{name} needs {missing}\n")
    assert f"pip install 'tensor-transfer[{extra}]'" in done.stdout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", transfer.SocketType)
def test_sockets_can_be_looked_at(context, kind):
    """`dir`, mocks and debuggers read every attribute."""
    with zmq.Context() as other, other.socket(kind) as of_zmq, of_zmq.get_monitor_socket() as pair:
        for looked_at in (context.socket(kind), of_zmq, pair, context, other, zmq.Frame(b"x")):
            for name in {*dir(looked_at), *dict(getmembers_static(looked_at))}:
                getattr(looked_at, name, None)
        of_zmq.disable_monitor()
