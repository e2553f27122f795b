"""The broker's long-lived threads: health checks report those that have ended before the broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("transfer.broker")


class ServiceThreads:
    """Threads that last as long as the broker. Thread-safe."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._reasons: dict[threading.Thread, str] = {}

    def start(self, name: str, work: Callable[[], object]) -> threading.Thread:
        """Starts a thread that does this work."""
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def add_current(self) -> None:
        """Adds the calling thread. Executors call it as their initializer."""
        self._threads.append(threading.current_thread())

    def ended(self) -> list[tuple[str, str]]:
        """Returns (name, reason or "") of each thread that has ended."""
        return [
            (thread.name, self._reasons.get(thread, ""))
            for thread in [*self._threads]
            if not thread.is_alive()
        ]

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - health checks report it
            _log.exception("the thread %s has ended", threading.current_thread().name)
            self._reasons[threading.current_thread()] = repr(error)
