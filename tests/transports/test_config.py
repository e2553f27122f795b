"""What the environment may say, and what happens when it says nonsense."""

from __future__ import annotations

import pytest

from transfer.transports.config import TransportConfig, core_choice, load, ucx_driver, ucx_options
from transfer.transports.errors import OptionError


def test_an_empty_environment_decides_nothing():
    assert load({}) == TransportConfig("auto", "default", "auto", "default")
    assert load({"MC_RPC_PROTOCOL": "", "MC_RPC_POLICY": " "}) == load({})


def test_ours_wins_over_mooncakes():
    config = load({"MC_RPC_PROTOCOL": "rdma", "TRANSFER_PROTOCOL": "TCP"})
    assert (config.protocol, config.protocol_source) == ("tcp", "TRANSFER_PROTOCOL")
    config = load({"MC_RPC_PROTOCOL": "rdma"})
    assert (config.protocol, config.protocol_source) == ("rdma", "MC_RPC_PROTOCOL")


def test_policy():
    config = load({"MC_RPC_POLICY": "require"})
    assert (config.policy, config.policy_source) == ("require", "MC_RPC_POLICY")


@pytest.mark.parametrize("name", ["TRANSFER_PROTOCOL", "MC_RPC_PROTOCOL", "MC_RPC_POLICY"])
def test_nonsense_is_refused_by_name(name):
    with pytest.raises(OptionError, match=name) as caught:
        load({name: "carrier-pigeon"})
    assert "one of auto" in caught.value.hint


def test_core():
    assert core_choice({}) == "auto"
    assert core_choice({"TRANSFER_CORE": "Pure"}) == "pure"
    with pytest.raises(OptionError, match="TRANSFER_CORE"):
        core_choice({"TRANSFER_CORE": "fast"})


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("TRANSFER_PROTOCOL", "ucx")
    monkeypatch.setenv("TRANSFER_CORE", "native")
    assert load().protocol == "ucx"
    assert core_choice() == "native"


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, {"RNDV_THRESH", "TCP_TX_SEG_SIZE"}),
        ({"UCX_RNDV_THRESH": "1"}, {"TCP_TX_SEG_SIZE"}),
        ({"UCX_TLS": "rc,ud,self"}, {"RNDV_THRESH"}),
        ({"UCX_TLS": "tcp,sm,self"}, {"RNDV_THRESH", "TCP_TX_SEG_SIZE"}),
        ({"UCX_TLS": "^cuda"}, {"RNDV_THRESH", "TCP_TX_SEG_SIZE"}),
    ],
)
def test_options_of_ucx_that_the_user_did_not_decide(environ, names):
    assert set(ucx_options({"RNDV_THRESH": "64K", "TCP_TX_SEG_SIZE": "64K"}, environ)) == names


def test_the_driver_of_ucx():
    assert ucx_driver({}) == "auto" and ucx_driver({"TRANSFER_UCX_DRIVER": "LibUCP"}) == "libucp"
    with pytest.raises(OptionError, match="TRANSFER_UCX_DRIVER"):
        ucx_driver({"TRANSFER_UCX_DRIVER": "ucx-py"})
