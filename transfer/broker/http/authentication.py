"""Authenticates HTTP requests by a certificate or a token.

Health is open, since container orchestrators have no certificate, but names topics and groups only to
authenticated requests. The console's page is open too: it contains no secrets. Everything else needs a
certificate of the authority, or the token. If operators have a token (`http.token`), their calls need that
one.
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

#: prefixes of operators' calls, and of all JSON answers
ADMIN, API = "/api/admin/", "/api/"
_TOKEN = "X-Admin-Token"
_OPEN = frozenset({"/livez", "/readyz", *PAGES})


class Authentication:
    """Decides which requests the server answers.

    token: of the operators; None: there is none. https: certificates and tokens that it accepts. certified:
    whether a request's connection has a valid certificate. local: without TLS and `token` it accepts
    unauthenticated requests from this machine.
    """

    def __init__(
        self,
        token: str | None,
        https: Https | None = None,
        certified: Callable[[web.Request], bool] = lambda _: False,
        *,
        local: bool = True,
    ) -> None:
        self._local = local
        self._token = token
        self._certified = certified
        self._https = https or Https(Security())
        self._throttled = ThrottledLog(logging.getLogger("transfer.broker"))

    def guard(self) -> Middleware:
        """Returns the middleware that refuses requests without the required authentication."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            answer = self._check(request) or await handler(request)
            if self.is_authenticated(request) is False:
                self._warn_of_guess(request)
                answer.force_close()  # an unauthenticated peer has one try of a token on each connection
            return answer

        return guarded

    def is_authenticated(self, request: web.Request) -> bool | None:
        """Whether the request is authenticated; None: authentication is not required, and it has no token."""
        if not (self._https.security.authenticates or self._token or _token_of(request) is not None):
            return None
        return self._is_known(request) or self._has_operator_token(request)

    def _warn_of_guess(self, request: web.Request) -> None:
        """Logs a warning if a peer guesses tokens."""
        if _token_of(request) is not None:
            text = "%s sent a wrong token over HTTP"
            self._throttled.log(logging.WARNING, "token", text, request.remote or "a peer", most=1)

    def _check(self, request: web.Request) -> web.Response | None:
        path = request.path
        if path in _OPEN:
            return None
        if path.startswith(ADMIN):
            return self._check_operator(request) or _check_content_type(request)
        return self._check_read(request, path)

    def may_read(self, request: web.Request) -> bool:
        """Whether the request may read `/api/`, which contains names of topics and groups."""
        return self._check_read(request, API) is None

    def _check_read(self, request: web.Request, path: str) -> web.Response | None:
        security = self._https.security
        if security.authenticates:
            if self._is_known(request) or self._has_operator_token(request):
                return None
            if security.tls or self._token:
                return _unauthorized(request)
            return self._check_local(request)
        if path.startswith(API) and self._token and not self._has_operator_token(request):
            return _unauthorized(request)
        return None

    def _check_operator(self, request: web.Request) -> web.Response | None:
        if self._token:
            return None if self._has_operator_token(request) else _unauthorized(request)
        if self._https.security.tls and self._https.security.authenticates:
            return None if self._is_known(request) else _unauthorized(request)
        return self._check_local(request)

    def _check_local(self, request: web.Request) -> web.Response | None:
        """Checks a request where no certificate or token is required: it has to come from this machine."""
        if not self._local:
            return refusal(
                403,
                "token_unknown",
                "HTTP without TLS accepts only ADMIN_TOKEN (http.token), which is not set",
            )
        if _is_local(request):
            return None
        text = (
            "without ADMIN_TOKEN the broker answers only requests from this machine to its loopback address"
        )
        return refusal(403, "not_here", text)

    def _is_known(self, request: web.Request) -> bool:
        """Whether it has a certificate, or the token that all clients share."""
        if self._https.security.asks_certificates and self._certified(request):
            return True
        return self._https.has_token(_token_of(request))

    def _has_operator_token(self, request: web.Request) -> bool:
        token = _token_of(request)
        return bool(self._token) and token is not None and is_one_of(token, (str(self._token).encode(),))


def _token_of(request: web.Request) -> str | None:
    token = request.headers.get(_TOKEN)
    return bearer(request.headers.get("Authorization")) if token is None else token


def _unauthorized(request: web.Request) -> web.Response:
    if _token_of(request) is None:
        text = f"the request has no certificate, and the header {_TOKEN} is missing"
        return refusal(401, "token_missing", text)
    return refusal(403, "token_wrong", f"the token in the header {_TOKEN} is wrong")


def _check_content_type(request: web.Request) -> web.Response | None:
    # A browser never sends JSON for a page of another origin without a preflight request.
    if request.method != "GET" and request.content_type != "application/json":
        return refusal(415, "no_json", "the body has to be application/json")
    return None


def _is_local(request: web.Request) -> bool:
    try:
        host = request.url.host
    except ValueError:  # its port is no number
        return False
    # The Host header too: a web page whose name resolves to this machine may send requests by a browser.
    return is_loopback(request.remote or "") and is_loopback(host or "")
