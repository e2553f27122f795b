"""What to do about TLS that did not come about. Pure."""

from __future__ import annotations

#: where nothing more is known
CLOSED = "has the other side certificates? its log says why it closed"
#: for who speaks no TLS to somebody who closes without a word
PLAIN = "does the other side want TLS? both sides need it (TRANSFER_TLS_CA), or neither"
#: for a side that shows no certificate to a peer that closes without a word, or whose alert a reset swallowed
BARE = "does the other side want a certificate? this side shows none (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY)"
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
