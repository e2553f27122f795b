"""Which type a socket has: members of any enumeration count by name, bare numbers in `transfer.zmq` only."""

from __future__ import annotations

import importlib
import pickle
from enum import IntEnum

import pytest

import transfer
import transfer.asyncio
import transfer.sockets.socket
from transfer import zmq
from transfer.sockets.options import NUMBERS
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import UsageError
from transfer.zmq import constants

NAMES = list(SocketType.__members__)


class Foreign(IntEnum):
    """Another library's enumeration, with numbers of its own."""

    PUSH = 71


@pytest.mark.parametrize("name", NAMES)
def test_members_of_both_enumerations_are_taken_by_name(core, name):
    with transfer.Context(core=core) as context:
        for given in (SocketType[name], zmq.SocketType[name], name, name.lower()):
            with context.socket(given) as made:
                assert made.type is SocketType[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_other_surface_takes_them_by_name_too(name):
    with zmq.Context() as context:
        for given in (SocketType[name], zmq.SocketType[name], name, int(zmq.SocketType[name])):
            with context.socket(given) as made:
                assert made.type is zmq.SocketType[name]
                assert made._pattern.socket_type is SocketType[name]


def test_any_enumeration_counts_by_name():
    with transfer.Context() as context, context.socket(Foreign.PUSH) as made:
        assert made.type is transfer.PUSH
    with zmq.Context() as context, context.socket(Foreign.PUSH) as made:
        assert made.type is zmq.PUSH


def test_pyzmq_itself():
    pyzmq = importlib.import_module("zmq")
    with transfer.Context() as context:
        for name in NAMES:
            with context.socket(getattr(pyzmq, name)) as made:
                assert made.type is SocketType[name]


@pytest.mark.parametrize("make", [transfer.Context, transfer.asyncio.Context])
@pytest.mark.parametrize("given", [8, 4, 0, 99, -1, None, 2.0])
def test_a_bare_number_is_refused_with_the_remedy(make, given):
    with make() as context, pytest.raises(UsageError, match=r"transfer\.PUSH"):
        context.socket(given)


@pytest.mark.parametrize(("given", "near"), [("PUHS", "PUSH"), ("subb", "SUB"), ("XPUBB", "XPUB")])
def test_the_nearest_name_is_said(given, near):
    with transfer.Context() as context, pytest.raises(UsageError, match=f"did you mean .*{near}"):
        context.socket(given)


def test_the_other_surface_refuses_what_is_no_type():
    with zmq.Context() as context:
        for given in ("PUHS", 99, None):
            with pytest.raises(zmq.ZMQError) as caught:
                context.socket(given)
            assert caught.value.errno == zmq.EINVAL


def test_all_other_numbers_are_the_same_on_both_surfaces():
    for number, name in NUMBERS.items():
        if number < 1000:
            assert constants.SocketOption[name.upper()] == number
    for name in ("DONTWAIT", "NOBLOCK", "SNDMORE", "POLLIN", "POLLOUT", "POLLERR"):
        assert getattr(transfer, name) == getattr(zmq, name)


def test_types_of_the_two_surfaces_are_not_equal():
    """Nine numbers are ours and ZeroMQ's, of other types: `transfer.PUSH == zmq.REP` was true. XPUB and XSUB
    have the same numbers."""
    theirs = [kind for kind in zmq.SocketType if kind.name in transfer.SocketType.__members__]
    for kind in transfer.SocketType:
        same = [kind.name] if kind.name in ("XPUB", "XSUB") else []
        assert [other.name for other in theirs if other == kind or kind == other] == same
        assert all(other != kind for other in theirs if other.name not in same)
        assert kind == int(kind)
        assert int(kind) == kind
        assert {kind: "x"}[int(kind)] == "x"
    assert zmq.PUSH == 8
    assert zmq.PUSH in {8}
    assert transfer.PUSH == transfer.ZmqSocketType.PUSH
    assert pickle.loads(pickle.dumps(transfer.PUSH)) == transfer.PUSH
    assert transfer.PUSH != "PUSH"
