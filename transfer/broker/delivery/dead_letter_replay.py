"""Replays dead letters: publishes them again, only for the consumer that could not process them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from transfer.broker.core.dispatcher_actions import Admitted
from transfer.broker.core.dispatcher_events import MessageInfo
from transfer.broker.core.message import Front, Message, Written
from transfer.broker.delivery.loop_calls import run_on_loop, wait_for
from transfer.broker.storage.dead_letter import DeadLetter, PayloadFile, Reference
from transfer.broker.storage.topic import LOG_PREFIX
from transfer.transports.errors import Again, InternalError, LogDamaged, LogFull, UsageError

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.storage.dead_letter_payloads import LetterPayloads
    from transfer.broker.storage.durability import OnComplete
    from transfer.log.blob_writer import BlobWriter

#: the header that names a replay, so that consumers recognize one
REPLAY_HEADER = "replay_id"


class DeadLetterReplay:
    """Publishes a dead letter again. Called in an operator's thread; see `Operator`. payloads: large payloads
    of dead letters; the operator's thread copies them into the log. Raises UsageError when the group does
    not exist or the message is gone; LogFull; Again when it is in doubt whether the message was kept."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: Hub, payloads: LetterPayloads) -> None:
        self._loop = loop
        self._hub = hub
        self._payloads = payloads

    def __call__(self, letter: DeadLetter, replay: str) -> None:
        blob: BlobWriter | None = None
        if isinstance(letter.payload, PayloadFile):
            place = self._place_of(letter)
            if place is not None:
                blob = self._copied(letter.payload, letter.payload_bytes, place)
        try:
            wait_for(self._loop, lambda done: self._publish(letter, replay, blob, done))
        finally:
            if blob is not None:
                blob.abandon()  # unless it was published

    def _place_of(self, letter: DeadLetter) -> str | None:
        try:
            return run_on_loop(self._loop, lambda: self._place(letter))
        except Again as error:  # nothing is in doubt
            raise LogFull(str(error)) from error

    def _place(self, letter: DeadLetter) -> str | None:
        """Returns the log's topic for a large payload; None: no consumer would get it, and `_publish` raises.
        On the loop."""
        if not self._is_direct(letter):
            named = (one for one in self._hub.groups.served if one.named.name == letter.consumer)
            return next((one.topic.log_name for one in named if one.named.topic == letter.topic), None)
        if self._hub.direct is None:
            return None
        topic = self._hub.store.topic(_name_of(letter))
        return (topic if topic.durable else self._hub.store.direct_topic(topic)).log_name

    def _copied(self, filed: PayloadFile, nbytes: int, log_name: str) -> BlobWriter:
        """Copies a large payload into the log; its record is still missing. Raises UsageError, LogFull, and
        other errors of the log; nothing is in doubt then."""
        try:
            self._hub.store.check_room(nbytes)
            blob = self._hub.store.log.blob(log_name, nbytes)
            try:
                for piece in self._payloads.pieces(filed, nbytes):
                    blob.write(piece)
                blob.sync()  # so that the log's next sync, for which all publishers wait, is short
            except BaseException:
                blob.abandon()
                raise
        except InternalError as error:
            raise UsageError(f"the letter's payload cannot be copied: {error}") from error
        return blob

    # -- on the loop -------------------------------------------------------------------------------------

    def _publish(
        self, letter: DeadLetter, replay: str, blob: BlobWriter | None, on_complete: OnComplete
    ) -> None:
        if self._is_direct(letter):
            self._publish_direct(letter, replay, blob, on_complete)
        else:
            message = self._message(letter, letter.topic, replay, blob)
            self._hub.groups.publish(message, letter.consumer, on_complete)

    def _is_direct(self, letter: DeadLetter) -> bool:
        """Returns whether the letter is for a consumer of direct delivery. A letter that was added by hand
        is, unless a group has its name."""
        if letter.delivery_id.startswith("direct/") or letter.tenant:
            return True
        groups = {(one.named.topic, one.named.name) for one in self._hub.groups.served}
        return self._hub.direct is not None and (letter.topic, letter.consumer) not in groups

    def _publish_direct(
        self, letter: DeadLetter, replay: str, blob: BlobWriter | None, on_complete: OnComplete
    ) -> None:
        """Publishes the letter for its consumer alone, whatever routes exist. It waits until the consumer
        connects."""
        direct = self._hub.direct
        if direct is None:
            raise UsageError(
                f"{letter.consumer!r} is a consumer of abtp, which is off", hint="replay it when abtp is on"
            )
        facts = MessageInfo(
            letter.tenant,
            letter.topic,
            letter.message_id,
            str(letter.headers.get("producer_id", "")),
            letter.payload_bytes,
            pinned=True,
        )
        verdict = direct.dispatcher.admit(facts, letter.consumer)
        if not isinstance(verdict, Admitted):
            raise LogFull(f"too many messages wait for {letter.consumer!r}", hint="replay it later")
        message = self._message(letter, _name_of(letter), replay, blob)
        direct.accept(verdict, message, on_complete, self._hub.groups.keep_apart)

    def _message(self, letter: DeadLetter, topic: str, replay: str, blob: BlobWriter | None) -> Message:
        """Makes the original message again. A letter of an early version has no head and no large payload:
        those are in the log until retention removes them."""
        headers = {**letter.headers, "message_id": letter.message_id, REPLAY_HEADER: replay}
        front, head, payload = letter.front, letter.head, letter.payload
        if isinstance(payload, PayloadFile):
            view = self._viewed(payload, letter.payload_bytes)
            known = (Front.BROKER if front is None else front), _marked(front, head, replay), headers
            return Message(topic, (view,), *known) if blob is None else Written(topic, (view,), *known, blob)
        kept = self._kept(letter) if front is None else None
        if kept is not None:
            return Message(topic, kept.parts, kept.front, _marked(kept.front, kept.head, replay), headers)
        by_hand = letter.delivery_id.startswith("manual/")
        if isinstance(payload, bytes) and (
            len(payload) < letter.payload_bytes or (front is None and not payload and not by_hand)
        ):
            raise UsageError(f"the payload of {letter.delivery_id} is lost", hint="purge the letter")
        if not isinstance(payload, bytes):
            raise UsageError(
                f"the message of {letter.delivery_id} is not in the log any more",
                hint="retention removed it: purge the letter",
            )
        front = Front.BROKER if front is None else front
        return Message(topic, (payload,), front, _marked(front, head, replay), headers)

    def _viewed(self, filed: PayloadFile, nbytes: int) -> memoryview:
        try:
            return self._payloads.view(filed, nbytes)
        except LogDamaged as error:
            raise UsageError(str(error), hint="it cannot be replayed: purge the letter") from error

    def _kept(self, letter: DeadLetter) -> Message | None:
        """Returns the message from the log."""
        begin, _, digits = letter.delivery_id.rpartition("/")
        place = letter.payload
        if not isinstance(place, Reference):
            if begin != f"{letter.topic}/{letter.consumer}" or not digits.isdecimal():
                return None
            place = Reference(LOG_PREFIX + letter.topic, int(digits))
        try:
            return self._hub.store.message(place.topic, place.offset)
        except LogDamaged:
            return None


def _name_of(letter: DeadLetter) -> str:
    """Returns the topic of a message for direct delivery, as the log names it."""
    return f"{letter.tenant}/{letter.topic}" if letter.tenant else letter.topic


def _marked(front: Front | None, head: bytes, replay: str) -> bytes:
    """Adds the replay's header to abtp's head: consumers of abtp read headers only there."""
    if front is not Front.ABTP or not head:
        return head
    try:
        from transfer.broker.protocols.abtp_envelope import with_header
    except ModuleNotFoundError:  # msgspec is missing: no client speaks abtp
        return head
    return with_header(head, REPLAY_HEADER, replay)
