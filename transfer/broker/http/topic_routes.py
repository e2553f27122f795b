"""Routes by which operators change topics and groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from aiohttp import web

from transfer.broker.delivery.topic_admin import PURGE, REMOVE, SEEK, TopicAdmin
from transfer.broker.http.admin import body_of
from transfer.broker.http.request_params import RequestParams
from transfer.broker.storage.audit_chain import Json
from transfer.transports.errors import UsageError


class TopicRoutes:
    """Handlers; docs/reference/http.md prints their docstrings. Each body has actor and reason, too."""

    def __init__(self, admin: TopicAdmin, executor: Executor) -> None:
        self._admin = admin
        self._executor = executor

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Returns the routes below `prefix`."""
        return [
            web.post(f"{prefix}groups/remove", self.remove_group),
            web.post(f"{prefix}groups/seek", self.seek_group),
            web.post(f"{prefix}topics/purge", self.purge_topic),
            web.post(f"{prefix}topics/remove", self.remove_topic),
        ]

    async def remove_group(self, request: web.Request) -> web.Response:
        """Removes a group. Body: `confirm` (REMOVE), `topic`, `group`; optional `force`."""
        params = await body_of(request)
        named = params.needed("topic"), params.needed("group")
        call = partial(self._admin.remove_group, *named, force=params.flag("force"))
        return await self._answer(call, params, REMOVE)

    async def seek_group(self, request: web.Request) -> web.Response:
        """Moves a group. Body: `confirm` (SEEK), `topic`, `group`, `to` (`begin`, `end`, an offset, a time);
        optional `force`."""
        params = await body_of(request)
        named = params.needed("topic"), params.needed("group"), params.needed("to")
        call = partial(self._admin.seek_group, *named, force=params.flag("force"))
        return await self._answer(call, params, SEEK)

    async def purge_topic(self, request: web.Request) -> web.Response:
        """Removes all messages of a topic. Body: `confirm` (PURGE), `topic`."""
        params = await body_of(request)
        return await self._answer(partial(self._admin.purge_topic, params.needed("topic")), params, PURGE)

    async def remove_topic(self, request: web.Request) -> web.Response:
        """Removes a topic. Body: `confirm` (REMOVE), `topic`; optional `force`."""
        params = await body_of(request)
        call = partial(self._admin.remove_topic, params.needed("topic"), force=params.flag("force"))
        return await self._answer(call, params, REMOVE)

    async def _answer(
        self, call: Callable[..., dict[str, Json]], params: RequestParams, word: str
    ) -> web.Response:
        """Calls with the actor and reason of a request that is confirmed by `word`. Raises UsageError."""
        actor, reason, confirm = params.needed("actor"), params.needed("reason"), params.needed("confirm")
        params.end()
        if confirm != word:
            raise UsageError(f"nothing was done: it has to be confirmed with the word {word}")
        ready = partial(call, actor=actor, reason=reason)
        return web.json_response(await asyncio.get_running_loop().run_in_executor(self._executor, ready))
