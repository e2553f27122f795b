"""What a program reads or sets by a wrong name, and what can only be read."""

from __future__ import annotations

import importlib
import logging
import pickle

import pytest

import transfer
from transfer.transports import errors


@pytest.fixture
def socket():
    with transfer.Context() as context, context.socket(transfer.PULL) as made:
        yield made


def test_a_misspelt_name_is_read(socket):
    with pytest.raises(AttributeError, match="no attribute 'rcvhmw'") as refused:
        _ = socket.rcvhmw
    # By these two the interpreter says "Did you mean: 'rcvhwm'?" below the traceback.
    assert (refused.value.name, refused.value.obj) == ("rcvhmw", socket)
    assert not hasattr(socket, "_nothing")


@pytest.mark.parametrize("module", ["transfer", "transfer.asyncio", "transfer.zmq", "transfer.zmq.asyncio"])
def test_sockets_keep_the_interpreters_fast_way_to_an_attribute(module):
    found = importlib.import_module(module).Socket
    assert not hasattr(found, "__getattr__")


@pytest.mark.parametrize("name", ["last_endpoint", "type", "events", "rcvmore"])
def test_what_can_only_be_read(socket, name):
    before = getattr(socket, name)
    with pytest.raises(transfer.OptionError, match=f"{name} can only be read"):
        setattr(socket, name, 1)
    assert getattr(socket, name) == before


@pytest.mark.parametrize(
    "error",
    [
        transfer.MessageRefused("too_large", hint="raise it"),
        errors.DeviceError("no_device", "there is none", hint="look", errno=5),
        errors.RegistrationError("memlock", "too little"),
        errors.ProtocolError("flags", "unknown"),
        transfer.Again("later"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pickle(error):
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error) and str(found) == str(error)
    assert (found.hint, found.errno) == (error.hint, error.errno)
    assert getattr(found, "reason", None) == getattr(error, "reason", None)


def test_the_log_has_each_event_of_a_connection(caplog):
    with caplog.at_level(logging.DEBUG, "transfer"), transfer.Context() as context:
        with context.socket(transfer.PULL) as pull, context.socket(transfer.PUSH) as push:
            pull.bind("tcp://127.0.0.1:*")
            push.connect(pull.last_endpoint)
            push.wait_for_peers(1, 10)
    texts = [record.getMessage() for record in caplog.records]
    assert any(text.startswith("PULL: listening tcp://") for text in texts)
    assert any(text.startswith("PUSH: connected tcp://") for text in texts)
