"""What a spool is asked, and how it answers. Pure.

Requests and answers are bundles of tensors. A request's metadata is `{"ask": …, "id": n, …}`, with the
fields of one of the classes below; its answer's is `{"id": n, …}`, or `{"id": n, "error": [class, text,
hint]}`. Rows come another way, as `run_messages.py` has it: through the PUSH socket of each task.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from transfer.spool.format.run_messages import MAX_NAME, MAX_NUMBER
from transfer.tensors.bundle import (
    MAX_INDEX,
    MAX_METADATA,
    MAX_NAME as MAX_ARRAY_NAME,
    MAX_TENSORS,
)
from transfer.transports import errors
from transfer.transports.errors import ProtocolError, TransferError, UsageError, comes_with

with comes_with("spool", __name__):
    import msgspec

VERSION = 1
#: ranges that one fetch may ask for, and the rows of all of them together
MAX_TIMES, MAX_ROWS = 1 << 16, 1 << 24
#: bytes that the rows of one answer have at most, unless it is one row; each counts as a few bytes at least
MAX_ANSWER, MIN_ROW_BYTES = 1 << 30, 8
#: bytes of a request: words alone, and those that a bundle takes for them at most
MAX_REQUEST = MAX_INDEX + MAX_METADATA
#: rows that are explained at a time
MAX_EXPLAINED = 1 << 18

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
#: which of the runs that had a name, one after the other; see `RunInfo`
RunId = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
#: arrays that an answer is to have; with one of a column come the others of it. None: all
Columns = (
    Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MAX_ARRAY_NAME)]],
        msgspec.Meta(min_length=1, max_length=MAX_TENSORS),
    ]
    | None
)
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Delivery = Literal["committed", "partition"]
#: "batch": one job, whose commit seals the run. "stream": each commit adds to it, it is never sealed
Kind = Literal["batch", "stream"]
#: what happens to a job that writes to a batch which another job has completed: an error, or nothing
IfComplete = Literal["refuse", "skip"]


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ask"):
    """A request. id: chosen by who asks; the answer has the same."""

    id: Number = 0


class Declare(Ask, frozen=True, kw_only=True, tag="declare"):
    """A job wants to send rows of a run: `{"port": of the PULL socket, "done": it is committed already}`.

    if_complete: whether it is refused where another job has completed the run, or answered as done.
    task: so says one of its tasks, which may be late: a batch that was aborted meanwhile stays so.
    """

    run: Name
    job: Name
    delivery: Delivery
    kind: Kind
    task: bool = False
    if_complete: IfComplete = "refuse"


class Ended(Ask, frozen=True, kw_only=True, tag="ended"):
    """Answered when all of this attempt is on the disk, which its `end` announced: `{}`."""

    run: Name
    job: Name
    partition: Number
    attempt: Number


class CommitJob(Ask, frozen=True, kw_only=True, tag="commit"):
    """The job is complete; its winners travel beside it. Answered when that is on the disk: `{"rows": n}`."""

    run: Name
    job: Name
    if_complete: IfComplete = "refuse"


class AbortJob(Ask, frozen=True, kw_only=True, tag="abort"):
    """The job has failed: `{}`. cause: a `refusal`, with which its other tasks are refused from then on."""

    run: Name
    job: Name
    cause: Annotated[list[Text], msgspec.Meta(max_length=4)] | None = None


class OpenRun(Ask, frozen=True, kw_only=True, tag="open"):
    """A reader wants a shard of a run: the fields of `RunInfo`. token: the same when it comes again.

    run_id: of the run that it has opened before; "": it has not yet, and takes the one of this name.
    delivered: (epoch, row) before which it has all rows of its shard, if it comes again. columns: that it is
    going to ask for; None: all. shuffled: in another order. Refused as `busy` while another reader has this
    shard; `{"missing": true}` while there is no such run.
    """

    run: Name
    group: Name
    shard: Number
    shards: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    token: Name
    run_id: RunId = ""
    delivered: tuple[Number, Number] | None = None
    columns: Columns = None
    shuffled: bool = False


class Fetch(Ask, frozen=True, kw_only=True, tag="fetch"):
    """Asks for the rows [begin + i * stride, begin + i * stride + rows), i < times, of an epoch's order.

    seed: of the shuffle; None: as they became visible. need: it is answered when so many rows are visible, or
    the run is over. Ranges that lie beyond the end of a run that is over are cut off. The answer's metadata
    has `count`, `visible` and `state`, its tensors are the rows.

    next: (epoch, row) at which the shard's next step begins; None: this is no step, but rows to look at.
    least: an epoch has another step for the shard if so many of its rows are left.
    """

    epoch: Number
    seed: int | None
    begin: Number
    rows: Number
    stride: Number
    times: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMES)]
    need: Number
    next: tuple[Number, Number] | None = None
    least: Number = 0
    columns: Columns = None


class Read(Ask, frozen=True, kw_only=True, tag="read"):
    """Asks for the rows [begin, end) as they became visible: no lease, and no group's position moves.

    Answered at once, cut off at what is visible. The answer's metadata has `count`, `visible` and `state` as
    a fetch's; `first`, the first row that is kept; and `run_id`. With begin = end it has these alone. A
    run_id in the request refuses the rows of another run of that name.
    """

    run: Name
    begin: Number
    end: Number
    run_id: RunId = ""
    columns: Columns = None


class Acknowledge(Ask, frozen=True, kw_only=True, tag="acknowledge"):
    """The group has done with all before (epoch, row): `{}` when that is on the disk. steps: lineage
    records.

    Said by whoever reads `count` shards from `shard` on, of `shards`; of the others what they were sent
    before this position is done with, and no more.
    """

    run: Name
    run_id: RunId
    group: Name
    shard: Number
    shards: Number
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)] = 1
    epoch: Number
    row: Number
    steps: list[list[Number]]


class Release(Ask, frozen=True, kw_only=True, tag="release"):
    """The reader goes: `{}`. used: (epoch, row) before which it has used all rows of its shard; None: it does
    not say."""

    used: tuple[Number, Number] | None = None


class ListRuns(Ask, frozen=True, kw_only=True, tag="list"):
    """`{"runs": [a summary of each]}`."""


class InspectRun(Ask, frozen=True, kw_only=True, tag="inspect"):
    """A run's summary with its groups, partitions and jobs."""

    run: Name


