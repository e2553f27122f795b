"""Routes by which operators handle dead letters and read the audit."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

from aiohttp import web

from transfer.broker.http.error_response import refusal
from transfer.broker.http.request_log import PEERS_MISTAKES
from transfer.broker.http.request_params import RequestParams
from transfer.broker.storage.audit_chain import AuditWindow, Json, parse_time, time_text
from transfer.broker.storage.dead_letter import DeadLetter, Filter, LetterState, Reference
from transfer.broker.storage.dead_letter_operations import Operator
from transfer.broker.storage.dead_letter_requests import RequestOutcome
from transfer.json_text import loads
from transfer.transports.errors import UsageError

Result = TypeVar("Result")

#: bytes of a payload that `inspect` shows
MAX_SHOWN = 64 << 10
#: lines of an export that are read at one time
_LINES = 256


class AdminRoutes:
    """Handlers; docs/reference/http.md prints their docstrings. The executor runs what waits for a disk."""

    def __init__(self, operator: Operator, executor: Executor) -> None:
        self._operator = operator
        self._executor = executor

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Returns the routes below `prefix`."""
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
        """Lists dead letters. Query: `tenant`, `consumer`, `topic`, `id`, `reason`, `state`, `after`,
        `limit`."""
        params = RequestParams(request.query)
        wanted = Filter(
            tenant=params.text("tenant"),
            consumer=params.text("consumer"),
            topic=params.text("topic"),
            message_id=params.text("id"),
            reason=params.text("reason"),
            state=_state(params.text("state")),
        )
        after, limit = params.number("after", 0), params.number("limit", 100)
        params.end()
        letters, following = await self._run(lambda: self._operator.browse(wanted, after=after, limit=limit))
        return web.json_response({"letters": [_letter(one) for one in letters], "next": following})

    async def inspect(self, request: web.Request) -> web.Response:
        """Shows a dead letter, with the first 64 KiB of its payload. Query: `id` (needed), `tenant`."""
        params = RequestParams(request.query)
        id, tenant = params.needed("id"), params.text("tenant")
        params.end()

        def found() -> list[tuple[DeadLetter, bytes]]:
            letters = self._operator.inspect(id, tenant)
            return [(one, self._operator.begin(one, MAX_SHOWN)) for one in letters]

        letters = await self._run(found)
        if not letters:
            return refusal(404, "not_found", f"there is no dead letter {id!r}")
        return web.json_response({"letters": [_whole(*one) for one in letters]})

    async def replay(self, request: web.Request) -> web.Response:
        """Replays dead letters. Body: `confirm` (REPLAY), `ids` (1 to 1000), `target_consumer`,
        `target_topic` (those of the dead letters); optional `tenant`, `again` (also letters in doubt)."""
        params = await body_of(request)
        ids, consumer, topic = (
            params.texts("ids"),
            params.needed("target_consumer"),
            params.needed("target_topic"),
        )
        actor, reason, confirm = params.needed("actor"), params.needed("reason"), params.needed("confirm")
        tenant, again = params.text("tenant"), params.flag("again")
        params.end()
        outcome = await self._run(
            lambda: self._operator.replay(
                ids, consumer, topic, actor=actor, reason=reason, confirm=confirm, tenant=tenant, again=again
            )
        )
        return web.json_response(_outcome(outcome, "replayed"))

    async def purge(self, request: web.Request) -> web.Response:
        """Removes dead letters. Body: `confirm` (PURGE), `ids` (1 to 1000); optional `tenant`."""
        params = await body_of(request)
        ids, actor, reason = params.texts("ids"), params.needed("actor"), params.needed("reason")
        confirm, tenant = params.needed("confirm"), params.text("tenant")
        params.end()
        outcome = await self._run(
            lambda: self._operator.purge(ids, actor=actor, reason=reason, confirm=confirm, tenant=tenant)
        )
        return web.json_response(_outcome(outcome, "purged"))

    async def dead_letter(self, request: web.Request) -> web.Response:
        """Makes a dead letter, without `confirm`. Body: `id`, `consumer`, `topic`, `payload` or
        `payload_base64`; optional `tenant`, `headers` (an object)."""
        params = await body_of(request)
        id, consumer, topic = params.needed("id"), params.needed("consumer"), params.needed("topic")
        actor, reason = params.needed("actor"), params.needed("reason")
        tenant, headers = params.text("tenant") or "", params.members("headers")
        payload = _given_payload(params.text("payload"), params.text("payload_base64"))
        params.end()
        letter, audited = await self._run(
            lambda: self._operator.dead_letter(
                id, consumer, topic, payload, actor=actor, reason=reason, tenant=tenant, headers=headers
            )
        )
        return web.json_response({"letter": _letter(letter), "audited": audited}, status=201)

    # -- the audit ---------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.Response:
        """Lists the audit. Query: `id`, `actor`, `operation`, `start`, `end`, `after`, `limit`."""
        params = RequestParams(request.query)
        start, end = _span(params)
        window = AuditWindow(
            start=start,
            end=end,
            actor=params.text("actor"),
            message_id=params.text("id"),
            operation=params.text("operation"),
            after=params.number("after", 0),
        )
        limit = params.number("limit", 100)
        params.end()
        found = await self._run(lambda: self._operator.events(window, limit=limit))
        page: dict[str, Json] = {
            "events": [event.as_json() for event in found],
            "next": found[-1].sequence if len(found) == limit else None,
            "problems": [problem.as_json() for problem in self._operator.audit.found.problems],
        }
        return web.json_response(page)

    async def verify(self, request: web.Request) -> web.Response:
        """Reads the whole audit, and reports its damage."""
        RequestParams(request.query).end()
        verdict = await self._run(self._operator.audit.verify)
        return web.json_response(verdict.as_json())

    async def export(self, request: web.Request) -> web.StreamResponse:
        """Exports the audit as lines of JSON; without a last `export_end` it is cut off. Query: `start`,
        `end`."""
        params = RequestParams(request.query)
        start, end = _span(params)
        params.end()
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


