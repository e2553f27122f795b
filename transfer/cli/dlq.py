"""`transfer dlq …`: its commands and their options. `dead_letter_view.py` implements them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transfer.cli import audit, options
from transfer.cli.broker_options import Reached
from transfer.cli.options import grouped

app = typer.Typer(
    help="Manage the dead letters of a broker.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only letters of this tenant.")]
Actor = Annotated[str, typer.Option("--actor", metavar="WHO", help="Operator's name, for the audit.")]
Reason = Annotated[
    str, typer.Option("--reason", "--mutation-reason", metavar="WHY", help="Reason, for the audit.")
]


@app.command("list")
@grouped
def list_(
    reached: Reached,
    *,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Only letters of this consumer.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only letters of this topic.")] = None,
    tenant: Tenant = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="MESSAGE", help="Only letters of this message.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Only letters with this reason.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Only letters in this state: dead, replaying or in_doubt.")
    ] = None,
    after: Annotated[
        int | None, typer.Option("--after", min=0, help="Only letters after this position.")
    ] = None,
    limit: audit.Limit = 100,
    json: options.Json = False,
) -> None:
    """List dead letters, the oldest first."""
    from transfer.cli.dead_letter_view import list_letters

    list_letters(
        reached.admin(),
        as_json=json,
        consumer=consumer,
        topic=topic,
        tenant=tenant,
        id=id,
        reason=reason,
        state=state,
        after=after,
        limit=limit,
    )


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
    from transfer.cli.dead_letter_view import inspect_letter

    inspect_letter(reached.admin(), id, tenant, as_json=json)


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
    from transfer.cli.dead_letter_view import change, ids_of

    members = {
        "ids": ids_of(ids, id),
        "target_consumer": target_consumer,
        "target_topic": target_topic,
        "actor": actor,
        "reason": reason,
        "confirm": confirm,
        "tenant": tenant,
        "again": again,
    }
    raise typer.Exit(change(reached.admin(), "dlq/replay", "replayed", members, as_json=json))


@app.command("dead-letter")
@grouped
def dead_letter(
    reached: Reached,
    *,
    id: Annotated[str, typer.Option("--id", metavar="MESSAGE", help="The message.")],
    consumer: Annotated[str, typer.Option("--consumer", help="Its consumer.")],
    topic: Annotated[str, typer.Option("--topic", help="Its topic.")],
    payload: Annotated[str | None, typer.Option("--payload", metavar="TEXT", help="Its payload.")] = None,
    payload_file: Annotated[
        Path | None,
        typer.Option("--payload-file", metavar="FILE", help="Its payload; - is standard input."),
    ] = None,
    actor: Actor,
    reason: Reason,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Its tenant.")] = None,
    json: options.Json = False,
) -> None:
    """Quarantine a message by hand: it becomes a dead letter."""
    from transfer.cli.dead_letter_view import quarantine

    members = {
        "id": id,
        "consumer": consumer,
        "topic": topic,
        "payload": payload,
        "actor": actor,
        "reason": reason,
        "tenant": tenant,
    }
    raise typer.Exit(quarantine(reached.admin(), members, payload_file, as_json=json))


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
    from transfer.cli.dead_letter_view import change, ids_of

    members = {
        "ids": ids_of(ids, id),
        "actor": actor,
        "reason": reason,
        "confirm": confirm,
        "tenant": tenant,
    }
    raise typer.Exit(change(reached.admin(), "dlq/purge", "purged", members, as_json=json))


app.command("audit")(audit.events)
