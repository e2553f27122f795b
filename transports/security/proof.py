"""Proofs that a side knows the token, for one conversation alone. Pure.

What is proved covers both hellos, with a fresh nonce of each side in them, and the certificate that the
accepting side has shown: a proof that was overheard is good for nothing else, and whoever stands between
two sides with a certificate of his own has nothing that he could pass on. One who passes all bytes on
connects the two with each other: the endpoint is no part of the proof, since port mappings and load
balancers change it on the way. The token itself is never sent.
A token may have a name, which the proof covers too; so far all are without one.
"""

from __future__ import annotations

import hashlib
import hmac

SIZE = hashlib.sha256().digest_size
#: who proves: neither side's proof is good as the other's
ACCEPTING, CONNECTING = b"transfer accepting", b"transfer connecting"


def transcript(connecting: bytes, accepting: bytes, certificate: bytes) -> bytes:
    """Of the two hellos as they were sent, and the accepting side's certificate (DER; b"" without TLS)."""
    digest = hashlib.sha256()
    for part in (connecting, accepting, certificate):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def prove(token: bytes, who: bytes, said: bytes, name: bytes = b"") -> bytes:
    """said: the transcript. name: of the token."""
    return hmac.digest(token, who + b"\0" + bytes([len(name)]) + name + said, "sha256")


def proved_token(tokens: tuple[bytes, ...], who: bytes, said: bytes, proof: bytes) -> bytes | None:
    """The token that this proves; None: it proves none. It takes equally long whichever it is."""
    found = [token for token in tokens if hmac.compare_digest(prove(token, who, said), proof)]
    return found[0] if found else None
