"""The application that aiohttp serves: health and metrics for all, the rest for operators.

Every answer that is no page or metric is JSON; an error is `{"error": CODE, "message": TEXT}`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from aiohttp import web
from aiohttp.typedefs import Handler

from transfer.broker.delivery.topic_admin import TopicAdmin
from transfer.broker.http.admin import Admin
from transfer.broker.http.authentication import ADMIN, Authentication
from transfer.broker.http.error_response import refusal, set_headers
from transfer.broker.http.health import Problem
from transfer.broker.http.topic_routes import TopicRoutes
from transfer.broker.storage.dead_letter_operations import Operator
from transfer.transports.errors import (
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
Health = Callable[[], Sequence[Problem]]

#: bytes of a request's body
MAX_BODY = 4 << 20
#: calls of operators at one time: they wait for disks
_THREADS = 2


def application(
    operator: Operator,
    *,
    token: str | None,
    callers: Authentication | None = None,
    live: Health = tuple,
    ready: Health = tuple,
    metrics: Callable[[], bytes] | None = None,
    max_body: int = MAX_BODY,
    topics: TopicAdmin | None = None,
) -> web.Application:
    """Serves `/livez`, `/readyz`, `/metrics`, and `/api/admin/`, to those who may ask (`authentication.py`).

    token: of the operators, where no `callers` are given; None: they have to be on this machine. live,
    ready, metrics are called on the loop, so they have to be quick; metrics gives Prometheus' text. The
    operator is called on threads of its own, which end with the application's clean-up.
    """
    callers = callers or Authentication(token)
    # The guard comes first: it sees every answer, errors too.
    app = web.Application(client_max_size=max_body, middlewares=[callers.guard(), _errors_as_json])
    executor = ThreadPoolExecutor(_THREADS, "transfer-admin")

    async def end(_: web.Application) -> None:
        # Without waiting: a call that still runs may itself wait for this loop.
        executor.shutdown(wait=False)

    app.on_cleanup.append(end)
    app.on_response_prepare.append(set_headers)
    for path, problems in (("/livez", live), ("/readyz", ready)):
        app.add_routes([web.get(path, _health(problems, callers.may_look))])
    if metrics is not None:
        app.add_routes([web.get("/metrics", _metrics(metrics))])
    app.add_routes(Admin(operator, executor).routes(ADMIN))
    if topics is not None:
        app.add_routes(TopicRoutes(topics, executor).routes(ADMIN))
    return app


def _health(problems: Health, names: Callable[[web.Request], bool]) -> Handler:
    """names: whether a request may read more than the kinds of the problems."""

    async def answer(request: web.Request) -> web.Response:
        tells = str if names(request) else attrgetter("kind")
        found = [tells(problem) for problem in problems()]
        told = {"status": "failing", "problems": found} if found else {"status": "ok"}
        return web.json_response(told, status=503 if found else 200)

    return answer


def _metrics(text: Callable[[], bytes]) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    return answer


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
    except ConnectionResetError:  # the peer went, and hears no answer
        raise
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
