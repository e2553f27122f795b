"""Why a TLS connection did not come about: a constant word, for counts. Pure."""

from __future__ import annotations

#: what is counted of those who were not let in, each there from the start
WORDS = (
    "certificate", "closed", "crowded", "expired", "late", "plain", "protocol", "unnamed",
)  # fmt: skip

#: in what OpenSSL says, and we do, in small letters; the first that fits
_SIGNS = (
    ("has expired", "expired"),
    ("certificate_expired", "expired"),
    ("is not yet valid", "expired"),
    ("did not return a certificate", "unnamed"),
    ("peer_did_not_return_a_certificate", "unnamed"),
    ("does not speak tls", "plain"),
    ("wrong version number", "plain"),
    ("wrong_version_number", "plain"),
    ("http request", "plain"),
    ("http_request", "plain"),
    ("packet length too long", "plain"),
    ("record layer failure", "plain"),
    ("record_layer_failure", "plain"),
    ("certificate", "certificate"),
    ("unknown ca", "certificate"),
    ("unknown_ca", "certificate"),
    ("closed", "closed"),
    ("reset", "closed"),
    ("eof", "closed"),
    ("aborted", "closed"),
)


def word_of(said: str) -> str:
    """Of an error's text. "unnamed": no certificate was shown; "plain": no TLS; "certificate": one that is
    not trusted; "expired": one whose time is over, or not yet come."""
    small = said.lower()
    return next((word for sign, word in _SIGNS if sign in small), "protocol")
