"""The choice of a transport."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from transfer.transports.address import POLICIES, RANKING
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.choice import Choice, Offer, choose, permitted

ALL = RANKING


def test_the_best_that_both_have():
    assert choose(Offer(ALL), Offer(ALL)).transport == "local"
    assert choose(Offer(ALL), Offer(ALL[1:])).transport == "rdma"
    assert choose(Offer(ALL), Offer(("ucx", "tcp"))).transport == "ucx"
    assert choose(Offer(("rdma",)), Offer(("ucx",))).transport == "tcp"
    assert choose(Offer(), Offer()).transport == "tcp"


def test_a_named_transport_is_taken_and_better_ones_are_told():
    choice = choose(Offer(ALL, "tcp", source="MC_RPC_PROTOCOL"), Offer(ALL))
    assert (choice.transport, choice.unused, choice.fallback) == ("tcp", ("local", "rdma", "ucx"), False)
    assert "MC_RPC_PROTOCOL" in choice.reason and "this side" in choice.reason
    assert "the peer" in choose(Offer(ALL), Offer(ALL, "ucx")).reason


def test_what_stands_behind_tcp_is_for_who_asks():
    both = Offer(("tcp", "ucx"))
    assert choose(both, both).transport == "tcp"
    assert choose(Offer(("ucx", "tcp")), both).transport == "tcp"
    choice = choose(Offer(("tcp", "ucx"), "ucx"), both)
    assert (choice.transport, choice.unused, choice.fallback) == ("ucx", (), False)
    assert choose(Offer(("local", "tcp", "ucx"), "ucx"), Offer(("local", "tcp", "ucx"))).unused == ("local",)


def test_why_a_wish_is_not_met():
    lacking = {"rdma": "no_device: this machine has no verbs devices"}
    for choice in (
        choose(Offer(("tcp",), "rdma", lacking=lacking), Offer(ALL)),
        choose(Offer(ALL), Offer(("tcp",), "rdma", lacking=lacking)),
    ):
        assert (choice.wanted, choice.word) == ("rdma", "no_device")
        assert "no verbs devices" in choice.reason
    assert choose(Offer(("tcp",)), Offer(ALL, "ucx")).word == "missing"


def test_why_neither_side_has_it():
    here, there = {"rdma": "no_gid: no GID 9"}, {"rdma": "unnamed: not named"}
    choice = choose(Offer(("tcp",), "rdma", lacking=here), Offer(("tcp",), lacking=there))
    assert "neither side has it (this side: no GID 9; the peer: not named)" in choice.reason
    assert choice.word == "no_gid"
    choice = choose(Offer(("tcp",), "rdma", lacking=here), Offer(("tcp",), lacking=here))
    assert "neither side has it (no GID 9)" in choice.reason
    choice = choose(Offer(("tcp",), "tcp"), Offer(("tcp",)), base="inproc")
    assert "endpoints of inproc have no other" in choice.reason


def test_naming_means_prefer():
    choice = choose(Offer(ALL, "rdma"), Offer(("tcp",)))
    assert (choice.transport, choice.fallback) == ("tcp", True)
    assert "the peer does not have it" in choice.reason
    assert "this side does not have it" in choose(Offer(("tcp",)), Offer(ALL, "rdma")).reason
    assert "neither side has it" in choose(Offer(("tcp",)), Offer(("tcp",), "rdma")).reason


@pytest.mark.parametrize(("ours", "theirs", "policy"), [("require", "auto", None), ("auto", "require", None),
                                                        ("auto", "auto", "require")])  # fmt: skip
def test_require_fails_on_either_side(ours, theirs, policy):
    with pytest.raises(HandshakeError, match="rdma") as caught:
        choose(Offer(("tcp",), "rdma", ours), Offer(ALL, policy=theirs), policy)
    assert caught.value.reason == "policy"


def test_require_without_a_name_is_met_by_the_best():
    assert choose(Offer(ALL, policy="require"), Offer(("tcp",))).transport == "tcp"


def test_the_stricter_side_wins():
    assert choose(Offer(ALL, "tcp", "require"), Offer(ALL, "rdma")).transport == "tcp"
    assert choose(Offer(ALL, "ucx"), Offer(ALL, "rdma", "require")).transport == "rdma"
    assert choose(Offer(ALL, "ucx"), Offer(ALL, "rdma")).transport == "tcp"
    with pytest.raises(HandshakeError) as caught:
        choose(Offer(ALL, "ucx", "require"), Offer(ALL, "rdma", "require"))
    assert caught.value.reason == "policy"


def test_who_names_tcp_takes_no_other_whatever_the_peer_wishes():
    for mine in ("auto", "prefer", "require"):
        ours = Offer(ALL, "tcp", mine, "TRANSFER_PROTOCOL")
        for name in ("local", "rdma", "ucx"):
            for pair in ((ours, Offer(ALL, name)), (Offer(ALL, name), ours)):
                assert choose(*pair).transport == "tcp"
            with pytest.raises(HandshakeError, match=r"TRANSFER_PROTOCOL.* allows tcp alone") as caught:
                choose(ours, Offer(ALL, name, "require"))
            assert caught.value.reason == "policy"


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_the_word_of_a_peer_that_proves_nothing_starts_no_transport_of_the_network(known, loopback):
    """Beyond loopback, where the user lets strangers in, `auto` goes on as it is."""
    full = Offer(("local", "rdma", "tcp", "ucx"))
    ours = permitted(full, known=known, loopback=loopback)
    for wish, allowed in (("rdma", known or not loopback), ("ucx", known)):
        stranger = Offer(ALL, wish, "require")
        if allowed:
            assert choose(ours, stranger).transport == wish
            continue
        assert ours.lacking[wish].startswith("unnamed: ")
        with pytest.raises(HandshakeError, match=f"TRANSFER_PROTOCOL={wish}") as caught:
            choose(ours, stranger)
        assert caught.value.reason == "policy"
        assert choose(ours, Offer(ALL, wish)).transport != wish
        assert choose(permitted(replace(full, protocol=wish), known=known, loopback=loopback), stranger)
    assert choose(ours, Offer(ALL[1:])).transport == ("rdma" if known or not loopback else "tcp")


def test_ipc_stays_ipc():
    assert choose(Offer(ALL), Offer(ALL), base="ipc") == Choice("ipc", "the best that both have: ipc")


def test_names_of_later_releases_do_no_harm():
    assert choose(Offer(("tcp",)), Offer(("warp", "tcp"))).transport == "tcp"
    assert choose(Offer(ALL), Offer((*ALL, "warp"), "warp")).transport == "local"


def test_what_another_distribution_brings_to_both_comes_behind_local():
    ours, theirs = Offer(("local", "warp", "rdma", "tcp")), Offer(("local", "warp", "alloy", "rdma", "tcp"))
    assert choose(ours, theirs).transport == "local"
    assert choose(Offer(ours.transports[1:]), theirs).transport == "warp"
    assert choose(ours, Offer(theirs.transports, "rdma")).unused == ("local", "warp")
    assert choose(Offer(("warp", "alloy", "tcp")), Offer(("alloy", "warp", "tcp"))).transport == "alloy"
    assert choose(ours, Offer(theirs.transports, "warp")) == Choice(
        "warp", "warp was requested by the peer (default)", ("local",)
    )


offers = st.builds(
    Offer,
    st.lists(st.sampled_from((*ALL, "warp")), unique=True).map(tuple),
    st.sampled_from(("auto", *ALL)),
    st.sampled_from(POLICIES),
)


@given(offers, offers)
def test_both_sides_come_to_the_same(one, other):
    outcomes = []
    for local, remote in ((one, other), (other, one)):
        try:
            choice = choose(local, remote)
        except HandshakeError as error:
            outcomes.append(error.reason)
        else:
            outcomes.append((choice.transport, choice.unused, choice.fallback))
            common = set(one.transports) & set(other.transports) | {"tcp"}
            assert choice.transport in common
            assert set(choice.unused) <= common - {choice.transport}
            assert choice.reason
    assert outcomes[0] == outcomes[1]
    assert "require" in (one.policy, other.policy) or outcomes[0] != "policy"
