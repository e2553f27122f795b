"""Proofs that a side knows the token, valid for one connection only. Pure.

A proof covers both hellos, with a fresh nonce of each side, and the accepting side's certificate. So a
recorded proof is useless elsewhere, and a man in the middle with another certificate has no proof to forward.
A relay that forwards all bytes connects the two sides with each other: the endpoint is not part of the proof,
since port mappings and load balancers change it on the way. The token itself is never sent. A token may have
a name, which the proof covers too; so far none has one.
"""

from __future__ import annotations

import hashlib
import hmac

SIZE = hashlib.sha256().digest_size
#: the role of the side that proves: a proof of one role is not valid for the other
ACCEPTING, CONNECTING = b"transfer accepting", b"transfer connecting"


def transcript(connecting: bytes, accepting: bytes, binding: bytes) -> bytes:
    """Covers the two hellos as they were sent, and the TLS connection. binding: the accepting side's
    certificate (DER), the bytes that keyed TLS exports, or b"" without TLS."""
    digest = hashlib.sha256()
    for part in (connecting, accepting, binding):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def prove(token: bytes, who: bytes, conversation: bytes, name: bytes = b"") -> bytes:
    """Returns a proof. conversation: the transcript. name: of the token."""
    return hmac.digest(token, who + b"\0" + bytes([len(name)]) + name + conversation, "sha256")


def proved_token(tokens: tuple[bytes, ...], who: bytes, conversation: bytes, proof: bytes) -> bytes | None:
    """The token that a proof proves, or None. Takes the same time for every token."""
    found = [token for token in tokens if hmac.compare_digest(prove(token, who, conversation), proof)]
    return found[0] if found else None
