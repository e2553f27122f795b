"""What the golden frames in `tests/data/wire` hold, said again in Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from transfer.patterns.pub_sub import encode_order
from transfer.tensors.bundle import frames_of
from transfer.tensors.export import export
from transfer.transports.core.wire import Control, Flag, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake import hello
from transfer.transports.handshake.choice import Offer

FOLDER = Path(__file__).parents[1] / "data" / "wire"
PUSH, PUB, SUB, PULL = SocketType.PUSH, SocketType.PUB, SocketType.SUB, SocketType.PULL

MATRIX = np.array([[1, 2, 3], [4, 5, 6]], "f4")
WIDE = np.arange(24, dtype="u2").reshape(2, 1, 3, 1, 4)
TURNED = np.arange(24, dtype="f8").reshape(2, 3, 4).transpose(1, 0, 2)
RECORDS = np.array([(1.5, -1), (2.5, -2)], [("x", "<f4"), ("n", "<i2")])
STATE = {"bias": np.array([1, 2], "f4"), "step": np.array(7), "big": np.zeros(65_536, "u1")}

HELLO = hello.Hello(
    PUSH,
    features=frozenset({"credits", "lz4"}),
    routing_id=b"one",
    host_id="h",
    epoch="e",
    nonce="00ff",
    limits={"max_message": 1024},
    offer=Offer(("tcp",)),
)


@dataclass(frozen=True)
class Vector:
    """One message: the frames to give to a stream, or `raw` bytes that something else makes.

    `tensors` is what a receiver makes of it.
    """

    says: str
    socket_type: int = PUSH
    frames: tuple[Any, ...] = ()
    checksum: bool = False
    raw: bytes = b""
    tensors: Any = None


def tensor(says: str, value: Any, topic: bytes | None = None, **options: Any) -> Vector:
    flags, header, buffer = export(value)
    return Vector(says, frames=((flags, 1, topic, header, buffer),), tensors=value, **options)


def control(says: str, socket_type: int, data: bytes) -> Vector:
    return Vector(says, socket_type, ((int(Flag.CONTROL), 0, None, None, data),))


VECTORS = {
    "plain": Vector('PUSH, sequence 1, data "hello"', frames=((0, 1, None, None, b"hello"),)),
    "empty": Vector("PUSH, sequence 2, no data", frames=((0, 2, None, None, b""),)),
    "topic": Vector(
        'PUB, topic "weights", data 01 02 03', PUB, frames=((0, 1, b"weights", None, b"\1\2\3"),)
    ),
    "multipart": Vector(
        'PUSH, two frames of one message: "a", "b"',
        frames=((0, 5, None, None, b"a"), (0, 5, None, None, b"b")),
    ),
    "checksum": Vector(
        'PUSH, topic "t", data "hello", CRC-32 over topic and data',
        frames=((0, 1, b"t", None, b"hello"),),
        checksum=True,
    ),
    "acknowledge": Vector("PUSH, flag ACK, data 00", frames=((int(Flag.ACK), 1, None, None, b"\0"),)),
    "tensor_matrix": tensor("float32 [[1,2,3],[4,5,6]], seed header, C order", MATRIX),
    "tensor_fortran": tensor("the same, Fortran order", np.asfortranarray(MATRIX)),
    "tensor_topic_checksum": tensor('the same in C order, topic "m", CRC-32', MATRIX, b"m", checksum=True),
    "tensor_scalar": tensor("float64 3.5 without dimensions, extended header", np.array(3.5)),
    "tensor_empty": tensor("int32 of shape (0, 3), extended header", np.zeros((0, 3), "i4")),
    "tensor_bfloat16": tensor("bfloat16 [1, 2], extended header", np.array([1, 2], ml_dtypes.bfloat16)),
    "tensor_five_dimensions": tensor("uint16 of shape (2, 1, 3, 1, 4), values 0 to 23", WIDE),
    "tensor_axes": tensor("float64 of shape (3, 2, 4), axes in memory 1, 0, 2, values 0 to 23", TURNED),
    "tensor_records": tensor("records of float32 x and int16 n: (1.5, -1), (2.5, -2)", RECORDS),
    "bundle": Vector(
        "three tensors: bias and step packed, big (65536 zero bytes) in its own frame; metadata",
        frames=tuple((flags, 9, *rest) for flags, _, *rest in frames_of(STATE, {"epoch": 3}, b"model")),
        tensors=STATE,
    ),
    "control_subscribe": control(
        'SUB subscribes to "log.", number 7', SUB, encode_order(Control.SUBSCRIBE, 7, b"log.")
    ),
    "control_subscribed": control(
        "PUB holds subscription 7", PUB, encode_order(Control.SUBSCRIBED, 7)
    ),
    "control_unsubscribe": control(
        'SUB takes "log." back', SUB, encode_order(Control.UNSUBSCRIBE, 0, b"log.")
    ),
    "control_credit": control(
        "PULL has consumed 1000 messages", PULL, bytes([Control.CREDIT]) + (1000).to_bytes(8, "little")
    ),
    "control_heartbeat": control("PUSH lives", PUSH, bytes([Control.HEARTBEAT])),
    "hello": Vector("hello of a PUSH", raw=hello.encode(HELLO)),
    "refused": Vector(
        "a PULL refuses a hello",
        raw=hello.encode_refusal(PULL, HandshakeError("socket_type", "PULL cannot talk to PULL")),
    ),
}  # fmt: skip


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.hex"


def read(name: str) -> bytes:
    """The bytes of a golden file: hexadecimal, `*N` repeats the byte before it, `#` is a comment."""
    result = bytearray()
    for line in path_of(name).read_text().splitlines():
        for word in line.partition("#")[0].split():
            if word.startswith("*"):
                result += result[-1:] * (int(word[1:]) - 1)
            else:
                result += bytes.fromhex(word)
    return bytes(result)
