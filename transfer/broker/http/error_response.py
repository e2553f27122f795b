"""Error responses: `{"error": CODE, "message": TEXT}`."""

from __future__ import annotations

from aiohttp import web


def refusal(status: int, code: str, message: str) -> web.Response:
    """Makes an error response."""
    return web.json_response({"error": code, "message": message}, status=status)
