"""Libraries that take long to load are loaded where nobody waits for the reactor."""

from __future__ import annotations

import sys
import threading
import types

import pytest

import transfer
from transfer.transports import probe, registry
from transfer.transports.errors import NotSupported
from transfer.transports.handshake.choice import Offer


@pytest.fixture
def calls(monkeypatch):
    """The threads in which the loader of ucx was called."""
    found: list[str] = []

    def load() -> None:
        found.append(threading.current_thread().name)
        raise NotSupported("there is none")

    module = types.ModuleType("slow_library")
    module.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slow_library", module)
    monkeypatch.setitem(registry._LOADERS, "ucx", "slow_library:load")
    monkeypatch.setattr(registry, "_prepared", set())
    return found


@pytest.mark.parametrize(
    ("offer", "scheme", "wanted"),
    [
        (Offer(("tcp", "ucx")), "tcp", False),
        (Offer(("tcp", "ucx")), "ucx", True),
        (Offer(("tcp",)), "ucx", False),
        (Offer(("tcp", "ucx"), "ucx"), "tcp", True),
        (Offer(("local", "ucx", "tcp")), "tcp", True),
        (Offer(("local", "tcp")), "tcp", False),
    ],
)
def test_only_what_will_probably_be_chosen_is_loaded(calls, offer, scheme, wanted):
    prepare = registry.preparation(offer, scheme)
    assert (prepare is not None) == wanted
    if prepare is not None:
        prepare()  # its error is for the upgrade to tell
        assert len(calls) == 1
        assert registry.preparation(offer, scheme) is None


@pytest.mark.parametrize("binds", [True, False])
def test_it_is_loaded_before_the_connection_and_not_in_the_reactor(calls, monkeypatch, binds):
    seen = probe.probe
    monkeypatch.setattr(
        probe, "probe", lambda name: probe.Probe(True, better=False) if name == "ucx" else seen(name)
    )
    with transfer.Context() as context:
        pull, push = context.socket(transfer.PULL), context.socket(transfer.PUSH)
        with pull, push:
            endpoint = pull.bind("ucx://127.0.0.1:0" if binds else "tcp://127.0.0.1:0")
            if binds:
                assert calls == [threading.current_thread().name]
                return
            assert not calls
            monkeypatch.setattr(registry, "upgrade", _declines)
            push.connect(str(pull.last_endpoint).replace("tcp", "ucx"))
            push.wait_for_peers(1, 20)
            assert calls == ["transfer-lookup"], endpoint


def _declines(name: str) -> None:
    raise registry.Declined("gone", "there is none")
