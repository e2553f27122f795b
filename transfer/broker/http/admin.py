"""What operators ask over HTTP: dead letters and the audit."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

from aiohttp import web

from transfer.broker.http.request_log import PEERS_MISTAKES
from transfer.broker.http.request_params import RequestParams
from transfer.broker.storage.audit_chain import Json, Window, parse_time, time_text
from transfer.broker.storage.dead_letter import DeadLetter, Filter, Reference, State
from transfer.broker.storage.dead_letter_operations import Operator
from transfer.broker.storage.dead_letter_requests import Outcome
from transfer.json_text import loads
from transfer.transports.errors import UsageError

Result = TypeVar("Result")

#: bytes of a payload that `inspect` shows
MAX_SHOWN = 64 << 10
#: lines of an export that are read at one time
_LINES = 256


class Admin:
    """Handlers. What waits for a disk is done in the executor."""

    def __init__(self, operator: Operator, executor: Executor) -> None:
        self._operator = operator
        self._executor = executor

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Where each of them is."""
        return [
            web.get(f"{prefix}dlq/list", self.list_letters),
            web.get(f"{prefix}dlq/inspect", self.inspect),
            web.post(f"{prefix}dlq/replay", self.replay),
            web.post(f"{prefix}dlq/dead-letter", self.dead_letter),
            web.post(f"{prefix}dlq/purge", self.purge),
            web.get(f"{prefix}audit/events", self.events),
            web.get(f"{prefix}audit/verify", self.verify),
            web.get(f"{prefix}audit/export", self.export),
        ]

    async def _run(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    # -- dead letters ------------------------------------------------------------------------------------

    async def list_letters(self, request: web.Request) -> web.Response:
        """Query: tenant, consumer, topic, id, reason, state, after, limit (100)."""
        asked = RequestParams(request.query)
        wanted = Filter(
            tenant=asked.text("tenant"),
            consumer=asked.text("consumer"),
            topic=asked.text("topic"),
            message_id=asked.text("id"),
            reason=asked.text("reason"),
            state=_state(asked.text("state")),
        )
        after, limit = asked.number("after", 0), asked.number("limit", 100)
        asked.end()
        letters, following = await self._run(lambda: self._operator.browse(wanted, after=after, limit=limit))
        return web.json_response({"letters": [_letter(one) for one in letters], "next": following})

    async def inspect(self, request: web.Request) -> web.Response:
        """Query: id, tenant."""
        asked = RequestParams(request.query)
        id, tenant = asked.needed("id"), asked.text("tenant")
        asked.end()

        def found() -> list[tuple[DeadLetter, bytes]]:
            letters = self._operator.inspect(id, tenant)
            return [(one, self._operator.begin(one, MAX_SHOWN)) for one in letters]

        letters = await self._run(found)
        if not letters:
            told = {"error": "not_found", "message": f"there is no dead letter {id!r}"}
            return web.json_response(told, status=404)
        return web.json_response({"letters": [_whole(*one) for one in letters]})

    async def replay(self, request: web.Request) -> web.Response:
        """Body: ids, target_consumer, target_topic, actor, reason, confirm, tenant, again."""
        asked = await body_of(request)
        ids, consumer, topic = (
            asked.texts("ids"),
            asked.needed("target_consumer"),
            asked.needed("target_topic"),
        )
        actor, reason, confirm = asked.needed("actor"), asked.needed("reason"), asked.needed("confirm")
        tenant, again = asked.text("tenant"), asked.flag("again")
        asked.end()
        outcome = await self._run(
            lambda: self._operator.replay(
                ids, consumer, topic, actor=actor, reason=reason, confirm=confirm, tenant=tenant, again=again
            )
        )
        return web.json_response(_outcome(outcome, "replayed"))

    async def purge(self, request: web.Request) -> web.Response:
        """Body: ids, actor, reason, confirm, tenant."""
        asked = await body_of(request)
        ids, actor, reason = asked.texts("ids"), asked.needed("actor"), asked.needed("reason")
        confirm, tenant = asked.needed("confirm"), asked.text("tenant")
        asked.end()
        outcome = await self._run(
            lambda: self._operator.purge(ids, actor=actor, reason=reason, confirm=confirm, tenant=tenant)
        )
        return web.json_response(_outcome(outcome, "purged"))

    async def dead_letter(self, request: web.Request) -> web.Response:
        """Body: id, consumer, topic, payload or payload_base64, actor, reason, tenant, headers."""
        asked = await body_of(request)
        id, consumer, topic = asked.needed("id"), asked.needed("consumer"), asked.needed("topic")
        actor, reason = asked.needed("actor"), asked.needed("reason")
        tenant, headers = asked.text("tenant") or "", asked.members("headers")
        payload = _given_payload(asked.text("payload"), asked.text("payload_base64"))
        asked.end()
        letter, audited = await self._run(
            lambda: self._operator.dead_letter(
                id, consumer, topic, payload, actor=actor, reason=reason, tenant=tenant, headers=headers
            )
        )
        return web.json_response({"letter": _letter(letter), "audited": audited}, status=201)

    # -- the audit ---------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.Response:
        """Query: id, actor, operation, start, end, after, limit (100)."""
        asked = RequestParams(request.query)
        start, end = _span(asked)
        window = Window(
            start=start,
            end=end,
            actor=asked.text("actor"),
            message_id=asked.text("id"),
            operation=asked.text("operation"),
            after=asked.number("after", 0),
        )
        limit = asked.number("limit", 100)
        asked.end()
        found = await self._run(lambda: self._operator.events(window, limit=limit))
        told: dict[str, Json] = {
            "events": [event.as_json() for event in found],
            "next": found[-1].sequence if len(found) == limit else None,
            "problems": [problem.as_json() for problem in self._operator.audit.found.problems],
        }
        return web.json_response(told)

    async def verify(self, request: web.Request) -> web.Response:
        """Reads the whole audit."""
        RequestParams(request.query).end()
        verdict = await self._run(self._operator.audit.verify)
        return web.json_response(verdict.as_json())

    async def export(self, request: web.Request) -> web.StreamResponse:
        """Query: start, end. Lines of JSON; without the last of them (`export_end`) it was cut off."""
        asked = RequestParams(request.query)
        start, end = _span(asked)
        asked.end()
        lines = self._operator.audit.export(start, end)
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        try:
            while chunk := await self._run(lambda: b"".join(islice(lines, _LINES))):
                await answer.write(chunk)
        finally:
            lines.close()
        await answer.write_eof()
        return answer


async def body_of(request: web.Request) -> RequestParams:
    """The members of the body's JSON object. Raises UsageError."""
    try:
        data = await request.read()
    except PEERS_MISTAKES as error:
        raise UsageError(f"the body cannot be read: {type(error).__name__}") from error
    try:
        values = loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError("the body is no JSON object")
    return RequestParams(values)


def _span(asked: RequestParams) -> tuple[int | None, int | None]:
    start, end = asked.text("start"), asked.text("end")
    return (
        parse_time(start) if start is not None else None,
        parse_time(end) if end is not None else None,
    )


def _state(text: str | None) -> State | None:
    try:
        return None if text is None else State(text)
    except ValueError as error:
        raise UsageError(f"state is {text!r}", hint=", ".join(State)) from error


def _given_payload(text: str | None, encoded: str | None) -> bytes:
    if (text is None) == (encoded is None):
        raise UsageError("payload or payload_base64 has to be given, and not both")
    try:
        return text.encode() if text is not None else base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"the payload cannot be read: {error}") from error


