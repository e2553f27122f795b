"""The requests and answers of a spool. Pure.

Requests and answers are bundles of tensors. A request's metadata is `{"ask": …, "id": n, …}`, with the
fields of one of the classes below; its answer's is `{"id": n, …}`, or `{"id": n, "error": [class, text,
hint]}`. Rows arrive in another way, as in `run_messages.py`: through the PUSH socket of each task.
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
#: ranges of one fetch, and the rows of all of them together
MAX_TIMES, MAX_ROWS = 1 << 16, 1 << 24
#: most bytes of rows in one answer, unless it is a single row; each row counts as a few bytes at least
MAX_ANSWER, MIN_ROW_BYTES = 1 << 30, 8
#: bytes of a request: its text only, and those that a bundle adds at most
MAX_REQUEST = MAX_INDEX + MAX_METADATA
#: rows that one `explain` returns
MAX_EXPLAINED = 1 << 18

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
#: identifies a run among those that had its name; see `RunInfo`
RunId = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
#: arrays of an answer; one array of a column includes its others. None: all
Columns = (
    Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MAX_ARRAY_NAME)]],
        msgspec.Meta(min_length=1, max_length=MAX_TENSORS),
    ]
    | None
)
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Delivery = Literal["committed", "partition"]
#: "batch": one job, whose commit seals the run. "stream": each commit adds rows, and it is never sealed
Kind = Literal["batch", "stream"]
#: the fate of a job that writes to a batch which another job has completed: an error, or it writes nothing
IfComplete = Literal["refuse", "skip"]


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ask"):
    """A request. id: chosen by the client; the answer has the same."""

    id: Number = 0


class Declare(Ask, frozen=True, kw_only=True, tag="declare"):
    """A job wants to send rows of a run: `{"port": of the PULL socket, "done": it is committed already}`.

    if_complete: the job is refused if another one has completed the run, or answered as done.
    task: one of the job's tasks sends this, possibly late: an aborted batch stays aborted.
    """

    run: Name
    job: Name
    delivery: Delivery
    kind: Kind
    task: bool = False
    if_complete: IfComplete = "refuse"


class Ended(Ask, frozen=True, kw_only=True, tag="ended"):
    """Answered when this attempt is on the disk up to its announced `end`: `{}`."""

    run: Name
    job: Name
    partition: Number
    attempt: Number


class CommitJob(Ask, frozen=True, kw_only=True, tag="commit"):
    """The job is complete; the message has its winners. Answered when that is on the disk: `{"rows": n}`."""

    run: Name
    job: Name
    if_complete: IfComplete = "refuse"


class AbortJob(Ask, frozen=True, kw_only=True, tag="abort"):
    """The job has failed: `{}`. cause: a `refusal`, with which its other tasks are refused from then on."""

    run: Name
    job: Name
    cause: Annotated[list[Text], msgspec.Meta(max_length=4)] | None = None


class OpenRun(Ask, frozen=True, kw_only=True, tag="open"):
    """A reader wants a shard of a run: the fields of `RunInfo`. token: the same after a reconnect.

    run_id: of the run that it has opened before; "": it has not yet, and accepts the current one of this
    name.
    delivered: after a reconnect, (epoch, row) before which it has all rows of its shard. columns: those that
    it will request; None: all. shuffled: in another order. Refused as `busy` while another reader has this
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
    """Requests the rows [begin + i * stride, begin + i * stride + rows), i < times, of an epoch's order.

    seed: of the shuffle; None: in visible order. need: the answer is sent when so many rows are visible, or
    the run is over. Ranges beyond the end of a run that is over are cut off. The answer's metadata has
    `count`, `visible` and `state`, its tensors are the rows.

    next: (epoch, row) at which the shard's next step begins; None: this is no step, only an inspection of
    rows.
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
    """Requests the rows [begin, end) in visible order: no lease, and no group's position moves.

    Answered at once, cut off at the visible end. The answer's metadata has `count`, `visible` and `state` as
    a fetch's; `first`, the first stored row; and `run_id`. With begin = end it has only these. A run_id in
    the request refuses the rows of another run of that name.
    """

    run: Name
    begin: Number
    end: Number
    run_id: RunId = ""
    columns: Columns = None


class Acknowledge(Ask, frozen=True, kw_only=True, tag="acknowledge"):
    """The group acknowledges all rows before (epoch, row): `{}` when that is on the disk. steps: lineage
    records.

    The sender reads `count` shards from `shard` on, of `shards`. For the other shards it acknowledges only
    the rows that they were sent before this position.
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
    """The reader disconnects: `{}`. used: (epoch, row) before which it has used all rows of its shard; None:
    unknown."""

    used: tuple[Number, Number] | None = None


