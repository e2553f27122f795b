"""What operators may ask for, and what they are told: the rules, without any store. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transfer.broker.storage.audit_chain import Action, Json
from transfer.broker.storage.dead_letter import DeadLetter, State
from transfer.transports.errors import UsageError

#: the words that have to be given
REPLAY, PURGE = "REPLAY", "PURGE"
#: ids that one call may name
MAX_IDS = 1000
#: letters or events that one call tells
MAX_PAGE = 1000
#: bytes of a name and of a reason
MAX_NAME = 255
MAX_REASON = 1024

#: a failure's code and message; None: it is fit
Unfit = tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why nothing was done to one of the ids. code: not_found, wrong_target, ambiguous, repeated, damaged,
    in_doubt, busy, publish."""

    id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call. done: the delivery ids that were replayed or purged.

    audited: the audit has it. If it could not be written, the note of it waits in the store, and nothing
    else is changed before it is audited.
    """

    requested: int
    done: tuple[str, ...]
    failures: tuple[Failure, ...]
    audited: bool = True


def check_text(name: str, text: str, most: int, *, empty: bool = False) -> None:
    """Raises UsageError for what is empty, too long, or has characters that no name has."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = -1
    if size < 0 or size > most or (not size and not empty) or not text.isprintable():
        raise UsageError(f"{name} is {text[:80]!r}", hint=f"1 to {most} bytes of printable text")


def check_call(ids: Sequence[str], actor: str, reason: str, confirm: str, word: str) -> Sequence[str]:
    """The ids, each once. Raises UsageError."""
    if confirm != word:
        raise UsageError(f"nothing was done: it has to be confirmed with the word {word}")
    check_who(actor, reason)
    if not 0 < len(ids) <= MAX_IDS:
        raise UsageError(f"{len(ids)} ids", hint=f"1 to {MAX_IDS}")
    return [*dict.fromkeys(ids)]


def check_who(actor: str, reason: str) -> None:
    """Who it is and why have to be said. Raises UsageError."""
    check_text("actor", actor, MAX_NAME)
    check_text("reason", reason, MAX_REASON)


def within(limit: int) -> int:
    """The limit of a page. Raises UsageError."""
    if not 0 < limit <= MAX_PAGE:
        raise UsageError(f"limit is {limit}", hint=f"1 to {MAX_PAGE}")
    return limit


def choose(
    found: Mapping[str, Sequence[DeadLetter]], unfit: Callable[[DeadLetter], Unfit]
) -> tuple[Sequence[DeadLetter], list[Failure]]:
    """The one letter that each id means, and why there is none. found: the letters of each id."""
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
    """Why it cannot be replayed there. again: although it may have been published before."""
    if (letter.consumer, letter.topic) != (consumer, topic):
        return "wrong_target", "its consumer and topic are not the ones that were given"
    if letter.damaged:
        return "damaged", "it is not what was written"
    if letter.state is State.IN_DOUBT and not again:
        return "in_doubt", "it may have been published before a crash: look, then replay it again"
    return unfit_to_purge(letter)


def unfit_to_purge(letter: DeadLetter) -> Unfit:
    """Why it cannot be removed; what is damaged can."""
    return ("busy", "it is being replayed") if letter.state is State.REPLAYING else None


def action_of(
    actor: str, operation: str, reason: str, letters: Sequence[DeadLetter], after: Mapping[str, str]
) -> Action:
    """What the audit is told. after: what each delivery id is now."""
    ids = tuple(dict.fromkeys(letter.message_id for letter in letters))
    prior: list[Json] = [told(letter) for letter in letters]
    return Action(
        actor,
        operation,
        ids,
        reason,
        prior,
        [{"delivery_id": letter.delivery_id, "state": after[letter.delivery_id]} for letter in letters],
    )


def told(letter: DeadLetter) -> dict[str, Json]:
    """What the audit keeps of a letter."""
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
