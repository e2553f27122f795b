"""Operators' changes to topics and groups: remove, seek, purge. Each is audited before it is made."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from transfer.broker.delivery.loop_calls import run_on_loop, wait_for
from transfer.broker.storage.audit_chain import Action, Json, parse_time
from transfer.broker.storage.dead_letter_requests import check_actor
from transfer.transports.errors import StateError, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.broker.delivery.group_contract import Served
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.storage.audit import Audit
    from transfer.broker.storage.dead_letter_table import DeadLetters
    from transfer.broker.storage.topic import Topic

_log = logging.getLogger("transfer.broker")
#: reasons that consumers get when their group is removed or moved
_REMOVED, _MOVED = "was removed by an operator", "was moved by an operator"
#: the words that an operator types to confirm
REMOVE, SEEK, PURGE = "REMOVE", "SEEK", "PURGE"


class TopicAdmin:
    """Changes topics and groups. Thread-safe; calls block, in operators' threads. Raises UsageError for what
    does not exist, StateError for what is in use (unless `force`), Again when the loop or the disk does
    not answer, LogFull."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: Hub, letters: DeadLetters, audit: Audit) -> None:
        self._loop = loop
        self._hub = hub
        self._letters = letters
        self._audit = audit

    def remove_group(
        self, topic: str, group: str, *, actor: str, reason: str, force: bool = False
    ) -> dict[str, Json]:
        """Removes a group: the log no longer keeps messages for it. force: even if it has consumers, which
        get the reason."""

        def look() -> dict[str, Json]:
            self._hub.groups.check_unclaimed(topic, group)
            return self._prior(self._hub.groups.find(topic, group), force=force)

        def change() -> int:
            return self._hub.groups.remove(topic, group, _REMOVED)

        return self._change("group_remove", look, change, actor, reason)

    def seek_group(
        self, topic: str, group: str, to: str, *, actor: str, reason: str, force: bool = False
    ) -> dict[str, Json]:
        """Moves a group. force: even if it has consumers, which have to join again. to: "begin" (the oldest
        message), "end", an offset, or a time such as 2026-03-21T00:00:00Z."""
        reached = 0

        def look() -> dict[str, Json]:
            served = self._hub.groups.find(topic, group)
            self._offset(served.topic, to)
            return self._prior(served, force=force)

        def change() -> int:
            nonlocal reached
            served = self._hub.groups.find(topic, group)
            reached = self._hub.groups.seek(topic, group, self._offset(served.topic, to), _MOVED)
            return self._hub.store.log.acknowledge(served.topic.log_name, group, reached)

        return self._change("group_seek", look, change, actor, reason) | {"cursor": reached}

    def purge_topic(self, topic: str, *, actor: str, reason: str) -> dict[str, Json]:
        """Removes all messages of a topic; its groups skip them. Offsets go on. `purged`: the number of
        messages."""
        hub = self._hub
        low = end = 0

        def look() -> dict[str, Json]:
            return self._topic_state(self._topic(topic))

        def change() -> int:
            nonlocal low, end
            found = self._topic(topic)
            if hub.direct is not None:
                hub.direct.purge(found)
            low, end = hub.store.range(found)
            hub.groups.purge(found, end)
            return hub.store.purge(found)

        prior = self._change("topic_purge", look, change, actor, reason)
        return prior | {"oldest": end, "end": end, "purged": end - low}

    def remove_topic(self, topic: str, *, actor: str, reason: str, force: bool = False) -> dict[str, Json]:
        """Removes a topic with its messages and groups. force: even if clients consume or subscribe."""
        hub = self._hub

        def look() -> dict[str, Json]:
            found = self._topic(topic)
            if not force:
                self._check_unused(found)
            if hub.is_writing(found):
                raise StateError(f"messages of topic {topic!r} are being written", hint="try again")
            return self._topic_state(found)

        def change() -> int:
            look()
            found = self._topic(topic)
            if hub.direct is not None:
                hub.direct.purge(found, removed=True)
            for served in hub.groups.of_topic(found):
                hub.groups.remove(topic, served.named.name, _REMOVED)
            hub.fanout.forget(found)
            return hub.store.remove(found)

        return self._change("topic_remove", look, change, actor, reason)

    # -- on the loop -------------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        found = self._hub.store.topics.get(name)
        if found is None:
            raise UsageError(f"there is no topic {name!r}", hint="transfer topics list")
        return found

    def _prior(self, served: Served, *, force: bool) -> dict[str, Json]:
        group, named = served.group, served.named
        if group.consumers and not force:
            raise StateError(
                f"group {named.name!r} of topic {named.topic!r} has {group.consumers} consumers",
                hint="end them first, or use force: they get the reason, and must join again",
            )
        lag = group.lag(served.topic.kept)
        prior: dict[str, Json] = {"topic": named.topic, "group": named.name}
        return prior | {"cursor": group.cursor, "lag": lag, "consumers": group.consumers}

    def _check_unused(self, topic: Topic) -> None:
        hub = self._hub
        consumers = sum(served.group.consumers for served in hub.groups.of_topic(topic))
        listeners = sum(one.listening(topic.name) for one in hub.fanout.listeners(topic))
        waiting = len(hub.direct.unfinished(topic)) if hub.direct is not None else 0
        if consumers or listeners or waiting:
            raise StateError(
                f"topic {topic.name!r} has {consumers} consumers, {listeners} subscribers and {waiting} "
                "messages for direct delivery",
                hint="end them first, or use force",
            )

    def _topic_state(self, topic: Topic) -> dict[str, Json]:
        low, end = self._hub.store.range(topic)
        groups: list[Json] = [served.named.name for served in self._hub.groups.of_topic(topic)]
        return {"topic": topic.name, "oldest": low, "end": end, "groups": groups}

    def _offset(self, topic: Topic, to: str) -> int:
        low, high = self._hub.store.range(topic)
        if to in ("begin", "end"):
            return low if to == "begin" else high
        if to.isascii() and to.isdecimal():
            if int(to) > high:
                raise UsageError(f"offset {to} is behind the end of topic {topic.name!r}, which is {high}")
            return int(to)
        return self._hub.store.log.offset_at(topic.log_name, parse_time(to) * 1_000_000)

    # -- in the operator's thread ------------------------------------------------------------------------

    def _change(
        self,
        operation: str,
        look: Callable[[], dict[str, Json]],
        change: Callable[[], int],
        actor: str,
        reason: str,
    ) -> dict[str, Json]:
        """Audits a change, makes it, and gives unused room back. Returns the prior state, and the log's size
        now."""
        check_actor(actor, reason)
        prior = run_on_loop(self._loop, look)
        self._audit_change(actor, operation, reason, prior)
        try:
            wait_for(self._loop, lambda done: self._hub.durability.when_kept(change(), done))
        except TransferError as error:
            self._audit_change(actor, f"{operation}_failed", str(error)[:1000], prior)
            raise
        self._give_back()
        return prior | {"log_bytes": self._hub.store.log.disk_bytes}

    def _audit_change(self, actor: str, operation: str, reason: str, prior: Mapping[str, Json]) -> None:
        event = Action(actor, operation, (), reason, [dict(prior)])
        self._audit.append(event, time.time_ns() // 1_000_000)

    def _give_back(self) -> None:
        log = self._hub.store.log
        try:
            log.collect()
            log.compact()
        except TransferError as error:
            _log.warning("the log gives its unused room back later: %s", error)
