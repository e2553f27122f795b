"""What to do about TLS that did not come about. Pure."""

from __future__ import annotations

#: where nothing more is known
CLOSED = "has the other side certificates? its log says why it closed"
#: what is as likely of a peer that closes without a word
_OR = ", or have no descriptors left (ulimit -n)"
#: for who speaks no TLS to a peer that closes without a word
PLAIN = f"the other side's log says why: it may want TLS (TRANSFER_TLS_CA, on both sides or on neither){_OR}"
#: for a side that shows no certificate to a peer that closes without a word, or whose alert a reset swallowed
BARE = (
    "the other side's log says why: it may want a certificate, and this side shows none"
    f" (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY){_OR}"
)
#: what is wanted that this side has not
LACKING = frozenset({PLAIN, BARE})

#: in what OpenSSL says, and we do; the first that fits
_HINTS = (
    ("does not speak TLS", "has the other side certificates? both sides need TLS, or neither"),
    ("certificate required", "this side has to show a certificate (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY)"),
    ("unknown ca", "the other side does not trust the authority of this side's certificate"),
    ("certificate expired", "the other side says that this side's certificate has expired"),
    (
        "certificate is refused",
        "TRANSFER_TLS_CA names whom to trust, TRANSFER_TLS_SERVER_NAME the name to expect",
    ),
)


def hint_of(said: str, otherwise: str = "") -> str:
    """For an error's text."""
    return next((hint for sign, hint in _HINTS if sign in said), otherwise)
