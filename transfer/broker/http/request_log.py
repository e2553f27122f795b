"""Logs aiohttp's errors: one line for bytes that are no request, at a bounded rate."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from transfer.peer_faults import PeerFaults

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

#: exceptions that only a peer's bytes can raise
PEERS_MISTAKES = (
    HttpProcessingError,
    web.RequestPayloadError,
    ConnectionError,
    UnicodeEncodeError,  # a header that is no text, which aiohttp quotes in its refusal
)


class RequestLog(_Adapter):
    """Replaces aiohttp's logger, which writes a traceback for each request that cannot be read."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log, {})
        self.faults = PeerFaults(log)

    def exception(self, msg: object, *args: object, exc_info: Any = None, **_: Any) -> None:
        """See `logging.Logger.exception`. exc_info: the exception."""
        if isinstance(exc_info, PEERS_MISTAKES):
            self.faults.warn("an HTTP request", exc_info, str(args[0]) if args else "a peer")
        elif isinstance(exc_info, BaseException):
            self.faults.note("an HTTP request", exc_info)
        else:
            super().exception(msg, *args)
