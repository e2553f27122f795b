"""Tensors on the wire and in files: numpy, torch, DLPack, the buffer protocol.

Importing this loads neither numpy nor torch. Sockets have the methods of `TensorMethods`; `load`
and `save` read and write .safetensors and .npy files.
"""

from __future__ import annotations

from transfer.tensors.files import load, save
from transfer.tensors.methods import TensorMethods

__all__ = ["TensorMethods", "load", "save"]
