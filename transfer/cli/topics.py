"""`transfer topics …`: its commands and their options. `transfer/cli/topic_view.py` implements them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from transfer.cli import options
from transfer.cli.broker_options import Reached
from transfer.cli.options import grouped

app = typer.Typer(
    help="Manage the topics of a broker.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Topic = Annotated[str, typer.Option("--topic", help="The topic.")]


@dataclass(frozen=True)
class Changed:
    """Options of each change."""

    actor: Annotated[
        str, typer.Option("--actor", metavar="WHO", help="Operator's name, for the audit. [the login name]")
    ] = ""
    reason: Annotated[str, typer.Option("--reason", metavar="WHY", help="Reason, for the audit.")] = "by hand"
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False
    json: options.Json = False


@app.command("list")
@grouped
def list_(
    reached: Reached,
    *,
    contains: Annotated[
        str | None, typer.Option("--contains", metavar="TEXT", help="Only topics whose name contains this.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="TOPIC", help="Only topics after this one.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, help="Number of topics at most.")
    ] = 500,
    json: options.Json = False,
) -> None:
    """List the topics, and the kept messages of each."""
    from transfer.cli.topic_view import list_topics

    list_topics(reached.admin(), contains, after, limit, as_json=json)


@app.command()
@grouped
def purge(reached: Reached, *, topic: Topic, changed: Changed) -> None:
    """Delete all messages of a topic. Its groups stay, and its offsets continue."""
    from transfer.cli.topic_view import change

    question = f"Delete all messages of topic {topic}?"
    raise typer.Exit(change(reached.admin(), "topics/purge", "PURGE", question, {"topic": topic}, changed))


@app.command()
@grouped
def remove(
    reached: Reached,
    *,
    topic: Topic,
    force: Annotated[bool, typer.Option("--force", help="Even if it has consumers or subscribers.")] = False,
    changed: Changed,
) -> None:
    """Remove a topic with its messages and groups. The next message creates it again."""
    from transfer.cli.topic_view import change

    question = f"Remove topic {topic} with its messages and groups?"
    members = {"topic": topic, "force": force}
    raise typer.Exit(change(reached.admin(), "topics/remove", "REMOVE", question, members, changed))