def _outcome(outcome: Outcome, verb: str) -> dict[str, Json]:
    return {
        "requested": outcome.requested,
        verb: len(outcome.done),
        "delivery_ids": list(outcome.done),
        "failures": [{"id": one.id, "error": one.code, "message": one.message} for one in outcome.failures],
        "audited": outcome.audited,
    }


def _letter(letter: DeadLetter) -> dict[str, Json]:
    return {
        "delivery_id": letter.delivery_id,
        "message_id": letter.message_id,
        "tenant": letter.tenant,
        "consumer": letter.consumer,
        "topic": letter.topic,
        "original_topic": letter.original_topic,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "last_error": letter.last_error,
        "first": _time(letter.first_ms or letter.last_ms),  # an early letter does not say it
        "last": _time(letter.last_ms),
        "headers": letter.headers,
        "payload_bytes": letter.payload_bytes,
        "state": str(letter.state),
        "damaged": letter.damaged,
    }


def _whole(letter: DeadLetter, begin: bytes) -> dict[str, Json]:
    """With what its protocol said of it, and its payload: as text if it is some, else as base64; a large one
    in its beginning."""
    told = _letter(letter)
    if letter.front is not None:
        told["front"] = letter.front.name.lower()
    if letter.head:
        told["head_base64"] = base64.b64encode(letter.head[:MAX_SHOWN]).decode()
    if isinstance(letter.payload, Reference):
        return told | {"log": {"topic": letter.payload.topic, "offset": letter.payload.offset}}
    if len(begin) < letter.payload_bytes:
        told["payload_cut"] = True
    try:
        return told | {"payload": begin.decode()}
    except UnicodeDecodeError:
        return told | {"payload_base64": base64.b64encode(begin).decode()}


def _time(ms: int) -> str | None:
    try:
        return time_text(ms)
    except UsageError:  # of a damaged letter
        return None
