"""Serves the broker's state: `/metrics` for Prometheus, and `/api/` as JSON for the console and programs.

    GET /api/overview      the broker as a whole
    GET /api/topics        topics by name, from `after` on, that contain `contains`, at most `limit`
    GET /api/groups        groups of consumers
    GET /api/fronts        the fronts: where each listens, and its counters

`authentication.py` decides which requests are answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from transfer.broker.http.health import ready_problems
from transfer.broker.http.request_params import RequestParams
from transfer.broker.status import (
    FAMILIES,
    FrontNames,
    describe_fronts,
    describe_group,
    describe_overview,
    describe_topic,
    first_names,
    groups_of,
    numbers_of,
)
from transfer.broker.storage.audit_chain import Json
from transfer.metrics.prometheus import exposition

if TYPE_CHECKING:
    from transfer.broker.server import Broker

#: topics of one answer: by default, and at most
_PAGE, _MOST = 500, 10_000
#: topics or groups that one turn of the loop describes
_AT_ONCE = 100
_Name = TypeVar("_Name")


class Disk(NamedTuple):
    """Numbers that are read from the disk. segments: files of the log."""

    dead_letters: int
    segments: int


def add_status_routes(app: web.Application, broker: Broker) -> None:
    """Adds the routes, and a thread that reads the disk. The application's clean-up ends the thread."""
    handlers = _StatusHandlers(broker)
    app.on_cleanup.append(handlers.end)
    app.add_routes(
        [
            web.get("/metrics", handlers.metrics),
            web.get("/api/overview", handlers.overview),
            web.get("/api/topics", handlers.topics),
            web.get("/api/groups", handlers.groups),
            web.get("/api/fronts", handlers.handler_of(describe_fronts)),
        ]
    )


class _StatusHandlers:
    """Handlers. They read the loop's state on the loop; a thread reads the disk and formats text."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._names = FrontNames()
        self._thread = ThreadPoolExecutor(1, "transfer-status", broker.threads.add_current)

    async def end(self, _: web.Application) -> None:
        self._thread.shutdown()

    async def _disk(self) -> Disk:
        broker = self._broker

        def ask() -> Disk:
            return Disk(
                broker.letters.count(), sum(1 for _ in Path(broker.hub.store.log.folder).glob("*.log"))
            )

        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)

    async def metrics(self, _: web.Request) -> web.Response:
        disk = await self._disk()
        ready = not ready_problems(self._broker)
        numbers = numbers_of(self._broker, self._names, ready=ready, dead_letters=disk.dead_letters)
        text = await asyncio.get_running_loop().run_in_executor(
            self._thread, exposition, self._broker.contexts, FAMILIES, numbers
        )
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def overview(self, request: web.Request) -> web.Response:
        RequestParams(request.query).end()
        disk = await self._disk()
        overview = describe_overview(self._broker)
        overview["problems"] = [str(problem) for problem in ready_problems(self._broker)]
        overview["dead_letters"], overview["log_segments"] = disk
        return web.json_response(overview)

    async def topics(self, request: web.Request) -> web.Response:
        params = RequestParams(request.query)
        after, contains = params.text("after") or "", params.text("contains") or ""
        limit = min(params.number("limit", _PAGE), _MOST)
        params.end()
        known = list(self._broker.hub.store.topics)
        names = await asyncio.get_running_loop().run_in_executor(
            self._thread, first_names, known, after, contains, limit
        )
        more = names[limit - 1] if limit and len(names) > limit else None
        return await self._answer("topics", names[:limit], describe_topic, next=more)

    async def groups(self, request: web.Request) -> web.Response:
        RequestParams(request.query).end()
        return await self._answer("groups", groups_of(self._broker), describe_group)

    async def _answer(
        self, what: str, names: Sequence[_Name], describe: Callable[[Broker, _Name], Json], **more: Json
    ) -> web.Response:
        """Describes each that still exists, some in each turn of the loop: there may be thousands."""
        result: dict[str, Json] = {"seconds": self._broker.loop.time()}
        found: list[Json] = []
        for count, name in enumerate(names, 1):
            if (one := describe(self._broker, name)) is not None:
                found.append(one)
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
        result |= {what: found} | more
        body = await asyncio.get_running_loop().run_in_executor(self._thread, json.dumps, result)
        return web.Response(text=body, content_type="application/json")

    def handler_of(self, describe: Callable[[Broker], Mapping[str, Json]]) -> Handler:
        """Makes a handler that answers with what `describe` returns for the broker."""

        async def answer(request: web.Request) -> web.Response:
            RequestParams(request.query).end()
            return web.json_response(describe(self._broker))

        return answer
