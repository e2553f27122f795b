"""Dead letters on their way back: published again, for who could not process them alone."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from transfer.broker.engine.direct_actions import Admitted
from transfer.broker.engine.direct_events import Facts
from transfer.broker.message import Front, Message
from transfer.broker.state.letter import DeadLetter, Reference
from transfer.broker.topic import LOG_PREFIX
from transports.errors import Again, InternalError, LogFull, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.broker.durability import Told
    from transfer.broker.hub import Hub

#: seconds until a replay is in doubt: the disk does not answer
_PATIENCE = 60.0
#: the header that names a replay, so that consumers can tell
REPLAY_HEADER = "replay_id"


class Replaying:
    """Publishes a letter; called in a thread of an operator. See `Operator`.

    Raises UsageError when there is no such group, or the message is gone; LogFull; Again when it is in
    doubt whether it was kept.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: Hub) -> None:
        self._loop = loop
        self._hub = hub

    def __call__(self, letter: DeadLetter, replay: str) -> None:
        kept: Future[None] = Future()
        self._loop.call_soon_threadsafe(self._publish, letter, replay, kept)
        try:
            kept.result(_PATIENCE)
        except TimeoutError as error:
            raise Again(f"the disk did not answer within {_PATIENCE:g} s") from error

    def _publish(self, letter: DeadLetter, replay: str, kept: Future[None]) -> None:
        def told(error: TransferError | None) -> None:
            if kept.done():
                return
            if error is None:
                kept.set_result(None)
            else:
                kept.set_exception(error)

        try:
            if self._is_direct(letter):
                self._publish_direct(letter, replay, told)
            else:
                message = self._message(letter, letter.topic, replay)
                self._hub.groups.publish(message, letter.consumer, told)
        except TransferError as error:
            kept.set_exception(error)
        except Exception as error:  # noqa: BLE001 - the operator is told
            kept.set_exception(InternalError(f"the letter could not be published: {error!r}"))

    def _is_direct(self, letter: DeadLetter) -> bool:
        """Whether it is for a consumer of direct delivery; of those by hand, each that no group has."""
        if letter.delivery_id.startswith("direct/") or letter.tenant:
            return True
        groups = {(one.named.topic, one.named.name) for one in self._hub.groups.served}
        return self._hub.direct is not None and (letter.topic, letter.consumer) not in groups

    def _publish_direct(self, letter: DeadLetter, replay: str, told: Told) -> None:
        """For this consumer, whoever has a route; it waits until the consumer is there."""
        direct = self._hub.direct
        if direct is None:
            raise UsageError(
                f"{letter.consumer!r} is a consumer of abtp, which is off", hint="replay it when abtp is on"
            )
        facts = Facts(
            letter.tenant,
            letter.topic,
            letter.message_id,
            str(letter.headers.get("producer_id", "")),
            letter.payload_bytes,
            pinned=True,
        )
        verdict = direct.desk.admit(facts, letter.consumer)
        if not isinstance(verdict, Admitted):
            raise LogFull(f"too much waits for {letter.consumer!r}", hint="replay it later")
        name = f"{letter.tenant}/{letter.topic}" if letter.tenant else letter.topic
        message = self._message(letter, name, replay)
        direct.accept(verdict, message, told, self._hub.groups.keep_apart)

    def _message(self, letter: DeadLetter, topic: str, replay: str) -> Message:
        """The message as it was, if it is in the log still; else as much as the letter has of it."""
        headers = {**letter.headers, "message_id": letter.message_id, REPLAY_HEADER: replay}
        kept = self._kept(letter)
        if kept is not None:
            return Message(topic, kept.parts, kept.front, kept.head, headers)
        if not isinstance(letter.payload, bytes):
            raise UsageError(
                f"the message of {letter.delivery_id} is not in the log any more",
                hint="retention removed it: purge the letter",
            )
        return Message(topic, (letter.payload,), Front.BROKER, headers=headers)

    def _kept(self, letter: DeadLetter) -> Message | None:
        """The message in the log."""
        if isinstance(letter.payload, Reference):
            return self._hub.store.message(letter.payload.topic, letter.payload.offset)
        begin, _, digits = letter.delivery_id.rpartition("/")
        if begin != f"{letter.topic}/{letter.consumer}" or not digits.isdecimal():
            return None
        return self._hub.store.message(LOG_PREFIX + letter.topic, int(digits))
