"""`transfer dlq`: shows a broker's dead letters, and replays, purges and makes them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from transfer.cli import audit, options
from transfer.cli.command_help import App
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.options import Reached, grouped
from transfer.cli.tables import print_json, printable, show_list
from transfer.transports.errors import UsageError
from transfer.units import show_size

app = App("Manage the dead letters of a broker.", no_args_is_help=True)

_DETAILS = (
    "message_id", "delivery_id", "tenant", "consumer", "topic", "original_topic", "state", "reason",
    "attempts", "last_error", "first", "last",
)  # fmt: skip

Ids = Annotated[
    list[str] | None,
    typer.Option("--ids", metavar="MESSAGE[,MESSAGE]...", help="Messages, or deliveries; may be repeated."),
]
Id = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="MESSAGE",
        help="One message or delivery, whose id may contain a comma; may be repeated.",
    ),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="TENANT", help="Only letters of this tenant.")
]
Actor = Annotated[str, typer.Option("--actor", metavar="WHO", help="Operator's name, for the audit.")]
Reason = Annotated[
    str, typer.Option("--reason", "--mutation-reason", metavar="WHY", help="Reason, for the audit.")
]


@app.command("list")
@grouped
def list_(
    reached: Reached,
    *,
    consumer: Annotated[
        str | None, typer.Option("--consumer", metavar="CONSUMER", help="Only letters of this consumer.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only letters of this topic.")
    ] = None,
    tenant: Tenant = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="MESSAGE", help="Only letters of this message.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Only letters with this reason.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="dead|replaying|in_doubt", help="Only letters in this state."),
    ] = None,
    after: Annotated[
        int | None, typer.Option("--after", min=0, metavar="N", help="Only letters after this position.")
    ] = None,
    limit: audit.Limit = 100,
    json: options.Json = False,
) -> None:
    """List dead letters, the oldest first."""
    wanted = {"consumer": consumer, "topic": topic, "tenant": tenant, "id": id, "reason": reason}
    answer = reached.admin().get("dlq/list", **wanted, state=state, after=after, limit=limit)
    letters = answer.objects("letters")
    head = ["message", "consumer", "topic", "reason", "attempts", "last", "payload", "state"]
    if any(letter["tenant"] for letter in letters):
        head = ["tenant", *head]
    right = {"attempts", "payload"}
    show_list(
        letters,
        head,
        lambda letter: _line(letter, tenants=head[0] == "tenant"),
        as_json=json,
        right=right,
        nothing="no dead letters",
    )
    if answer["next"] is not None:
        print(f"there are more: --after {answer['next']}", file=sys.stderr)


def _line(letter: dict[str, Any], *, tenants: bool) -> list[str]:
    return [
        *([printable(letter["tenant"]) or "-"] if tenants else ()),
        printable(letter["message_id"]),
        printable(letter["consumer"]),
        printable(letter["topic"]),
        printable(letter["reason"])[:60],
        str(letter["attempts"]),
        letter["last"] or "-",
        show_size(letter["payload_bytes"]),
        "damaged" if letter["damaged"] else letter["state"],
    ]


@app.command()
@grouped
def inspect(
    reached: Reached,
    *,
    id: Annotated[str, typer.Option("--id", metavar="MESSAGE", help="A message, or a delivery.")],
    tenant: Tenant = None,
    json: options.Json = False,
) -> None:
    """Show a dead letter with its payload."""
    letters = reached.admin().get("dlq/inspect", id=id, tenant=tenant).objects("letters")
    if json:
        for letter in letters:
            print_json(letter)
        return
    for number, letter in enumerate(letters):
        if number:
            print()
        for name in _DETAILS:
            if letter[name] not in ("", None):
                print(f"{name.replace('_', ' ') + ':':<16}{printable(letter[name])}")
        if letter["damaged"]:
            print(f"{'damaged:':<16}it differs from what was written")
        for name, value in letter["headers"].items():
            print(f"{'header:':<16}{printable(name)}: {printable(dumps(value))}")
        print(f"{'payload:':<16}{show_size(letter['payload_bytes'])}{_where(letter)}")
        if "payload" in letter:
            print("\n".join(printable(line) for line in letter["payload"].splitlines()))


def _where(letter: dict[str, Any]) -> str:
    if "log" in letter:
        return f", in the log: offset {letter['log']['offset']} of {printable(letter['log']['topic'])}"
    if "payload_base64" in letter:
        return ", no text (--json shows it as base64)"
    return ", its beginning:" if letter.get("payload_cut") else ""


@app.command()
@grouped
def replay(
    reached: Reached,
    *,
    ids: Ids = None,
    id: Id = None,
    target_consumer: Annotated[
        str, typer.Option("--target-consumer", metavar="CONSUMER", help="The letters' consumer.")
    ],
    target_topic: Annotated[str, typer.Option("--target-topic", metavar="TOPIC", help="The letters' topic.")],
    actor: Actor,
    reason: Reason,
    confirm: Annotated[str, typer.Option("--confirm", metavar="REPLAY", help="The word REPLAY.")],
    tenant: Tenant = None,
    again: Annotated[
        bool, typer.Option("--again", help="Include letters in doubt, which may have been published before.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Publish dead letters again, to their consumer and topic. Exit code 1: some failed."""
    members = {
        "ids": _ids_of(ids, id),
        "target_consumer": target_consumer,
        "target_topic": target_topic,
        "actor": actor,
        "reason": reason,
        "confirm": confirm,
        "tenant": tenant,
        "again": again,
    }
    _change(reached, "dlq/replay", "replayed", members, as_json=json)


