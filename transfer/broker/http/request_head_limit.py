"""Limits a request's whole head: aiohttp limits only each line of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.http import HttpProcessingError

from transfer.broker.http.error_response import set_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.http import RawRequestMessage
    from aiohttp.streams import StreamReader

#: bytes of a request's line and headers, or of the trailers of its body
MOST: Final = 16 << 10
#: headers of a request, and trailers: a short one takes more memory than its bytes
MOST_HEADERS: Final = 64
#: bytes that asyncio reads at once: so many bytes may arrive together with the end of the previous request
AT_ONCE: Final = 64 << 10


class HeadTooLong(HttpProcessingError):
    """The head of a request exceeds the limit: the answer is 431."""


class LimitedHandler(web.RequestHandler):
    """Closes a connection whose head exceeds the limit."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._parser = _LimitedParser(self._parser)  # type: ignore[assignment]

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """See `RequestHandler.handle_error`."""
        if isinstance(exc, HeadTooLong):
            status = 431
        elif isinstance(exc, UnicodeEncodeError):  # aiohttp quotes a header that is no text
            status, message = 400, "a header is no text"
        response = super().handle_error(request, status, exc, message)
        request._prepare_hook = partial(set_headers, request)  # type: ignore[method-assign]
        return response


class _LimitedParser:
    """Wraps aiohttp's parser, which buffers only heads and trailers.

    So it limits the bytes since the last whole head, or the last byte of a body.
    """

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._body: StreamReader | None = None
        self._arrived = 0  # bytes of the body
        self._unfinished = 0
        self._over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> tuple[Sequence[tuple[RawRequestMessage, StreamReader]], bool, bytes]:
        """See `HttpRequestParser.feed_data`. Raises HttpProcessingError."""
        if self._over:
            return (), False, b""
        messages, upgraded, tail = self._parser.feed_data(data)
        self._unfinished = 0 if self._has_progress(messages) else self._unfinished + len(data)
        if upgraded or self._unfinished > MOST or any(_size(message) > MOST for message, _ in messages):
            self._over = True
            if self._body is not None and not self._body.is_eof():
                self._body.set_exception(web.RequestPayloadError("its trailers are too long"))
            if upgraded:
                raise HttpProcessingError(code=400, message="this server supports no other protocol")
            raise HeadTooLong(code=431, message=f"the head of a request has more than {MOST} bytes")
        return messages, upgraded, tail

    def _has_progress(self, messages: Sequence[tuple[RawRequestMessage, StreamReader]]) -> bool:
        """Whether a head became complete, or a body received bytes."""
        before = self._arrived
        if messages:
            self._body = messages[-1][1]
        self._arrived = self._body.total_bytes if self._body is not None else 0
        return bool(messages) or self._arrived != before


def _size(message: RawRequestMessage) -> int:
    headers = sum(len(name) + len(value) + len(": \r\n") for name, value in message.raw_headers)
    return len(f"{message.method} {message.path} HTTP/1.1\r\n\r\n") + headers
