"""Error responses, `{"error": CODE, "message": TEXT}`, and the headers of all responses."""

from __future__ import annotations

from aiohttp import web

#: of every response that sets nothing else
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def refusal(status: int, code: str, message: str) -> web.Response:
    """Makes an error response."""
    return web.json_response({"error": code, "message": message}, status=status)


async def set_headers(_: web.BaseRequest, response: web.StreamResponse) -> None:
    """Browsers store no response, and show none inside another page. No response names our libraries."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "transfer"
