"""`transfer groups …`: its commands and their options. `transfer/cli/topic_view.py` implements them."""

from __future__ import annotations

from typing import Annotated

import typer

from transfer.cli import options
from transfer.cli.broker_options import Reached
from transfer.cli.options import grouped
from transfer.cli.topics import Changed

app = typer.Typer(
    help="Manage the consumer groups of a broker: it keeps messages until all groups have acknowledged them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Topic = Annotated[str, typer.Option("--topic", help="The group's topic.")]
Group = Annotated[str, typer.Option("--group", help="The group.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Even if it has consumers: the broker notifies them, and they have to join again."
    ),
]


@app.command("list")
@grouped
def list_(
    reached: Reached,
    *,
    topic: Annotated[str | None, typer.Option("--topic", help="Only groups of this topic.")] = None,
    json: options.Json = False,
) -> None:
    """List the groups: how far each is behind, and for how long it has had no consumer."""
    from transfer.cli.topic_view import list_groups

    list_groups(reached.admin(), topic, as_json=json)


@app.command()
@grouped
def remove(
    reached: Reached,
    *,
    topic: Topic,
    group: Group,
    force: Force = False,
    changed: Changed,
) -> None:
    """Remove a group: the broker keeps no messages for it any more."""
    from transfer.cli.topic_view import change

    question = f"Remove group {group} of topic {topic}?"
    members = {"topic": topic, "group": group, "force": force}
    raise typer.Exit(change(reached.admin(), "groups/remove", "REMOVE", question, members, changed))


@app.command()
@grouped
def seek(
    reached: Reached,
    *,
    topic: Topic,
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="PLACE", help="begin, end, an offset, or a time such as 2026-03-21T00:00:00Z."
        ),
    ],
    force: Force = False,
    changed: Changed,
) -> None:
    """Move a group to an older message, from which it gets all messages again, or to a newer one."""
    from transfer.cli.topic_view import change

    question = f"Move group {group} of topic {topic} to {to}?"
    members = {"topic": topic, "group": group, "to": to, "force": force}
    raise typer.Exit(change(reached.admin(), "groups/seek", "SEEK", question, members, changed))