class DeleteRun(Ask, frozen=True, kw_only=True, tag="delete"):
    """The run is gone, with its groups: `{"rows": n, "bytes": n}`. force: though somebody reads or writes
    it. run_id: this one of that name, or none."""

    run: Name
    force: bool = False
    run_id: RunId = ""


class ForgetGroup(Ask, frozen=True, kw_only=True, tag="forget_group"):
    """The group's positions are gone, and a stream keeps no rows for it: `{"bytes": that are given back}`.

    force: though somebody reads for it.
    """

    run: Name
    group: Name
    force: bool = False


class Explain(Ask, frozen=True, kw_only=True, tag="explain"):
    """Where the rows [begin, end) of an epoch's order come from: see `Answers.explain`; `{"jobs": names}`."""

    run: Name
    run_id: RunId = ""
    epoch: Number
    seed: int | None
    begin: Number
    end: Number


class Lineage(Ask, frozen=True, kw_only=True, tag="lineage"):
    """What the trainers of a group recorded for their steps: `{"run_id": id, "steps": [records]}`."""

    run: Name
    group: Name


Request = (
    Declare | Ended | CommitJob | AbortJob | OpenRun | Fetch | Read | Acknowledge | Release
    | ListRuns | InspectRun | DeleteRun | ForgetGroup | Explain | Lineage
)  # fmt: skip


def to_meta(request: Ask) -> dict[str, Any]:
    """The metadata of the message that carries it. Raises UsageError: it is none that a spool takes."""
    try:
        meta: dict[str, Any] = msgspec.to_builtins(request)
        msgspec.convert(meta, type(request))
    except (msgspec.ValidationError, TypeError) as error:
        raise UsageError(f"a spool cannot be asked this: {error}") from error
    return meta


def from_meta(meta: Any) -> Request:
    """Reads what a peer sent. Raises ProtocolError("spool")."""
    try:
        return msgspec.convert(meta, Request)  # type: ignore[arg-type, no-any-return, unused-ignore]
    except msgspec.ValidationError as error:
        raise ProtocolError("spool", f"a request that is none: {error}") from error


class AnswerTooLarge(UsageError):
    """Rows that one answer cannot hold; `most` is how many may be asked for at a time. One always may."""

    def __init__(self, message: str, *, hint: str = "", most: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.most = most


def refusal(error: TransferError) -> list[str]:
    """An error, as it travels."""
    text, _, _ = str(error).partition("\n  hint: ")
    if isinstance(error, ProtocolError):
        text = text.removeprefix(f"{error.reason}: ")
        return [type(error).__name__, text, error.hint, error.reason]
    if isinstance(error, AnswerTooLarge):
        return [type(error).__name__, text, error.hint, str(error.most)]
    return [type(error).__name__, text, error.hint]


def raised(told: Any) -> TransferError:
    """The error that a peer's `refusal` tells of, as ours."""
    if not (isinstance(told, list) and len(told) in (3, 4) and all(isinstance(part, str) for part in told)):
        return ProtocolError("spool", "an answer that is neither one nor a refusal")
    if told[0] == "ProtocolError" and len(told) == 4:
        return ProtocolError(told[3], told[1], hint=told[2])
    if told[0] == "AnswerTooLarge" and len(told) == 4 and told[3].isdecimal():
        return AnswerTooLarge(told[1], hint=told[2], most=int(told[3][:19]))
    kind = getattr(errors, told[0], None)
    if not (isinstance(kind, type) and issubclass(kind, TransferError)) or kind is ProtocolError:
        kind = errors.PeerError
    try:
        return kind(told[1], hint=told[2])
    except TypeError:  # one that wants more than a text
        return errors.PeerError(told[1], hint=told[2])
