"""Hints for failed TLS. Pure."""

from __future__ import annotations

#: if nothing more is known
CLOSED = "has the other side certificates? its log says why it closed"
#: what is as likely if a peer closes without an answer
_OR = ", or have no descriptors left (ulimit -n); another protocol may listen there"
#: for a side without TLS, if the peer closes without an answer
PLAIN = f"the other side's log says why: it may want TLS (TRANSFER_TLS_CA, on both sides or on neither){_OR}"
#: for a side without a certificate, if the peer closes without an answer, or a reset lost its alert
BARE = (
    "the other side's log says why: it may want a certificate, and this side shows none"
    f" (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY){_OR}"
)
#: for a side with CURVE
CURVE = "both sides need CURVE, one of them as the server, whose public key is the other's curve_serverkey"
#: hints that name something that this side lacks
LACKING = frozenset({PLAIN, BARE})

#: text in errors of OpenSSL and of this library -> hint; the first match counts
_HINTS = (
    ("does not speak TLS", "has the other side certificates? both sides need TLS, or neither"),
    ("certificate required", "this side has to show a certificate (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY)"),
    ("unknown ca", "the other side does not trust the authority of this side's certificate"),
    ("certificate expired", "to the other side this side's certificate has expired"),
    (
        "certificate is refused",
        "TRANSFER_TLS_CA names the authorities to trust, TRANSFER_TLS_SERVER_NAME the name to expect",
    ),
)


def hint_of(text: str, otherwise: str = "") -> str:
    """The hint for an error's text."""
    return next((hint for sign, hint in _HINTS if sign in text), otherwise)
