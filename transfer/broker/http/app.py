"""The application that aiohttp serves: health and metrics for all, the rest for operators.

Pages and metrics apart, every answer is JSON; an error is `{"error": CODE, "message": TEXT}`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from aiohttp import web
from aiohttp.typedefs import Handler

from transfer.broker.delivery.topic_admin import TopicAdmin
from transfer.broker.http.admin import AdminRoutes
from transfer.broker.http.authentication import ADMIN, Authentication
from transfer.broker.http.error_response import refusal, set_headers
from transfer.broker.http.health import HealthProblem
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
#: returns the current problems
Health = Callable[[], Sequence[HealthProblem]]

#: bytes of a request's body
MAX_BODY = 4 << 20
#: operators' calls that run at the same time: they wait for disks
_THREADS = 2


def application(
    operator: Operator,
    *,
    token: str | None,
    authentication: Authentication | None = None,
    live: Health = tuple,
    ready: Health = tuple,
    topics: TopicAdmin | None = None,
) -> web.Application:
    """Makes the application for `/livez`, `/readyz` and `/api/admin/`.

    token: of the operators, if `authentication` is None; None: only this machine may send their calls.
    live, ready: called on the loop, so they must not block.
    operator: called on threads, which end with the application's clean-up.
    """
    authentication = authentication or Authentication(token)
    # The guard is the outermost middleware: every answer passes it, errors too.
    app = web.Application(client_max_size=MAX_BODY, middlewares=[authentication.guard(), _errors_as_json])
    executor = ThreadPoolExecutor(_THREADS, "transfer-admin")

    async def end(_: web.Application) -> None:
        # It does not wait: a running call may wait for this loop.
        executor.shutdown(wait=False)

    app.on_cleanup.append(end)
    app.on_response_prepare.append(set_headers)
    for path, problems in (("/livez", live), ("/readyz", ready)):
        app.add_routes([web.get(path, _health(problems, authentication.may_read))])
    app.add_routes(AdminRoutes(operator, executor).routes(ADMIN))
    if topics is not None:
        app.add_routes(TopicRoutes(topics, executor).routes(ADMIN))
    return app


def _health(problems: Health, is_trusted: Callable[[web.Request], bool]) -> Handler:
    """Makes a handler. is_trusted: whether a request may read details of problems, not only their kinds."""

    async def answer(request: web.Request) -> web.Response:
        describe = str if is_trusted(request) else attrgetter("kind")
        found = [describe(problem) for problem in problems()]
        body = {"status": "failing", "problems": found} if found else {"status": "ok"}
        return web.json_response(body, status=503 if found else 200)

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
        response = refusal(
            error.status, error.reason.lower().replace(" ", "_"), f"{request.method} {request.path}"
        )
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ConnectionResetError:  # the peer has gone, so there is no answer
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
