"""Classifies why a TLS connection failed, as a constant word for counts. Pure."""

from __future__ import annotations

#: the words that refused connections are counted by; each count exists from the start
WORDS = (
    "certificate", "closed", "crowded", "expired", "late", "plain", "protocol", "unnamed",
)  # fmt: skip

#: fragments of error texts of OpenSSL and of this package, in lower case; the first that matches counts
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


def word_of(text: str) -> str:
    """Returns the word for an error's text. "unnamed": no certificate was sent; "plain": no TLS;
    "certificate": it is not trusted; "expired": it is expired or not yet valid."""
    small = text.lower()
    return next((word for sign, word in _SIGNS if sign in small), "protocol")
