"""A process without descriptors, over ucx: as tests/sockets/test_no_descriptors.py."""

from __future__ import annotations

import pytest

import transfer
from tests.sockets.test_no_descriptors import (  # noqa: F401
    core,
    test_every_call_says_what_to_raise,
    test_peers_meet_when_there_are_some_again,
)

pytestmark = pytest.mark.keeps("UCX's own descriptors")


@pytest.fixture
def endpoint():
    """What is loaded late, and UCX itself, is there."""
    place = "ucx://127.0.0.1:0"
    with transfer.Context() as context:
        with context.socket(transfer.PULL) as pull, context.socket(transfer.PUSH) as push:
            pull.bind(place)
            push.connect(pull.last_endpoint)
            push.send(bytes(1 << 20))
            pull.recv()
    return place
