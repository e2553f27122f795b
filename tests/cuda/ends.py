"""A sender and a receiver in two processes on the null driver, for the programs of test_mapped.py.

A program defines `send(end)` and `receive(end)`; `both(send, receive)` runs them, and waits for both.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy

import transfer
from tests.cuda.null_driver import Array, NullDriver
from transfer.tensors.gpu_builders import gpu_builder
from transfer.transports import cuda
from transfer.transports.core import address_of
from transfer.transports.core.native import libcuda
from transfer.transports.errors import RegistrationError

spawn = multiprocessing.get_context("spawn")
#: seconds for what has to happen
PATIENCE = 10.0


class Interrupt(Exception):
    """Raised by `interrupt`, a signal handler, while `armed` has something: a signal comes late where another
    thread got it."""


armed: list[bool] = []


def interrupt(number: int, frame: object) -> None:
    if armed:
        raise Interrupt


class End:
    """One side. mine, other: events of the two processes. pipe: to the other one."""

    def __init__(self, socket: transfer.Socket, pipe: Any) -> None:
        self.socket = socket
        self.pipe = pipe
        self.null = NullDriver()
        driver = cuda.load()
        assert driver is not None
        self.driver = driver

    @property
    def context(self) -> Any:
        return self.driver.context(0)

    def array(self, *shape: int, typestr: str = "<f4", stream: int | None = None) -> Array:
        return Array(self.context, shape, typestr, stream)

    def fill(self, array: Array, byte: int, delay: float = 0.0, stream: int = 0) -> None:
        self.null.fill(array.pointer, byte, array.nbytes, stream, delay)

    def read(self, array: Any, stream: int = 1) -> Any:
        """An array of the GPU on the host, in the order of a stream."""
        interface = array.__cuda_array_interface__
        found = numpy.empty(interface["shape"], interface["typestr"])
        self.context.copy(address_of(found), interface["data"][0], found.nbytes, stream)
        self.context.synchronize(stream)
        return found

    def bytes_of(self, array: Any) -> set[int]:
        """The different bytes that an array of the GPU holds."""
        return self.bytes_of_host(self.read(array))

    def bytes_of_host(self, array: Any) -> set[int]:
        return set(numpy.unique(array.reshape(-1).view("u1")).tolist())

    def want(self, device: str = "cuda:0") -> None:
        """As the first `recv_tensor(device=...)`, before a message is there."""
        builder = gpu_builder(device, None)
        self.socket._want_gpu(builder.uuid, builder.index)

    def until_wanted(self) -> None:
        """Waits until the receiver has asked, and tried: what is sent before goes by the host."""
        until(lambda: self.socket._tensor_capabilities(0).maps_gpus)
        [stream] = self.socket._streams()
        [uuid] = stream.carrier.maps_gpus
        [index] = [one for one in range(libcuda.device_count()) if libcuda.device_uuid(one) == uuid]

        def is_known() -> bool:
            try:
                stream.carrier.try_gpu(uuid, index)
            except RegistrationError as error:
                return error.reason != "gpu_tried"
            return True

        until(is_known)

    def tell(self, what: object = None) -> None:
        self.pipe.send(what)

    def hear(self) -> Any:
        assert self.pipe.poll(PATIENCE), "the other side says nothing"
        return self.pipe.recv()


@contextmanager
def end(kind: int, endpoint: str, pipe: Any) -> Iterator[End]:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    with transfer.Context() as context, context.socket(kind) as socket:
        socket.rcvtimeo = socket.sndtimeo = int(PATIENCE * 1000)
        if kind == transfer.PULL:
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
            socket.wait_for_peers(1, timeout=PATIENCE)
        yield End(socket, pipe)


def _receiver(receive: Callable[[End], None], pipe: Any, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    with end(transfer.PULL, "tcp://127.0.0.1:0", pipe) as one:
        pipe.send(one.socket.last_endpoint)
        receive(one)


def until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.005)


def both(
    send: Callable[[End], None], receive: Callable[[End], None], *, status: int = 0, **variables: str
) -> None:
    """The sender is this process, the receiver a child, whose exit code is `status`."""
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_receiver, args=(receive, theirs, variables))
    process.start()
    theirs.close()
    try:
        assert ours.poll(PATIENCE), "the receiver does not start"
        with end(transfer.PUSH, ours.recv(), ours) as one:
            one.receiver = process.pid  # type: ignore[attr-defined]
            send(one)
        process.join(PATIENCE)
        assert process.exitcode == status, process.exitcode
    finally:
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
            process.join()
