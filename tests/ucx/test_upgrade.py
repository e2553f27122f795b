"""What a peer says of itself is checked before UCX hears of it. UCX is not loaded: a fake stands there."""

from __future__ import annotations

import base64
import threading
import zlib
from types import SimpleNamespace

import pytest

from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, NotSupported, ProtocolError
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.sizes import LARGE
from transfer.transports.ucx import upgrade as ucx

ADDRESS = b"where the peer's worker is"


def card(**other):
    good = {
        "version": 1, "ucx": "1.21.0", "apart": LARGE, "tag": "00000000000000f0",
        "address": base64.b64encode(ADDRESS).decode(), "check": zlib.crc32(ADDRESS),
    }  # fmt: skip
    return {key: value for key, value in (good | other).items() if value is not None}


class FakeEndpoint:
    closed = False

    def close(self):
        self.closed = True


class FakePort:
    def __init__(self, *_, **__):
        self.connected = []
        self.lock = threading.Lock()
        self.worker = SimpleNamespace(address=b"ours", connect=self.connect)
        self.error = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def connect(self, address):
        if self.error:
            raise self.error
        self.connected.append(address)
        return FakeEndpoint()


@pytest.fixture
def side(monkeypatch):
    monkeypatch.setattr(ucx.driver, "fabric", lambda: SimpleNamespace(version="1.21.3"))
    monkeypatch.setattr(ucx, "UcxPort", FakePort)
    return ucx.UcxUpgrade(
        SimpleNamespace(own={}, shared={}, reactor=None, socket_type=SocketType.PAIR), None, connecting=True
    )


def test_a_good_card_connects(side):
    answer = side.accept(card())
    assert side.around.own["ucx"].connected == [ADDRESS]
    assert base64.b64decode(answer["address"]) == b"ours" and int(answer["tag"], 16) % 4 == 0
    assert side._theirs == 0xF0
    endpoint = side._endpoint
    side.close()
    assert endpoint.closed


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": None}, {"address": 5}, {"address": "no base64!"}, {"address": "A" * 20_000}, {"check": 1},
        {"check": "x"}, {"tag": "xyz"}, {"tag": "1"}, {"tag": "f" * 17}, {"version": "1"}, {"apart": -1},
        {"ucx": ""},
    ],
)  # fmt: skip
def test_nonsense_never_reaches_ucx(side, wrong):
    with pytest.raises(ProtocolError):
        side.accept(card(**wrong))
    assert not getattr(side.around.own.get("ucx"), "connected", [])


@pytest.mark.parametrize("other", [{"version": 2}, {"apart": 4096}, {"ucx": "1.17.0"}, {"ucx": "2.21.0"}])
def test_what_does_not_fit_is_declined(side, other):
    with pytest.raises(Declined) as caught:
        side.accept(card(**other))
    assert caught.value.reason == "version"
    assert "ucx" not in side.around.own or not side.around.own["ucx"].connected


def test_an_address_that_ucx_refuses_is_declined(side):
    side.offer()
    side.around.own["ucx"].error = Broken("unreachable")
    with pytest.raises(Declined) as caught:
        side.finish(card())
    assert caught.value.reason == "unreachable"


def test_without_ucx_it_is_declined(side, monkeypatch):
    def missing():
        raise NotSupported("UCX cannot be loaded", hint="pip install libucx-cu12")

    monkeypatch.setattr(ucx.driver, "fabric", missing)
    with pytest.raises(Declined) as caught:
        side.offer()
    assert caught.value.hint
