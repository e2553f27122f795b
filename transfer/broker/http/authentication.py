"""Who asks: whoever shows a certificate or a token, and who has neither.

Health is open, since those who look after containers have no certificate, but names no topic or group to
strangers. So is the console's page, which has no secrets. Everything else needs a certificate of the
authority, or the token; operators' calls, if they have a token of their own (`http.token`), need that one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from transfer.broker.http.console import PAGES
from transfer.broker.http.error_response import refusal
from transfer.http.tls import Https, bearer, is_one_of
from transfer.throttled_log import ThrottledLog
from transfer.transports.security.guard import is_loopback
from transfer.transports.security.settings import Security

#: where operators' calls are, and all that can be asked as JSON
ADMIN, API = "/api/admin/", "/api/"
_TOKEN = "X-Admin-Token"
_OPEN = frozenset({"/livez", "/readyz", *PAGES})


class Authentication:
    """token: of the operators; None: there is none. https: what else may be shown. certified: says whether a
    request's connection has shown a good certificate. here: programs of this machine may ask without showing
    anything, where there is neither TLS nor `token`."""

    def __init__(
        self,
        token: str | None,
        https: Https | None = None,
        certified: Callable[[web.Request], bool] = lambda _: False,
        *,
        here: bool = True,
    ) -> None:
        self._here = here
        self._token = token
        self._certified = certified
        self._https = https or Https(Security())
        self._throttled = ThrottledLog(logging.getLogger("transfer.broker"))

    def guard(self) -> Middleware:
        """Refuses whoever may not ask."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            answer = self._refused(request) or await handler(request)
            if self.shows(request) is False:
                self._note(request)
                answer.force_close()  # strangers hold no connection, and have one try of a token on each
            return answer

        return guarded

    def shows(self, request: web.Request) -> bool | None:
        """Whether it shows who asks, by what is good; None: nothing is asked for, and nothing is shown."""
        if not (self._https.security.authenticates or self._token or _shown(request) is not None):
            return None
        return self._is_known(request) or self._has_own(request)

    def _note(self, request: web.Request) -> None:
        """A warning in the log of peers that guess tokens."""
        if _shown(request) is not None:
            text = "a wrong token is shown to HTTP, by %s"
            self._throttled.say(logging.WARNING, "token", text, request.remote or "a peer", most=1)

    def _refused(self, request: web.Request) -> web.Response | None:
        path = request.path
        if path in _OPEN:
            return None
        if path.startswith(ADMIN):
            return self._operator(request) or _no_json(request)
        return self._looks(request, path)

    def may_look(self, request: web.Request) -> bool:
        """Whether it may read what stands under `/api/`: names of topics and groups, say."""
        return self._looks(request, API) is None

    def _looks(self, request: web.Request, path: str) -> web.Response | None:
        security = self._https.security
        if security.authenticates:
            if self._is_known(request) or self._has_own(request):
                return None
            if security.tls or self._token:
                return _refusal(request)
            return self._from_here(request)
        if path.startswith(API) and self._token and not self._has_own(request):
            return _refusal(request)
        return None

    def _operator(self, request: web.Request) -> web.Response | None:
        if self._token:
            return None if self._has_own(request) else _refusal(request)
        if self._https.security.tls and self._https.security.authenticates:
            return None if self._is_known(request) else _refusal(request)
        return self._from_here(request)

    def _from_here(self, request: web.Request) -> web.Response | None:
        """Where nothing is asked for that could be shown."""
        if not self._here:
            return refusal(
                403,
                "token_unknown",
                "HTTP without TLS asks for ADMIN_TOKEN (http.token) only, and there is none",
            )
        if _is_here(request):
            return None
        return refusal(403, "not_here", "without ADMIN_TOKEN only this machine may ask, by its own address")

    def _is_known(self, request: web.Request) -> bool:
        """By a certificate, or by the token that all share."""
        if self._https.security.asks_certificates and self._certified(request):
            return True
        return self._https.has_token(_shown(request))

    def _has_own(self, request: web.Request) -> bool:
        shown = _shown(request)
        return bool(self._token) and shown is not None and is_one_of(shown, (str(self._token).encode(),))


def _shown(request: web.Request) -> str | None:
    shown = request.headers.get(_TOKEN)
    return bearer(request.headers.get("Authorization")) if shown is None else shown


def _refusal(request: web.Request) -> web.Response:
    if _shown(request) is None:
        return refusal(401, "token_missing", f"no certificate is shown, and the header {_TOKEN} is missing")
    return refusal(403, "token_wrong", f"the header {_TOKEN} has another token")


def _no_json(request: web.Request) -> web.Response | None:
    # What a browser sends for a page without asking first is never JSON.
    if request.method != "GET" and request.content_type != "application/json":
        return refusal(415, "no_json", "the body has to be application/json")
    return None


def _is_here(request: web.Request) -> bool:
    try:
        asked = request.url.host
    except ValueError:  # what it names has no number as its port
        return False
    # The second: a page of the web that got a name for this machine, and asks through a browser.
    return is_loopback(request.remote or "") and is_loopback(asked or "")
