"""Serves the console: one page, its script and its stylesheet, from this package's folder."""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web
from aiohttp.typedefs import Handler

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_HEADERS = {
    # The page loads nothing from other origins, and no other page can frame it: operators click here. Every
    # answer has the other headers.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


_PAGES = {
    "/": "index.html", "/console.js": "console.js", "/console.css": "console.css", "/favicon.ico": "icon.svg",
}  # fmt: skip
#: paths that need no authentication, since they contain no secrets
PAGES = tuple(_PAGES)


def add_console(app: web.Application) -> None:
    """Adds `/` and its files. The page contains no secrets; it asks for the token, if there is one."""
    app.add_routes([web.get(path, _file(name)) for path, name in _PAGES.items()])


def _file(name: str) -> Handler:
    content = (files(__package__) / "page" / name).read_bytes()
    kind = _TYPES[name.rpartition(".")[2]]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=_HEADERS)

    return answer
