"""Commands between programs and a broker's registry, in the native protocol.

REGISTER announces an endpoint for a lease, RENEW extends it, UNREGISTER ends it. LOOK_UP requests the members
of a name, once or while the connection lasts: LISTED has all of them, and CHANGED later changes. See
docs/protocols/native.md. Pure: no sockets.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from typing import Any

from transfer.broker.core.registry_types import Listed, LookUp, Member, Registering
from transfer.broker.protocols.native import Head, Op, decode_words, encode, encode_words
from transfer.transports.address import REGISTRY_NAME, is_numeric, parse
from transfer.transports.errors import AddressError, ProtocolError

#: commands of programs to the registry
OF_REGISTRY = frozenset((Op.REGISTER, Op.RENEW, Op.UNREGISTER, Op.LOOK_UP))
#: limits of a lease in seconds
SHORTEST_LEASE, LONGEST_LEASE = 1.0, 3600.0
#: limits on the bytes of an endpoint, and of its metadata
LONGEST_ENDPOINT, LONGEST_METADATA = 300, 1024
#: limit on the pairs of metadata
MOST_METADATA = 16
LARGEST_EPOCH = (1 << 63) - 1


def encode_registering(number: int, wish: Registering) -> bytes:
    """Encodes a REGISTER."""
    endpoint, epoch, metadata = wish.member
    words = {"name": wish.name, "lease": wish.lease, "endpoint": endpoint, "epoch": epoch}
    return encode(Op.REGISTER, number, encode_words({**words, "metadata": dict(metadata)}))


def decode_registering(head: Head) -> Registering:
    """Decodes a REGISTER. Raises ProtocolError."""
    words = decode_words(head)
    lease = words.get("lease")
    if type(lease) not in (int, float) or not SHORTEST_LEASE <= lease <= LONGEST_LEASE:  # type: ignore[operator]
        raise ProtocolError("lease", f"a lease of {lease!r} seconds, not 1 to {LONGEST_LEASE:g}")
    return Registering(check_name(words.get("name")), float(lease), _member(words))  # type: ignore[arg-type]


def encode_look_up(number: int, request: LookUp) -> bytes:
    """Encodes a LOOK_UP."""
    return encode(Op.LOOK_UP, number, encode_words(request._asdict()))


def decode_look_up(head: Head) -> LookUp:
    """Decodes a LOOK_UP. Raises ProtocolError."""
    words = decode_words(head)
    watch, revision = words.get("watch", False), words.get("revision", -1)
    if type(watch) is not bool or type(revision) is not int:
        raise ProtocolError("look_up", f"watch={watch!r}, revision={revision!r}")
    return LookUp(check_name(words.get("name")), watch, revision)


def encode_listed(op: Op, number: int, listed: Listed) -> tuple[bytes, bytes]:
    """Encodes (head, part) of LISTED or CHANGED. The part has the members: they may be many."""
    words = {"registry": listed.registry, "settled": listed.settled, "revision": listed.revision}
    head = encode(op, number, encode_words({**words, "same": listed.same}))
    members = [[one.endpoint, one.epoch, dict(one.metadata)] for one in listed.members]
    part = json.dumps({"members": members, "gone": listed.gone}, separators=(",", ":"))
    return head, part.encode()


def decode_listed(head: Head, part: bytes) -> Listed:
    """Decodes LISTED or CHANGED. Raises ProtocolError."""
    words = decode_words(head)
    try:
        listing = json.loads(part)
        members = tuple(
            _member({"endpoint": endpoint, "epoch": epoch, "metadata": metadata})
            for endpoint, epoch, metadata in listing["members"]
        )
        gone = tuple(check_endpoint(one) for one in listing["gone"])
        revision, same = int(words["revision"]), bool(words["same"])
        return Listed(str(words["registry"]), bool(words["settled"]), revision, members, gone, same)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError("listed", f"a listing that cannot be decoded: {error!r}") from error


def check_name(name: object) -> str:
    """Raises ProtocolError for an invalid name of a registry."""
    if not isinstance(name, str) or not REGISTRY_NAME.match(name):
        raise ProtocolError(
            "name",
            f"{name!r} is not a valid name",
            hint="letters, digits and . _ - between them, 128 at most",
        )
    return name


def check_endpoint(endpoint: object) -> str:
    """Raises ProtocolError for an endpoint that other programs could not connect to."""
    if not isinstance(endpoint, str) or len(endpoint) > LONGEST_ENDPOINT:
        raise ProtocolError("endpoint", f"an endpoint is text of at most {LONGEST_ENDPOINT} letters")
    try:
        address = parse(endpoint)
    except AddressError as error:
        raise ProtocolError("endpoint", str(error)) from error
    everywhere = is_numeric(address.host) and ipaddress.ip_address(address.host).is_unspecified
    if address.scheme != "tcp" or address.is_wildcard or everywhere or address.policy:
        raise ProtocolError(
            "endpoint", f"{endpoint} cannot be announced", hint="tcp://host:port, as others reach it"
        )
    return str(address)


def check_metadata(metadata: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the metadata in order. Raises ProtocolError."""
    texts = [text for pair in metadata.items() for text in pair]
    if len(metadata) > MOST_METADATA or not all(type(text) is str for text in texts):
        raise ProtocolError("metadata", f"metadata are {MOST_METADATA} pairs of texts at most")
    pairs = tuple(sorted(metadata.items()))
    if _size(texts) > LONGEST_METADATA:
        raise ProtocolError("metadata", f"more than {LONGEST_METADATA} bytes of metadata")
    return pairs


def _size(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _member(words: Mapping[str, Any]) -> Member:
    epoch, metadata = words.get("epoch"), words.get("metadata", {})
    if type(epoch) is not int or not 0 <= epoch <= LARGEST_EPOCH:
        raise ProtocolError("epoch", f"an epoch of {epoch!r}")
    if not isinstance(metadata, dict):
        raise ProtocolError("metadata", "metadata are pairs of texts")
    return Member(check_endpoint(words.get("endpoint")), epoch, check_metadata(metadata))
