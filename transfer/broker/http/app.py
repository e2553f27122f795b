"""The application that aiohttp serves: health and metrics for all, the rest for operators.

Every answer that is no page or metric is JSON; an error is `{"error": CODE, "message": TEXT}`.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from transfer.broker.http.admin import Admin
from transfer.broker.state.operations import Operator
from transports.errors import (
    Again,
    Closed,
    LogDamaged,
    LogInUse,
    StateError,
    TransferError,
    UsageError,
)

_log = logging.getLogger("transfer.broker")
#: what is wrong now; nothing: all is well
Health = Callable[[], Sequence[str]]

#: bytes of a request's body
MAX_BODY = 4 << 20
#: calls of operators at one time: they wait for disks
_THREADS = 2
_PREFIX = "/api/admin/"
_TOKEN = "X-Admin-Token"


def application(
    operator: Operator,
    *,
    token: str | None,
    live: Health = tuple,
    ready: Health = tuple,
    metrics: Callable[[], bytes] | None = None,
    max_body: int = MAX_BODY,
) -> web.Application:
    """Serves `/livez`, `/readyz`, `/metrics` to all, and `/api/admin/` to who has the token.

    token: None: operators have to be on this machine. live, ready, metrics are called on the loop, so
    they have to be quick; metrics gives Prometheus' text. The operator is called on threads of its own,
    which end with the application's clean-up.
    """
    app = web.Application(client_max_size=max_body, middlewares=[_errors_as_json, _guard(token)])
    executor = ThreadPoolExecutor(_THREADS, "transfer-admin")

    async def end(_: web.Application) -> None:
        # Without waiting: a call that still runs may itself wait for this loop.
        executor.shutdown(wait=False)

    app.on_cleanup.append(end)
    app.add_routes([web.get("/livez", _health(live)), web.get("/readyz", _health(ready))])
    if metrics is not None:
        app.add_routes([web.get("/metrics", _metrics(metrics))])
    app.add_routes(Admin(operator, executor).routes(_PREFIX))
    return app


def refusal(status: int, code: str, message: str) -> web.Response:
    """An error as clients read it."""
    return web.json_response({"error": code, "message": message}, status=status)


def _health(problems: Health) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        found = list(problems())
        told = {"status": "failing", "problems": found} if found else {"status": "ok"}
        return web.json_response(told, status=503 if found else 200)

    return answer


def _metrics(text: Callable[[], bytes]) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    return answer


def _guard(token: str | None) -> Middleware:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(_PREFIX) and (refused := _refused(request, token)):
            return refused
        return await handler(request)

    return guarded


def without_token(request: web.Request, token: str) -> web.Response | None:
    """The answer to a request that does not have the token; None: it has it."""
    given = request.headers.get(_TOKEN)
    if given is None:
        return refusal(401, "token_missing", f"the header {_TOKEN} is missing")
    if not hmac.compare_digest(given.encode(errors="replace"), token.encode()):
        return refusal(403, "token_wrong", f"the header {_TOKEN} has another token")
    return None


def _refused(request: web.Request, token: str | None) -> web.Response | None:
    """Why this request may not be answered."""
    if token:
        if refused := without_token(request, token):
            return refused
    elif not (_is_here(request.remote) and _is_here(request.url.host)):
        # The second: a page of the web that got a name for this machine, and asks through a browser.
        return refusal(403, "not_here", "without ADMIN_TOKEN only this machine may ask, by its own address")
    # What a browser sends for a page without asking first is never JSON.
    if request.method != "GET" and request.content_type != "application/json":
        return refusal(415, "no_json", "the body has to be application/json")
    return None


def _is_here(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge as error:
        return refusal(413, "too_large", str(error.text))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        told = refusal(
            error.status, error.reason.lower().replace(" ", "_"), f"{request.method} {request.path}"
        )
        if "Allow" in error.headers:
            told.headers["Allow"] = error.headers["Allow"]
        return told
    except StateError as error:
        return refusal(409, "conflict", str(error))
    except (Again, Closed, LogInUse) as error:
        return refusal(503, "unavailable", str(error))
    except UsageError as error:
        return refusal(400, "bad_request", str(error))
    except LogDamaged as error:
        _log.error("%s %s: %s", request.method, request.path, error)
        return refusal(500, "damaged", str(error))
    except (TransferError, OSError) as error:
        _log.error("%s %s: %s", request.method, request.path, error)
        return refusal(500, "internal", str(error))