@app.command("dead-letter")
@grouped
def dead_letter(
    reached: Reached,
    *,
    id: Annotated[str, typer.Option("--id", metavar="MESSAGE", help="The message.")],
    consumer: Annotated[str, typer.Option("--consumer", metavar="CONSUMER", help="Its consumer.")],
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Its topic.")],
    payload: Annotated[str | None, typer.Option("--payload", metavar="TEXT", help="Its payload.")] = None,
    payload_file: Annotated[
        Path | None,
        typer.Option("--payload-file", metavar="FILE", help="Its payload; - is standard input."),
    ] = None,
    actor: Actor,
    reason: Reason,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="Its tenant.")] = None,
    json: options.Json = False,
) -> None:
    """Quarantine a message by hand: it becomes a dead letter."""
    if (payload_file is None) == (payload is None):
        raise UsageError("the payload is missing", hint="--payload TEXT or --payload-file FILE, one of them")
    members: dict[str, Any] = {"id": id, "consumer": consumer, "topic": topic, "tenant": tenant}
    members |= {"payload": payload, "actor": actor, "reason": reason}
    if payload_file is not None:
        data = sys.stdin.buffer.read() if str(payload_file) == "-" else payload_file.read_bytes()
        members["payload_base64"] = base64.b64encode(data).decode()
    answer = reached.admin().post("dlq/dead-letter", members)
    if json:
        print_json(answer)
    else:
        print(f"{printable(answer['letter']['message_id'])} is a dead letter now")
    raise typer.Exit(0 if _audited(answer) else EXIT_ERROR)


@app.command()
@grouped
def purge(
    reached: Reached,
    *,
    ids: Ids = None,
    id: Id = None,
    actor: Actor,
    reason: Annotated[
        str, typer.Option("--mutation-reason", "--reason", metavar="WHY", help="Reason, for the audit.")
    ],
    confirm: Annotated[str, typer.Option("--confirm", metavar="PURGE", help="The word PURGE.")],
    tenant: Tenant = None,
    json: options.Json = False,
) -> None:
    """Delete dead letters. Exit code 1: some failed."""
    members = {
        "ids": _ids_of(ids, id),
        "actor": actor,
        "reason": reason,
        "confirm": confirm,
        "tenant": tenant,
    }
    _change(reached, "dlq/purge", "purged", members, as_json=json)


def _ids_of(lists: Sequence[str] | None, single: Sequence[str] | None) -> list[str]:
    """Combines --ids, which are split at commas, and --id, which are not. Raises UsageError."""
    ids = [id.strip() for text in lists or () for id in text.split(",")]
    ids = [id for id in ids if id] + list(single or ())
    if not ids:
        raise UsageError("no message is named", hint="--ids MESSAGE[,MESSAGE]..., or --id MESSAGE")
    return ids


def _change(reached: Reached, path: str, verb: str, members: dict[str, Any], *, as_json: bool) -> None:
    """Replays or purges letters. Exits with 1 if one of them failed, or the audit could not be written."""
    answer = reached.admin().post(path, members)
    if as_json:
        print_json(answer)
    else:
        print(f"{verb} {answer[verb]} of {answer['requested']}")
        for failure in answer["failures"]:
            print(f"transfer: {printable(failure['id'])}: {printable(failure['message'])}", file=sys.stderr)
    raise typer.Exit(EXIT_ERROR if answer["failures"] or not _audited(answer) else 0)


def _audited(answer: dict[str, Any]) -> bool:
    if not answer["audited"]:
        print(
            "transfer: done, but the broker cannot write its audit: it allows no other change until then",
            file=sys.stderr,
        )
    return bool(answer["audited"])


app.command("audit")(audit.events)
