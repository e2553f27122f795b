"""A plugin of pytest's: suites that were written for tcp run over rdma, and fail where they do not.

    pytest -p tests.rdma.suites_plugin tests/sockets/test_push_pull.py

In the suites of `SUITES` and `MORE` every socket asks for rdma. What is about another transport is
deselected, and so is the null provider where there is a device. A test that made no rdma connection is not
counted as one over rdma. Without a device the null provider takes its place: that shows faults of ours, and
nothing of real verbs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rdma import null_provider
from tests.rdma.ends import devices
from transfer.sockets.connections.admission import ConnectionAdmission
from transfer.transports.rdma.upgrade import VerbsUpgrade

#: patterns, tensors, faults
SUITES = (
    *("sockets/test_push_pull", "sockets/test_pub_sub", "sockets/test_req_rep", "sockets/test_pair"),
    *("sockets/test_router_dealer", "sockets/test_trackers", "tensors/test_sockets"),
)
#: what takes too long for `make test`
MORE = (
    *(
        "sockets/test_faults",
        "sockets/test_unread",
        "sockets/test_waiting",
        "sockets/test_asyncio",
        "sockets/test_threads",
    ),
    *("sockets/test_lifecycle", "faults/test_killed", "faults/test_head_of_line", "faults/test_payloads"),
    "faults/test_idle_connections",
)
#: parameters of tests that are about another transport, or about the core that has no say here
_OTHERS = {"ipc", "inproc", "pure", "tcp6"}
#: not over rdma, and why
_NOT_HERE = {
    "test_policy_require_fails_at_connect": "there is a device",
    "test_policy_prefer_falls_back_and_says_so_once": "there is a device",
    # A kernel takes more than 32 eager buffers: closing waits until the peer's application takes the rest.
    "test_what_a_peer_sent_before_it_left_is_received_also_after_a_failed_send": "a kernel's buffers",
    "test_a_router_still_knows_who_sent_what_is_left": "a kernel's buffers",
    "test_credits_that_nobody_read_do_not_turn_the_close_into_a_reset": "a kernel's buffers",
    "test_what_is_sent_again_is_what_was_sent": "large payloads are free when the peer has READ them",
    "test_a_sender_killed_inside_a_frame": "a message is READ whole or not at all",
    "test_short_writes_between_processes": "a kernel's buffers",
    "test_a_large_message_holds_up_neither_credits_nor_heartbeats": "heartbeats never wait behind a payload",
    "test_a_slow_sender_of_a_large_message_is_alive": "the sender is a bare socket",
    "test_received_memory_outlives_everything": "it lies in a registered slab, not in the pool",
}
_made = [0]
_fallbacks: list[str] = []
_over: set[str] = set()


def pytest_configure(config: pytest.Config) -> None:
    made, explain = VerbsUpgrade.made, ConnectionAdmission._explain_choice

    def counted(self: Any, fd: int, channel: Any = None) -> Any:
        _made[0] += 1
        return made(self, fd, channel)

    def noted(self: Any, peer: Any) -> None:
        if peer.agreement is not None and peer.agreement.choice.fallback:
            _fallbacks.append(peer.agreement.choice.reason)
        explain(self, peer)

    VerbsUpgrade.made = counted  # type: ignore[method-assign]
    ConnectionAdmission._explain_choice = noted  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    real = bool(devices())
    out = [item for item in items if _is_about_something_else(item, real)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def _is_about_something_else(item: pytest.Item, real: bool) -> bool:
    words = set(item.name.rstrip("]").partition("[")[2].split("-"))
    if not _is_ours(item):
        return real and bool({"null"} & (words | set(getattr(item, "fixturenames", ()))))
    if "by_tcp" in getattr(item, "fixturenames", ()):
        return True
    return "inproc" in item.name or bool(_OTHERS & words) or item.name.partition("[")[0] in _NOT_HERE


def _is_ours(item: pytest.Item) -> bool:
    return item.nodeid.partition(".py")[0].endswith(SUITES + MORE)


@pytest.fixture(autouse=True)
def asks_for_rdma(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not _is_ours(request.node):
        yield
        return
    # Not with the policy `require`: connecting before binding would be an error then.
    monkeypatch.setenv("TRANSFER_PROTOCOL", "rdma")
    if devices():
        yield
        return
    # For processes that the test starts.
    path = (null_provider.IN_CHILDREN, null_provider.ROOT, os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, filter(None, path))))
    with null_provider.used():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = _made[0]
    _fallbacks.clear()
    yield
    if _is_ours(item):
        assert not _fallbacks, f"not over rdma: {_fallbacks}"
        if _made[0] > before:
            _over.add(item.nodeid)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _over:
        terminalreporter.write_line(
            f"over rdma: {len(_over)} tests of sockets passed, with {_made[0]} ends of connections in all"
        )
