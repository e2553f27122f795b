"""The rules for operators' requests on dead letters, and their results. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transfer.broker.storage.audit_chain import Action, Json
from transfer.broker.storage.dead_letter import DeadLetter, LetterState
from transfer.transports.errors import UsageError

#: the words that confirm a request
REPLAY, PURGE = "REPLAY", "PURGE"
#: ids that one call may name
MAX_IDS = 1000
#: letters or events that one call returns
MAX_PAGE = 1000
#: bytes of a name and of a reason
MAX_NAME = 255
MAX_REASON = 1024

#: a failure's code and message; None: the letter is fit
Unfit = tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a request did not change the letter of an id.
    code: not_found, wrong_target, ambiguous, repeated, damaged, in_doubt, busy, publish."""

    id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The result of a call. done: the delivery ids that were replayed or purged.

    audited: the audit has the change. If it cannot be written, its note stays in the store, and no other
    change is made before it is audited.
    """

    requested: int
    done: tuple[str, ...]
    failures: tuple[Failure, ...]
    audited: bool = True


def check_text(name: str, text: str, most: int, *, empty: bool = False) -> None:
    """Raises UsageError for a text that is empty, too long, or not printable."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = -1
    if size < 0 or size > most or (not size and not empty) or not text.isprintable():
        raise UsageError(f"{name} is {text[:80]!r}", hint=f"1 to {most} bytes of printable text")


def check_call(ids: Sequence[str], actor: str, reason: str, confirm: str, word: str) -> Sequence[str]:
    """Checks a call and returns its ids, each once. Raises UsageError."""
    if confirm != word:
        raise UsageError(f"nothing was done: confirm it with the word {word}")
    check_actor(actor, reason)
    if not 0 < len(ids) <= MAX_IDS:
        raise UsageError(f"{len(ids)} ids", hint=f"1 to {MAX_IDS}")
    return [*dict.fromkeys(ids)]


def check_actor(actor: str, reason: str) -> None:
    """Checks that a request names its actor and reason. Raises UsageError."""
    check_text("actor", actor, MAX_NAME)
    check_text("reason", reason, MAX_REASON)


def check_limit(limit: int) -> int:
    """Returns a page's limit if it is valid. Raises UsageError."""
    if not 0 < limit <= MAX_PAGE:
        raise UsageError(f"limit is {limit}", hint=f"1 to {MAX_PAGE}")
    return limit


def choose(
    found: Mapping[str, Sequence[DeadLetter]], unfit: Callable[[DeadLetter], Unfit]
) -> tuple[Sequence[DeadLetter], list[Failure]]:
    """Chooses one letter for each id; returns them and the failures. found: the letters of each id."""
    chosen: dict[str, DeadLetter] = {}
    failures = []
    for id, letters in found.items():
        fit = [letter for letter in letters if unfit(letter) is None]
        if not letters:
            failures.append(Failure(id, "not_found", "there is no such dead letter"))
        elif not fit:
            failures.append(Failure(id, *(unfit(letters[0]) or ("", ""))))
        elif len(fit) > 1:
            names = ", ".join(letter.delivery_id for letter in fit[:5])
            failures.append(Failure(id, "ambiguous", f"the message has {len(fit)} letters: {names}"))
        elif fit[0].delivery_id in chosen:
            failures.append(Failure(id, "repeated", "another id names the same letter"))
        else:
            chosen[fit[0].delivery_id] = fit[0]
    return [*chosen.values()], failures


def unfit_to_replay(letter: DeadLetter, consumer: str, topic: str, again: bool) -> Unfit:
    """Returns why a letter cannot be replayed to this target. again: letters in doubt are fit."""
    if (letter.consumer, letter.topic) != (consumer, topic):
        return "wrong_target", "its consumer or topic is not the one of the request"
    if letter.damaged:
        return "damaged", "the letter is damaged"
    if letter.state is LetterState.IN_DOUBT and not again:
        return "in_doubt", "it may have been published before a crash: check, then replay it with `again`"
    return unfit_to_purge(letter)


def unfit_to_purge(letter: DeadLetter) -> Unfit:
    """Returns why a letter cannot be removed. A damaged one can."""
    return ("busy", "it is being replayed") if letter.state is LetterState.REPLAYING else None


def action_of(
    actor: str, operation: str, reason: str, letters: Sequence[DeadLetter], after: Mapping[str, str]
) -> Action:
    """Returns the audit's action for a change. after: the new state of each delivery id."""
    ids = tuple(dict.fromkeys(letter.message_id for letter in letters))
    prior: list[Json] = [letter_summary(letter) for letter in letters]
    return Action(
        actor,
        operation,
        ids,
        reason,
        prior,
        [{"delivery_id": letter.delivery_id, "state": after[letter.delivery_id]} for letter in letters],
    )


def letter_summary(letter: DeadLetter) -> dict[str, Json]:
    """Returns the fields of a letter that the audit keeps."""
    return {
        "delivery_id": letter.delivery_id,
        "state": str(letter.state),
        "tenant": letter.tenant,
        "consumer": letter.consumer,
        "topic": letter.topic,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "payload_bytes": letter.payload_bytes,
    }
