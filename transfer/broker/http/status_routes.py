"""What the broker does now: `/metrics` for Prometheus, and `/api/` as JSON for the console and programs.

    GET /api/overview      the broker as a whole
    GET /api/topics        topics by name, from `after` on, that contain `contains`, at most `limit`
    GET /api/groups        groups of consumers
    GET /api/fronts        who listens where, and what happened there

Who is answered stands in `authentication.py`.
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
    Names,
    first_names,
    fronts_told,
    group_told,
    groups_of,
    numbers_of,
    overview_told,
    topic_told,
)
from transfer.broker.storage.audit_chain import Json
from transfer.metrics.prometheus import exposition

if TYPE_CHECKING:
    from transfer.broker.server import Broker

#: topics of one answer, unless it is asked for more
_PAGE, _MOST = 500, 10_000
#: topics or groups that are looked at in one turn of the loop
_AT_ONCE = 100
_Name = TypeVar("_Name")


class Disk(NamedTuple):
    """What only the disk can tell. segments: files of the log."""

    dead_letters: int
    segments: int


def add_looks(app: web.Application, broker: Broker) -> None:
    """Adds the routes, and a thread that asks the disk, which ends with the application's clean-up."""
    looks = _Looks(broker)
    app.on_cleanup.append(looks.end)
    app.add_routes(
        [
            web.get("/metrics", looks.metrics),
            web.get("/api/overview", looks.overview),
            web.get("/api/topics", looks.topics),
            web.get("/api/groups", looks.groups),
            web.get("/api/fronts", looks.told_by(fronts_told)),
        ]
    )


class _Looks:
    """Handlers. What belongs to the loop is read on it; the disk is asked, and text is written, beside."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._names = Names()
        self._thread = ThreadPoolExecutor(1, "transfer-looks", broker.threads.add_current)

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
        told = overview_told(self._broker)
        told["problems"] = [str(problem) for problem in ready_problems(self._broker)]
        told["dead_letters"], told["log_segments"] = disk
        return web.json_response(told)

    async def topics(self, request: web.Request) -> web.Response:
        asked = RequestParams(request.query)
        after, contains = asked.text("after") or "", asked.text("contains") or ""
        limit = min(asked.number("limit", _PAGE), _MOST)
        asked.end()
        known = list(self._broker.hub.store.topics)
        names = await asyncio.get_running_loop().run_in_executor(
            self._thread, first_names, known, after, contains, limit
        )
        more = names[limit - 1] if limit and len(names) > limit else None
        return await self._answer("topics", names[:limit], topic_told, next=more)

    async def groups(self, request: web.Request) -> web.Response:
        RequestParams(request.query).end()
        return await self._answer("groups", groups_of(self._broker), group_told)

    async def _answer(
        self, what: str, names: Sequence[_Name], tell: Callable[[Broker, _Name], Json], **more: Json
    ) -> web.Response:
        """What `tell` says of each, if it is there, some in each turn of the loop: there may be thousands."""
        told: dict[str, Json] = {"seconds": self._broker.loop.time()}
        found: list[Json] = []
        for count, name in enumerate(names, 1):
            if (one := tell(self._broker, name)) is not None:
                found.append(one)
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
        told |= {what: found} | more
        body = await asyncio.get_running_loop().run_in_executor(self._thread, json.dumps, told)
        return web.Response(text=body, content_type="application/json")

    def told_by(self, tell: Callable[[Broker], Mapping[str, Json]]) -> Handler:
        """A handler that answers what `tell` says of the broker."""

        async def answer(request: web.Request) -> web.Response:
            RequestParams(request.query).end()
            return web.json_response(tell(self._broker))

        return answer
