"""A name with more addresses than this process has descriptors."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from tests.discovery.waits import until
from transfer import PUSH
from transfer.transports.descriptors import is_reserved

NAME = "pods.test"
LISTED = 1000

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    yield 400
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_answer_with_many_addresses_leaves_descriptors_for_files(context, names, few_descriptors, caplog):
    """Each of them takes a connection, and says nothing."""
    followed = few_descriptors // 2
    with socket.create_server(("0.0.0.0", 0), backlog=4096) as silent:
        port = silent.getsockname()[1]
        names.put(NAME, [f"127.1.{number // 250}.{1 + number % 250}" for number in range(LISTED)])
        with context.socket(PUSH, linger=0) as push:
            push.connect(f"dns://{NAME}:{port}")
            until(lambda: push._links.state.counts.get("member:added"), "an answer")
            until(lambda: len(os.listdir("/proc/self/fd")) > followed, "their connections")
            with open("/dev/null") as file:
                assert not is_reserved(file.fileno())
            assert push._links.state.counts["member:added"] == followed
            until(lambda: push._links.state.counts["looked_up:done"] > 1, "one more answer")
    warnings = [text for text in caplog.messages if "left out" in text]
    assert len(warnings) == 1 and f"{LISTED} addresses are listed, {followed} are followed" in warnings[0]