class ListRuns(Ask, frozen=True, kw_only=True, tag="list"):
    """Requests `{"runs": [a summary of each]}`."""


class InspectRun(Ask, frozen=True, kw_only=True, tag="inspect"):
    """Requests a run's summary with its groups, partitions and jobs."""

    run: Name


class DeleteRun(Ask, frozen=True, kw_only=True, tag="delete"):
    """Deletes the run with its groups: `{"rows": n, "bytes": n}`. force: even while clients read or write it.
    run_id: only the run of that name with this id."""

    run: Name
    force: bool = False
    run_id: RunId = ""


class ForgetGroup(Ask, frozen=True, kw_only=True, tag="forget_group"):
    """Deletes the group's positions; a stream keeps no rows for it: `{"bytes": the freed bytes}`.

    force: even while clients read for it.
    """

    run: Name
    group: Name
    force: bool = False


class Explain(Ask, frozen=True, kw_only=True, tag="explain"):
    """Requests the origin of rows [begin, end) of an order: see `Answers.explain`; `{"jobs": names}`."""

    run: Name
    run_id: RunId = ""
    epoch: Number
    seed: int | None
    begin: Number
    end: Number


class LineageRequest(Ask, frozen=True, kw_only=True, tag="lineage"):
    """Requests the steps that a group's trainers recorded: `{"run_id": id, "steps": [records]}`."""

    run: Name
    group: Name


Request = (
    Declare | Ended | CommitJob | AbortJob | OpenRun | Fetch | Read | Acknowledge | Release
    | ListRuns | InspectRun | DeleteRun | ForgetGroup | Explain | LineageRequest
)  # fmt: skip


def to_meta(request: Ask) -> dict[str, Any]:
    """Returns the metadata of a request's message. Raises UsageError: no spool accepts it."""
    try:
        meta: dict[str, Any] = msgspec.to_builtins(request)
        msgspec.convert(meta, type(request))
    except (msgspec.ValidationError, TypeError) as error:
        raise UsageError(f"this is no valid request to a spool: {error}") from error
    return meta


def from_meta(meta: Any) -> Request:
    """Parses a peer's metadata. Raises ProtocolError("spool")."""
    try:
        return msgspec.convert(meta, Request)  # type: ignore[arg-type, no-any-return, unused-ignore]
    except msgspec.ValidationError as error:
        raise ProtocolError("spool", f"an invalid request: {error}") from error


class AnswerTooLarge(UsageError):
    """Rows that one answer cannot hold; `most` is how many may be requested at a time, at least one."""

    def __init__(self, message: str, *, hint: str = "", most: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.most = most


def refusal(error: TransferError) -> list[str]:
    """Returns an error in its wire form."""
    text, _, _ = str(error).partition("\n  hint: ")
    if isinstance(error, ProtocolError):
        text = text.removeprefix(f"{error.reason}: ")
        return [type(error).__name__, text, error.hint, error.reason]
    if isinstance(error, AnswerTooLarge):
        return [type(error).__name__, text, error.hint, str(error.most)]
    return [type(error).__name__, text, error.hint]


def raised(error: Any) -> TransferError:
    """Returns the error that a peer's `refusal` describes."""
    if not (isinstance(error, list) and len(error) in (3, 4) and all(isinstance(one, str) for one in error)):
        return ProtocolError("spool", "neither an answer nor a refusal")
    if error[0] == "ProtocolError" and len(error) == 4:
        return ProtocolError(error[3], error[1], hint=error[2])
    if error[0] == "AnswerTooLarge" and len(error) == 4 and error[3].isdecimal():
        return AnswerTooLarge(error[1], hint=error[2], most=int(error[3][:19]))
    kind = getattr(errors, error[0], None)
    if not (isinstance(kind, type) and issubclass(kind, TransferError)) or kind is ProtocolError:
        kind = errors.PeerError
    try:
        return kind(error[1], hint=error[2])
    except TypeError:  # its constructor needs more than a text
        return errors.PeerError(error[1], hint=error[2])
