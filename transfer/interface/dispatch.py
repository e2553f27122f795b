"""Calls a socket's callbacks: off the caller's thread, one at a time, whatever they raise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from transfer.interface.message import Form, Incoming, Message, plainly, read
from transports.arguments import callable_or_none
from transports.errors import Again, Broken, Closed, TransferError

logger = logging.getLogger("transfer.interface")

Callback = Callable[[dict[str, Any]], object]
BatchCallback = Callable[[list[dict[str, Any]]], object]

#: how long the thread waits before it looks whether it should end, in seconds
TICK = 0.2


class Source(Protocol):
    """Where messages come from, and what a callback that failed leaves behind."""

    def next_message(self, timeout: float) -> Incoming:
        """Waits up to `timeout` seconds. Raises Again, Broken, Closed."""

    def next_messages(self, timeout: float, most: int) -> list[Message]:
        """The same of all that are there, at least one and `most` at the most."""

    def give_back(self, messages: list[Incoming]) -> None:
        """Puts messages back that have no callback any more: the next receive returns them."""

    def abandon(self) -> None:
        """The callback ended with an error: a REP must not wait for its reply for ever."""


class Dispatcher:
    """The thread of one socket that receives and calls. It runs while there are callbacks.

    errors: callbacks that raised, and messages that no callback could read.
    Thread-safe. `stop` may be called from a callback; it then returns before the thread has ended.
    """

    def __init__(self, source: Source, name: str) -> None:
        self.errors = 0
        self._source = source
        self._name = name
        self._callbacks: dict[Form, Callback] = {}
        #: gets everything while it is set, and how many messages at once
        self._batch: tuple[BatchCallback, int] | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        #: held by the thread that receives and calls: an earlier one may still be in its last callback
        self._calling = threading.Lock()

    @property
    def running(self) -> bool:
        return self._thread is not None

    @property
    def wanted(self) -> bool:
        """Whether there is anything to call."""
        return bool(self._callbacks) or self._batch is not None

    def set(self, form: Form, callback: Callback | None) -> None:
        """Sets or (None) removes the callback of one form; it applies from the next message on."""
        callable_or_none(callback, "callback", "a message as a dict")
        callbacks = {key: known for key, known in self._callbacks.items() if key is not form}
        if callback is not None:
            callbacks[form] = callback
        self._callbacks = callbacks

    def set_batch(self, callback: BatchCallback | None, most: int) -> None:
        """As `set`, for a callback that gets everything, many at once."""
        callable_or_none(callback, "callback", "a list of messages")
        self._batch = None if callback is None else (callback, most)

    def has(self, forms: Iterable[Form]) -> bool:
        """Whether a callback would get a message of one of these forms."""
        return any(form in self._callbacks for form in forms)

    def start(self) -> None:
        """Begins to receive; does nothing if it runs already."""
        with self._lock:
            if self._thread is not None:
                return
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stop,), name=self._name, daemon=True
            )
            self._thread.start()

    def ask_to_stop(self) -> None:
        """No new callback begins."""
        self._stop.set()

    def stop(self, timeout: float = 5.0) -> None:
        """Ends the thread after the callback that runs now, which is waited for. Idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout)
        if thread.is_alive():
            logger.warning("%s: a callback still runs after %g s", self._name, timeout)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            # Held while it receives, too: an earlier thread delivers what it has received first.
            if not self._calling.acquire(timeout=TICK):
                continue
            try:
                if stop.is_set() or not self._step(stop):
                    return
            finally:
                self._calling.release()

    def _step(self, stop: threading.Event) -> bool:
        """Receives and delivers once. False: the socket is closed."""
        try:
            messages = self._next()
        except Again:
            return True
        except Closed:
            return False
        except Broken as error:  # the request that this REQ had open is lost
            self._failed("%s: no message: %s", self._name, error)
            return True
        except TransferError as error:  # one bad message must not end the service
            self._failed("%s: cannot receive: %s", self._name, error)
            stop.wait(TICK)
            return True
        self._deliver_all(messages)
        return True

    def _deliver_all(self, messages: list[Message]) -> None:
        """To the callbacks as they are at each moment: other threads and callbacks may change them."""
        number = 0
        while number < len(messages):
            batch, callbacks = self._batch, self._callbacks
            if batch is not None:
                call, most = batch
                self._call(partial(call, list(map(_as_given, messages[number : number + most]))), "batch")
                number += most
            elif callbacks:
                self._deliver(_as_incoming(messages[number]), callbacks)
                number += 1
            else:
                self._source.give_back(list(map(_as_incoming, messages[number:])))
                return

    def _next(self) -> list[Message]:
        batch = self._batch
        return (
            [self._source.next_message(TICK)] if batch is None else self._source.next_messages(TICK, batch[1])
        )

    def _deliver(self, message: Incoming, callbacks: dict[Form, Callback]) -> None:
        chosen = choose(message, callbacks)
        if chosen is None:
            self._failed("%s: no callback for a message from %s; dropped", self._name, message.source)
            self._source.abandon()
            return
        callback, form = chosen
        self._call(lambda: callback(read(message, form)), form.value)

    def _call(self, call: Callable[[], object], name: str) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - logged with its traceback by `_failed`
            # A service goes on with the next message whatever the user's code did with this one.
            self._failed("%s: the %s callback failed", self._name, name, error=error)
            self._source.abandon()

    def _failed(self, text: str, *values: object, error: BaseException | None = None) -> None:
        self.errors += 1
        logger.error(text, *values, exc_info=error)


def _as_given(message: Message) -> dict[str, Any]:
    return plainly(message) if isinstance(message, Incoming) else message


def _as_incoming(message: Message) -> Incoming:
    if isinstance(message, Incoming):
        return message
    return Incoming(message["source"], message["topic"], (message["data"],))


def choose(message: Incoming, callbacks: dict[Form, Callback]) -> tuple[Callback, Form] | None:
    """The callback for a message, and the form that it wants; None if no callback can take it.

    Tensors go to the tensor callback, or else to that of data, and messages of several parts to the
    multipart one. Where several of the others are set, the first that can read the bytes gets them:
    objects, JSON, text, data. One alone gets everything, readable or not.
    """
    if len(callbacks) == 1 and Form.DATA in callbacks:
        return callbacks[Form.DATA], Form.DATA
    if message.is_tensor:
        return _one(callbacks, Form.TENSOR) or _one(callbacks, Form.DATA)
    if len(message.parts) > 1 and Form.MULTIPART in callbacks:
        return _one(callbacks, Form.MULTIPART)
    candidates = [form for form in _BY_STRICTNESS if form in callbacks]
    for form in candidates[:-1]:
        if _readable(message, form):
            return _one(callbacks, form)
    return _one(callbacks, candidates[-1]) if candidates else _one(callbacks, Form.MULTIPART)


_BY_STRICTNESS = (Form.PYOBJ, Form.JSON, Form.STRING, Form.DATA)


def _one(callbacks: dict[Form, Callback], form: Form) -> tuple[Callback, Form] | None:
    callback = callbacks.get(form)
    return None if callback is None else (callback, form)


def _readable(message: Incoming, form: Form) -> bool:
    if form is Form.PYOBJ:  # never unpickled to find out: protocol 2 and later begin and end so
        data = message.data
        return data[:1] == b"\x80" and data[-1:] == b"."
    try:
        read(message, form)
    except ValueError:
        return False
    return True
