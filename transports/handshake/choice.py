"""Which transport carries a pair's data: one pure function over what both sides offer and wish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from transfer.transports.address import POLICIES
from transfer.transports.errors import HandshakeError

#: best first; every pair has the last, since hello travels on it. Those of other distributions, which were
#: installed on both sides to be used, come behind the first
RANKING = ("local", "rdma", "ucx", "tcp")
BASE = RANKING[-1]
LOCAL = RANKING[0]
#: what to do when the policy `require` cannot be met
HINT = "the policy prefer falls back to another transport"
#: why a transport is not offered to peers that prove nothing, as "word: text"
_UNNAMED = (
    "unnamed: without certificates or a token each side has to name it, by {0}:// or TRANSFER_PROTOCOL={0}"
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one side has, and what it wishes.

    transports: the usable ones; the connection's own need not be named. What stands behind "tcp" is
    there for who asks for it by name, and expected to be no better than TCP here. protocol: "auto",
    or the one wished for. policy: "auto", "prefer", "require". source: what made the wish, for
    people (the name of a variable, "endpoint", "argument"). lacking: why it does not have the
    others, transport -> a constant word for counters and a text for people, as one text "word: text".
    """

    transports: tuple[str, ...] = ()
    protocol: str = "auto"
    policy: str = "auto"
    source: str = "default"
    lacking: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def strictness(self) -> int:
        # To name a transport means to prefer it, whatever the policy says.
        return max(POLICIES.index(self.policy), 0 if self.protocol == "auto" else 1)

    @property
    def better(self) -> frozenset[str]:
        """What is better than the base on this side."""
        names = self.transports
        return frozenset(names[: names.index(BASE)] if BASE in names else names)


@dataclass(frozen=True, slots=True)
class Choice:
    """transport: the chosen one. reason: why, in words. unused: better ones that both sides have.
    fallback: the wish could not be met (to be logged once and counted). wanted: what was wished for
    then, and word: a constant word that says why not, for counters."""

    transport: str
    reason: str
    unused: tuple[str, ...] = ()
    fallback: bool = False
    wanted: str = ""
    word: str = ""


def permitted(offer: Offer, *, known: bool, loopback: bool) -> Offer:
    """What is left of this side's offer for one connection: where peers prove nothing, the word of a peer
    alone starts no transport of the network in this process.

    known: faster transports are for peers that have shown who they are. loopback: only this machine gets
    there. Then a transport of the network has to be named on this side. Beyond loopback the user has let
    strangers in, and `auto` takes what is better than TCP there.
    """
    if known:
        return offer
    kept = {LOCAL, BASE, offer.protocol} | (frozenset() if loopback else offer.better)
    lost = [name for name in offer.transports if name not in kept]
    return replace(
        offer,
        transports=tuple(name for name in offer.transports if name in kept),
        lacking={**offer.lacking, **{name: _UNNAMED.format(name) for name in lost}},
    )


def choose(local: Offer, remote: Offer, policy: str | None = None, base: str = BASE) -> Choice:
    """Decides; both sides come to the same transport. Raises HandshakeError("policy").

    policy: a stricter one from the endpoint, for our side. base: the transport that the
    connection uses already, which both have. A transport named by either side is taken if both
    have it. If the sides name different ones, the stricter side wins; between equals the base
    wins, since it always works. A side that names the base takes no other. "local" is nobody's to
    name: it is taken where both have it and nobody names another.
    """
    strict = max(strictness(local, remote), POLICIES.index(policy or "auto"))
    both = _common(local, remote, base)
    better = tuple(name for name in both if name in local.better & remote.better)
    wish, whose = _wish(local, remote, base)
    if wish is None:
        raise HandshakeError("policy", whose, hint="let both sides ask for the same transport")
    if wish == "auto":
        best = better[0] if better else base
        return Choice(best, f"the best that both have: {', '.join((*better, base))}")
    if wish in both:
        unused = tuple(name for name in both[: both.index(wish)] if name in better)
        return Choice(wish, f"{wish} was asked for by {whose}", unused)
    reason = f"{wish} was asked for by {whose}, and {_lacking(wish, local, remote)} it"
    lacks = local if wish not in local.transports else remote
    word, _, why = lacks.lacking.get(wish, "").partition(": ")
    if why:
        reason += f" ({why})"
    if strict >= POLICIES.index("require"):
        raise HandshakeError("policy", reason, hint=HINT)
    return Choice(better[0] if better else base, reason, fallback=True, wanted=wish, word=word or "missing")


def strictness(local: Offer, remote: Offer) -> int:
    """The stricter end's policy, as an index into POLICIES."""
    return max(local.strictness, remote.strictness)


def _lacking(wish: str, local: Offer, remote: Offer) -> str:
    if wish in local.transports:
        return "the peer does not have"
    return "this side does not have" if wish in remote.transports else "neither side has"


def _common(local: Offer, remote: Offer, base: str) -> tuple[str, ...]:
    """What both have, best first."""
    if base not in RANKING:
        return (base,)  # ipc and inproc are chosen by their endpoint, and nothing is better there
    common = set(local.transports) & set(remote.transports) | {base}
    others = sorted(common.difference(RANKING))
    return tuple(name for name in (LOCAL, *others, *RANKING[1:]) if name in common)


def _wish(local: Offer, remote: Offer, base: str) -> tuple[str | None, str]:
    """(transport or "auto", who wishes it); (None, why) if both require what cannot be had together."""
    named = [
        (offer, f"{side} ({offer.source})")
        for offer, side in ((local, "this side"), (remote, "the peer"))
        if offer.protocol != "auto"
    ]
    if not named:
        return "auto", ""
    if len(named) == 1 or named[0][0].protocol == named[1][0].protocol:
        return named[0][0].protocol, named[0][1]
    (first, who), (second, who_else) = named
    if second.protocol == base:
        (first, who), (second, who_else) = named[::-1]
    if first.protocol == base:
        if second.strictness == POLICIES.index("require"):
            return None, f"{who_else} requires {second.protocol}, and {who} allows {base} alone"
        return base, who
    if first.strictness != second.strictness:
        return (first.protocol, who) if first.strictness > second.strictness else (second.protocol, who_else)
    if first.strictness == POLICIES.index("require"):
        return None, f"{who} requires {first.protocol} and {who_else} {second.protocol}"
    return base, f"nobody, but {who} wishes {first.protocol}, {who_else} {second.protocol}; {base}"
