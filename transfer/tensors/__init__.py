"""Tensors on the wire and in files: numpy, torch, DLPack, the buffer protocol.

Importing this loads neither numpy nor torch. Sockets have the methods of `TensorMethods`; `load`
and `save` read and write .safetensors and .npy files.

build           makes tensors from a received header and payload, without a copy
bundle          a dict of tensors with small metadata as one message
bundle_arrival  receives dicts of tensors: checks index and frames before they are read
device          tensors on a GPU: copied through pinned memory, in the order of the device's streams
driver_device   a GPU by the CUDA driver's own calls, for arrays that are of neither torch nor CuPy
dtypes          element types: their numbers on the wire, and their names in numpy, torch and safetensors
empty           tensors in memory that a peer on this host can share: the result of `Context.empty`
export          converts any tensor to (frame flags, header, C-contiguous buffer), without a copy if dense
files           tensors in files: `.safetensors` by its documented format, `.npy` by numpy
gpu_array       arrays on a GPU of no library: what others describe, and what `recv_tensor(device=...)` makes
gpu_builders    makes tensors on a GPU from a received header and payload: what `device=` asks for
gpu_sending        how a tensor on a GPU is sent: by its pointer, registered, or through the host
header          tensor headers, packed and unpacked
methods         sending and receiving tensors: the methods that `Socket` inherits
pinned          pinned memory of large messages between GPU and host, kept for the next ones
receive         receives one tensor: checks its header before the payload is read, and builds it afterwards
target          memory of the caller (`out=`) that a tensor is received into
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.tensors.files import load, save
    from transfer.tensors.methods import TensorMethods

__all__ = ["TensorMethods", "load", "save"]

exports(
    __name__,
    {
        "files": "load save",
        "methods": "TensorMethods",
    },
)
