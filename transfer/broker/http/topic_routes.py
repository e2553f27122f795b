"""Routes by which operators change topics and groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from aiohttp import web

from transfer.broker.delivery.topic_admin import PURGE, REMOVE, SEEK, TopicAdmin
from transfer.broker.http.admin import body_of
from transfer.broker.http.request_params import RequestParams
from transfer.broker.storage.audit_chain import Json
from transfer.transports.errors import UsageError


class TopicRoutes:
    """Handlers. Each body has topic, actor, reason and confirm; those of groups have group, too."""

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
        """Body: force, too."""
        params = await body_of(request)
        topic, group, force = params.needed("topic"), params.needed("group"), params.flag("force")
        actor, reason = _confirmed_operator(params, REMOVE)
        return await self._answer(
            lambda: self._admin.remove_group(topic, group, actor=actor, reason=reason, force=force)
        )

    async def seek_group(self, request: web.Request) -> web.Response:
        """Body: to (begin, end, an offset, a time) and force, too."""
        params = await body_of(request)
        topic, group, force = params.needed("topic"), params.needed("group"), params.flag("force")
        to = params.needed("to")
        actor, reason = _confirmed_operator(params, SEEK)
        return await self._answer(
            lambda: self._admin.seek_group(topic, group, to, actor=actor, reason=reason, force=force)
        )

    async def purge_topic(self, request: web.Request) -> web.Response:
        """Body: see the class."""
        params = await body_of(request)
        topic = params.needed("topic")
        actor, reason = _confirmed_operator(params, PURGE)
        return await self._answer(lambda: self._admin.purge_topic(topic, actor=actor, reason=reason))

    async def remove_topic(self, request: web.Request) -> web.Response:
        """Body: force, too."""
        params = await body_of(request)
        topic, force = params.needed("topic"), params.flag("force")
        actor, reason = _confirmed_operator(params, REMOVE)
        return await self._answer(
            lambda: self._admin.remove_topic(topic, actor=actor, reason=reason, force=force)
        )

    async def _answer(self, call: Callable[[], dict[str, Json]]) -> web.Response:
        return web.json_response(await asyncio.get_running_loop().run_in_executor(self._executor, call))


def _confirmed_operator(params: RequestParams, word: str) -> tuple[str, str]:
    """Returns (actor, reason) of a confirmed request without further members. Raises UsageError."""
    actor, reason, confirm = params.needed("actor"), params.needed("reason"), params.needed("confirm")
    params.end()
    if confirm != word:
        raise UsageError(f"nothing was done: it has to be confirmed with the word {word}")
    return actor, reason