def _span(params: RequestParams) -> tuple[int | None, int | None]:
    start, end = params.text("start"), params.text("end")
    return (
        parse_time(start) if start is not None else None,
        parse_time(end) if end is not None else None,
    )


def _state(text: str | None) -> LetterState | None:
    try:
        return None if text is None else LetterState(text)
    except ValueError as error:
        raise UsageError(f"state is {text!r}", hint=", ".join(LetterState)) from error


def _given_payload(text: str | None, encoded: str | None) -> bytes:
    if (text is None) == (encoded is None):
        raise UsageError("payload or payload_base64 has to be given, and not both")
    try:
        return text.encode() if text is not None else base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"the payload cannot be read: {error}") from error


def _outcome(outcome: RequestOutcome, verb: str) -> dict[str, Json]:
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
        "first": _time(letter.first_ms or letter.last_ms),  # letters of early versions do not have it
        "last": _time(letter.last_ms),
        "headers": letter.headers,
        "payload_bytes": letter.payload_bytes,
        "state": str(letter.state),
        "damaged": letter.damaged,
    }


def _whole(letter: DeadLetter, begin: bytes) -> dict[str, Json]:
    """Describes a letter with its protocol's head and the beginning of its payload.

    The payload is a text if it is UTF-8, else base64.
    """
    result = _letter(letter)
    if letter.front is not None:
        result["front"] = letter.front.name.lower()
    if letter.head:
        result["head_base64"] = base64.b64encode(letter.head[:MAX_SHOWN]).decode()
    if isinstance(letter.payload, Reference):
        return result | {"log": {"topic": letter.payload.topic, "offset": letter.payload.offset}}
    if len(begin) < letter.payload_bytes:
        result["payload_cut"] = True
    try:
        return result | {"payload": begin.decode()}
    except UnicodeDecodeError:
        return result | {"payload_base64": base64.b64encode(begin).decode()}


def _time(ms: int) -> str | None:
    try:
        return time_text(ms)
    except UsageError:  # the letter is damaged
        return None
