"""Chooses the transport for a pair's data: one pure function over what both sides offer and request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from transfer.transports.address import BASE, LOCAL, POLICIES, RANKING
from transfer.transports.errors import HandshakeError

#: what to do when the policy `require` cannot be met
HINT = "the policy prefer falls back to another transport"
#: why a transport is not offered to unauthenticated peers, as "word: text"
_UNNAMED = (
    "unnamed: without certificates or a token each side has to name it, by {0}:// or TRANSFER_PROTOCOL={0}"
)
_UNENCRYPTED = "unencrypted: it does not encrypt, and this endpoint has CURVE"


@dataclass(frozen=True, slots=True)
class Offer:
    """The transports of one side, and the one that it requests.

    transports: the usable ones; the connection's own need not be listed. Those behind "tcp" are for a
    request by name, and expected to be no better than TCP here. protocol: "auto", or the requested
    transport. policy: "auto", "prefer", "require". source: what made the request, as text (the name
    of a variable, "endpoint", "argument"). lacking: why it does not have the others, transport ->
    "word: text", a constant word for counters and a text for logs.
    """

    transports: tuple[str, ...] = ()
    protocol: str = "auto"
    policy: str = "auto"
    source: str = "default"
    lacking: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def strictness(self) -> int:
        # To name a transport means to prefer it, whatever the policy is.
        return max(POLICIES.index(self.policy), 0 if self.protocol == "auto" else 1)

    @property
    def better(self) -> frozenset[str]:
        """The transports that are better than the base on this side."""
        names = self.transports
        return frozenset(names[: names.index(BASE)] if BASE in names else names)


@dataclass(frozen=True, slots=True)
class Choice:
    """transport: the chosen one. reason: why, as text. unused: better ones that both sides have.
    fallback: the request could not be met (logged once and counted). wanted: the transport requested then,
    and word: a constant word for the reason, for counters."""

    transport: str
    reason: str
    unused: tuple[str, ...] = ()
    fallback: bool = False
    wanted: str = ""
    word: str = ""


def permitted(offer: Offer, *, known: bool, loopback: bool) -> Offer:
    """This side's offer for one connection. Where peers do not authenticate, the request of a peer alone
    starts no network transport in this process.

    known: faster transports are for authenticated peers. loopback: only this machine reaches the endpoint.
    Then this side has to name a network transport. Beyond loopback the user has allowed unauthenticated
    clients, and `auto` takes the transports that are better than TCP.
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


def encrypted(offer: Offer) -> Offer:
    """The offer without transports that send over a network and do not encrypt."""
    lost = [name for name in offer.transports if name not in (LOCAL, BASE)]
    return replace(
        offer,
        transports=tuple(name for name in offer.transports if name not in lost),
        lacking={**offer.lacking, **dict.fromkeys(lost, _UNENCRYPTED)},
    )


def choose(local: Offer, remote: Offer, policy: str | None = None, base: str = BASE) -> Choice:
    """Decides; both sides choose the same transport. Raises HandshakeError("policy").

    policy: a stricter one from the endpoint, for our side. base: the transport that the
    connection uses already, which both have. A transport named by either side is taken if both
    have it. If the sides name different ones, the stricter side wins; between equals the base
    wins, since it always works. A side that names the base takes no other. No side can name
    "local": it is taken where both have it and neither names another.
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
        return Choice(wish, f"{wish} was requested by {whose}", unused)
    reason = f"{wish} was requested by {whose}, and {_lacking(wish, local, remote, base)}"
    lacks = local if wish not in local.transports else remote
    word = lacks.lacking.get(wish, "").partition(": ")[0]
    if strict >= POLICIES.index("require"):
        raise HandshakeError("policy", reason, hint=HINT)
    return Choice(better[0] if better else base, reason, fallback=True, wanted=wish, word=word or "missing")


def strictness(local: Offer, remote: Offer) -> int:
    """The policy of the stricter side, as an index into POLICIES."""
    return max(local.strictness, remote.strictness)


def _lacking(wish: str, local: Offer, remote: Offer, base: str) -> str:
    """Which side lacks the transport, and why. For the peer the sides' names are swapped."""
    why = {
        side: offer.lacking.get(wish, "").partition(": ")[2]
        for side, offer in (("this side", local), ("the peer", remote))
        if wish not in offer.transports
    }
    if not why:
        return f"endpoints of {base} have no other transport"
    who = "neither side has it" if len(why) > 1 else f"{next(iter(why))} does not have it"
    if len(set(why.values())) == 1:
        reasons = next(iter(why.values()))
    else:
        reasons = "; ".join(f"{side}: {reason}" for side, reason in why.items() if reason)
    return f"{who} ({reasons})" if reasons else who


def _common(local: Offer, remote: Offer, base: str) -> tuple[str, ...]:
    """The transports that both have, best first."""
    if base not in RANKING:
        return (base,)  # ipc and inproc are chosen by their endpoint; nothing is better there
    common = set(local.transports) & set(remote.transports) | {base}
    others = sorted(common.difference(RANKING))
    return tuple(name for name in (LOCAL, *others, *RANKING[1:]) if name in common)


def _wish(local: Offer, remote: Offer, base: str) -> tuple[str | None, str]:
    """(transport or "auto", which side requests it); (None, why) if both sides require different ones."""
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
    return base, f"neither side: {who} requests {first.protocol}, {who_else} {second.protocol}"
