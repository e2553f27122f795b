"""Calls a socket's callbacks in a separate thread, one at a time, whatever they raise."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from transfer.mooncake.message import Form, IncomingMessage, Message, as_incoming, plainly, read
from transfer.objects.pyobj import may_be_object
from transfer.transports.errors import Again, Broken, Closed, TransferError

logger = logging.getLogger("transfer.mooncake")

Callback = Callable[[dict[str, Any]], object]
BatchCallback = Callable[[list[dict[str, Any]]], object]

#: seconds after which the waiting thread checks whether it should end
_TICK = 0.2


class DispatchSource(Protocol):
    """The source of messages, which also handles those of a failed callback."""

    def next_message(self, timeout: float) -> Message:
        """Waits up to `timeout` seconds for a message. Raises Again, Broken, Closed."""

    def next_messages(self, timeout: float, most: int) -> list[Message]:
        """As `next_message`, for all available messages, at least one and at most `most`."""

    def give_back(self, messages: list[IncomingMessage]) -> None:
        """Puts messages without a callback back: the next receive returns them."""

    def abandon(self, request: int) -> None:
        """Gives up a request whose callback failed: a REP must not wait for its reply for ever."""


class CallbackDispatcher:
    """The threads of one socket that receive and call: `at_once` of them, by default one, which keeps the
    order of messages. They run while there are callbacks.

    errors: callbacks that raised, and messages that no callback could read.
    Thread-safe. A callback may call `stop`, which then returns before the thread has ended.
    """

    def __init__(self, source: DispatchSource, name: str, at_once: int = 1) -> None:
        self.errors = 0
        self._source = source
        self._name = name
        self._at_once = at_once
        self._callbacks: dict[Form, Callback] = {}
        #: the callback of data, if it is the only one
        self._only_data: Callback | None = None
        #: gets all messages while it is set, and how many at once
        self._batch: tuple[BatchCallback, int] | None = None
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        #: held by the receiving thread, and until its call ends if one may run at a time: an earlier thread
        #: may still be in its last callback
        self._calling = threading.Lock()

    @property
    def running(self) -> bool:
        return bool(self._threads)

    @property
    def wanted(self) -> bool:
        """Whether there is a callback."""
        return bool(self._callbacks) or self._batch is not None

    def set(self, form: Form, callback: Callback | None) -> None:
        """Sets or (None) removes the callback of one form; it applies from the next message on."""
        callbacks = {key: known for key, known in self._callbacks.items() if key is not form}
        if callback is not None:
            callbacks[form] = callback
        self._callbacks = callbacks
        self._only_data = callbacks.get(Form.DATA) if len(callbacks) == 1 else None

    def set_batch(self, callback: BatchCallback | None, most: int) -> None:
        """As `set`, for a callback that gets all messages, many at once."""
        self._batch = None if callback is None else (callback, most)

    def has(self, forms: Iterable[Form]) -> bool:
        """Whether a callback would get a message of one of these forms."""
        return any(form in self._callbacks for form in forms)

    def start(self) -> None:
        """Starts to receive; does nothing if it runs already."""
        with self._lock:
            if self._threads:
                return
            self._stop = threading.Event()
            run = self._run if self._at_once == 1 else self._run_concurrently
            self._threads = [
                threading.Thread(target=run, args=(self._stop,), name=self._name, daemon=True)
                for _ in range(self._at_once)
            ]
            for thread in self._threads:
                thread.start()

    def ask_to_stop(self) -> None:
        """Starts no new callback from now on."""
        self._stop.set()

    def stop(self, timeout: float = 5.0) -> None:
        """Ends the threads after the running callbacks. Idempotent."""
        with self._lock:
            threads, self._threads = self._threads, []
            self._stop.set()
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread is threading.current_thread():
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.warning("%s: a callback still runs after %g s", self._name, timeout)

    def _run(self, stop: threading.Event) -> None:
        """Receives and calls, one call at a time."""
        while not stop.is_set():
            # Held while receiving, too: an earlier thread delivers first what it has received.
            if not self._calling.acquire(timeout=_TICK):
                continue
            try:
                while not stop.is_set() and (messages := self._received(stop)) is not None:
                    self._deliver_all(messages)
                return
            finally:
                self._calling.release()

    def _run_concurrently(self, stop: threading.Event) -> None:
        """Receives in one thread at a time, and calls while the next thread receives."""
        while not stop.is_set():
            if not self._calling.acquire(timeout=5 * _TICK):
                continue
            try:
                if stop.is_set() or (messages := self._received(stop)) is None:
                    return
            finally:
                self._calling.release()
            self._deliver_all(messages)

    def _received(self, stop: threading.Event) -> list[Message] | None:
        """Returns the messages to deliver, possibly none. None: the socket is closed."""
        batch = self._batch
        try:
            if batch is None:
                return [self._source.next_message(_TICK)]
            return self._source.next_messages(_TICK, batch[1])
        except Again:
            return []
        except Closed:
            return None
        except Broken as error:  # the request that this REQ had open is lost
            self._failed("%s: no message: %s", self._name, error)
        except TransferError as error:  # one bad message must not end the service
            self._failed("%s: cannot receive: %s", self._name, error)
            stop.wait(_TICK)
        return []

    def _deliver_all(self, messages: list[Message]) -> None:
        """Delivers to the current callbacks: other threads and callbacks may change them."""
        number, only = 0, self._only_data
        if only is not None and self._batch is None and len(messages) == 1 and type(messages[0]) is dict:
            try:  # the most frequent case without another call
                only(messages[0])
            except BaseException as error:  # noqa: BLE001 - as in `_call`
                self._failed("%s: the %s callback failed", self._name, "data", error=error)
                self._source.abandon(messages[0].get("request", 0))
            return
        while number < len(messages):
            batch, callbacks = self._batch, self._callbacks
            if batch is not None:
                call, most = batch
                self._call(partial(call, list(map(_as_given, messages[number : number + most]))), "batch")
                number += most
            elif callbacks:
                message, only = messages[number], self._only_data
                number += 1
                if only is None or type(message) is not dict:
                    self._deliver(as_incoming(message), callbacks)
                elif not self._call(partial(only, message), "data"):
                    self._source.abandon(message.get("request", 0))
            else:
                self._source.give_back(list(map(as_incoming, messages[number:])))
                return

    def _deliver(self, message: IncomingMessage, callbacks: dict[Form, Callback]) -> None:
        chosen = choose(message, callbacks)
        if chosen is None:
            self._failed("%s: no callback for a message from %s; dropped", self._name, message.source)
            self._source.abandon(message.request)
            return
        callback, form = chosen
        if not self._call(lambda: callback(read(message, form)), form.value):
            self._source.abandon(message.request)

    def _call(self, call: Callable[[], object], name: str) -> bool:
        """Calls; returns False if it raised."""
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - logged with its traceback by `_failed`
            # A service continues with the next message whatever the user's code did with this one.
            self._failed("%s: the %s callback failed", self._name, name, error=error)
            return False
        return True

    def _failed(self, text: str, *values: object, error: BaseException | None = None) -> None:
        with self._lock:
            self.errors += 1
        logger.error(text, *values, exc_info=error)


def _as_given(message: Message) -> dict[str, Any]:
    return plainly(message) if isinstance(message, IncomingMessage) else message


def choose(message: IncomingMessage, callbacks: dict[Form, Callback]) -> tuple[Callback, Form] | None:
    """Returns the callback for a message and its form; None if no callback can take it.

    Tensors go to the tensor callback, or else to that of data; messages of several parts to the multipart
    one.
    If several others are set, the first that can read the bytes gets them: objects, JSON, text, data. A
    single one gets all messages, readable or not.
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


def _readable(message: IncomingMessage, form: Form) -> bool:
    if form is Form.PYOBJ:  # not decoded for this check
        return may_be_object(message.data)
    try:
        read(message, form)
    except ValueError:
        return False
    return True
