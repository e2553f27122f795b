"""Python objects as bytes, without pickle: what `send_pyobj` and `recv_pyobj` use.

Importing this loads no other library; `tensor-transfer[objects]` installs msgspec, which it needs.

allow_list  the classes beyond those of the codec whose objects may travel: TRANSFER_PICKLE_ALLOW
decoding    makes objects of bytes: everything is checked before it is made
encoding    makes bytes of objects: msgpack, with extensions for what it lacks, and buffers behind it
format      the bytes of an object: magic, codes of the extensions, limits
pyobj       `send_pyobj` and `recv_pyobj`: this codec, or pickle where MOONCAKE_ALLOW_PICKLE=1 allows it
reduced     objects of allowed classes: their parts by `__reduce_ex__`, and objects of these parts
tensor      arrays and scalars of numpy and tensors of torch, as parts of an object
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.objects.decoding import decode
    from transfer.objects.encoding import encode

__all__ = ["decode", "encode"]

exports(__name__, {"decoding": "decode", "encoding": "encode"}, extra="objects")
