"""A misspelt attribute is refused with the nearest name; derived classes keep attributes of their own."""

from __future__ import annotations

import pytest

import transfer
import transfer.asyncio
from transfer import PUSH, zmq
from transfer.sockets.socket import socket_class
from transfer.transports.errors import NoSuchAttribute, NotSupported

CONTEXTS = [transfer.Context, transfer.asyncio.Context, zmq.Context]


@pytest.mark.parametrize("make", CONTEXTS)
@pytest.mark.parametrize(
    ("wrong", "meant"), [("rcvtimo", "rcvtimeo"), ("SNDHWN", "sndhwm"), ("lingr", "linger"), ("typ", "type")]
)
def test_a_misspelt_option_of_a_socket(make, wrong, meant):
    with make() as context, context.socket(PUSH) as made:
        with pytest.raises(NoSuchAttribute, match=rf"{wrong}\n  hint: did you mean {meant}\?") as caught:
            setattr(made, wrong, 3)
        assert isinstance(caught.value, AttributeError) and isinstance(caught.value, NotSupported)
        assert not hasattr(made, wrong)
        made.rcvtimeo = 3
        assert made.rcvtimeo == 3
        made._own = 3


def test_on_both_cores(core):
    with transfer.Context(core=core) as context, context.socket(PUSH) as made:
        with pytest.raises(NoSuchAttribute, match="rcvtimeo"):
            made.rcvtimo = 3
        for name, value in (("linger", 0), ("spin_us", 5), ("copy_threshold", 100)):
            setattr(made, name, value)


@pytest.mark.parametrize("make", CONTEXTS)
def test_a_misspelt_attribute_of_a_context(make):
    with make() as context, pytest.raises(NoSuchAttribute, match=r"did you mean closed\?"):
        context.closd = True


def test_an_option_of_sockets_set_on_the_context():
    with transfer.Context() as context, pytest.raises(NoSuchAttribute, match="an option of sockets"):
        context.linger = 0
    with zmq.Context() as context:
        context.linger = 0
        with pytest.raises(NoSuchAttribute, match=r"did you mean linger\?"):
            context.lingr = 0


def test_a_derived_class_keeps_what_it_likes():
    class Named(socket_class(transfer.Context().core)):
        def __init__(self, *args):
            super().__init__(*args)
            self.label = "x"

    class Owner(transfer.Context):
        def __init__(self):
            super().__init__()
            self.made = []

        def _socket_class(self):
            return Named

    with Owner() as context, context.socket(PUSH) as made:
        context.name = "mine"
        made.callback_data = made.label
        with pytest.raises(NoSuchAttribute, match=r"did you mean sndtimeo\?"):
            made.sndtimo = 3
