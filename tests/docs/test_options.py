"""docs/reference/socket-options.md has every option of the code."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

import transfer
from tests.docs.reference import texts_in
from transfer import zmq
from transfer.sockets import options
from transfer.sockets.defaults import PYZMQ, TRANSFER, Defaults

TEXT = (Path(__file__).parents[2] / "docs/patterns.md").read_text()


def test_every_option_has_a_text() -> None:
    assert {name for name, _ in texts_in(options, "Attributes")} == {
        *options.OPTIONS,
        *options.CORE,
        *options.ALIASES,
        *options.ACTIONS,
    }
    assert {name for name in options.READ_ONLY if f"`{name}`" not in TEXT} == set()


def test_a_reply_is_not_awaited_for_ever() -> None:
    with transfer.Context() as context, context.socket(transfer.REQ) as req:
        assert req.rcvtimeo == 30_000


#: the fields of Defaults that are no options
NO_OPTIONS = {"reply_timeout", "shares_endpoints"}


@pytest.mark.parametrize(("make", "defaults"), [(transfer.Context, TRANSFER), (zmq.Context, PYZMQ)])
def test_every_default_comes_from_the_table_of_defaults(make, defaults):
    """A default that also stood elsewhere would override a changed field, or ignore it."""
    names = {name for name, _ in texts_in(options, "Attributes")} - options.ALIASES - options.ACTIONS
    assert {field.name for field in fields(Defaults)} - NO_OPTIONS == names
    with make() as context:
        changed = {name: _another(getattr(defaults, name)) for name in names - {"balance", "compression"}}
        for wanted in (defaults, replace(defaults, **changed)):
            context.defaults = wanted
            with context.socket(transfer.PUSH) as socket:
                assert {name: getattr(socket, name) for name in names} == {
                    name: getattr(wanted, name) for name in names
                }


def _another(value: object) -> object:
    if isinstance(value, bool):
        return not value
    return value + 7 if isinstance(value, int) else b"another"
