"""`send_pyobj` and `recv_pyobj`: this codec, or pickle where MOONCAKE_ALLOW_PICKLE=1 allows it."""

from __future__ import annotations

import pickle
from typing import Any, Final

from transfer import objects
from transfer.config import pickle_allowed
from transfer.objects.format import MAGIC, malformed
from transfer.transports.errors import PickleRefused

DEFAULT_PROTOCOL: Final = pickle.DEFAULT_PROTOCOL

#: pickles of protocol 2 and later
_PICKLE: Final = b"\x80"


def dumps(value: Any, protocol: int = DEFAULT_PROTOCOL) -> bytes:
    """Returns the bytes to send for an object. protocol: of pickle, if it is allowed.

    Raises PickleRefused, NotATensor, ArgumentError as `encode`; MissingLibrary without msgspec.
    """
    return pickle.dumps(value, protocol) if pickle_allowed() else objects.encode(value)


def loads(data: Any) -> Any:
    """Returns the object of received bytes, any buffer; its first byte tells whether it is a pickle.

    Raises PickleRefused for a pickle that is not allowed, ProtocolError for bytes that are no object.
    """
    view = memoryview(data)
    first = view[0] if view.nbytes else -1
    if first == MAGIC[0]:
        return objects.decode(view)
    if pickle_allowed():
        return pickle.loads(view)
    if first == _PICKLE[0]:
        raise PickleRefused(
            "a pickle arrived: unpickling runs any code that the sender chooses",
            hint="unset MOONCAKE_ALLOW_PICKLE at the sender; 1 at both ends is for peers that you trust",
        )
    raise malformed("bytes that send_pyobj did not make")


def may_be_object(data: bytes) -> bool:
    """Whether `loads` may return an object of these bytes: they begin as the codec's, or begin and end as a
    pickle that is allowed. They are not decoded for this."""
    if data.startswith(MAGIC):
        return True
    return data.startswith(_PICKLE) and data.endswith(b".") and pickle_allowed()
