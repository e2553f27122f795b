"""`transfer topics` and `transfer groups`: shows and changes topics and groups."""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from transfer.cli import options
from transfer.cli.command_help import App
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.options import Reached, grouped
from transfer.cli.tables import confirmed, print_json, printable, show_list
from transfer.units import show_age, show_size

app = App("Manage the topics of a broker.", no_args_is_help=True)
groups_app = App(
    "Manage the consumer groups of a broker: it keeps messages until all groups have acknowledged them.",
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic.")]
GroupTopic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The group's topic.")]
Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="The group.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Even if it has consumers: the broker notifies them, and they have to join again."
    ),
]


@dataclass(frozen=True)
class Changed:
    """Options of each change."""

    actor: Annotated[
        str,
        typer.Option(
            "--actor", metavar="WHO", help="Operator's name, for the audit. [default: the login name]"
        ),
    ] = ""
    reason: Annotated[str, typer.Option("--reason", metavar="WHY", help="Reason, for the audit.")] = "by hand"
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False
    json: options.Json = False


@app.command("list")
@grouped
def list_topics(
    reached: Reached,
    *,
    contains: Annotated[
        str | None, typer.Option("--contains", metavar="TEXT", help="Only topics whose name contains this.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="TOPIC", help="Only topics after this one.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, max=10_000, metavar="N", help="Number of topics at most."),
    ] = 500,
    json: options.Json = False,
) -> None:
    """List the topics, and the kept messages of each."""
    answer = reached.admin().view("topics", contains=contains, after=after, limit=limit)
    head = ("topic", "kept", "oldest", "end", "published", "bytes", "subscribers")
    topics = answer.objects("topics")
    show_list(topics, head, _topic_line, as_json=json, right=set(head[2:]), nothing="no topics")
    if answer["next"] is not None:
        print(f"there are more: --after {printable(answer['next'])}", file=sys.stderr)


def _topic_line(one: dict[str, Any]) -> list[str]:
    return [
        printable(one["topic"]),
        "yes" if one["durable"] else "no",
        f"{one['oldest']:,}",
        f"{one['end']:,}",
        f"{one['messages']:,}",
        show_size(one["bytes"]),
        str(one["subscribers"]),
    ]


@app.command("purge")
@grouped
def purge_topic(reached: Reached, *, topic: Topic, changed: Changed) -> None:
    """Delete all messages of a topic. Its groups stay, and its offsets continue."""
    question = f"Delete all messages of topic {topic}?"
    _change(reached, "topics/purge", "PURGE", question, {"topic": topic}, changed)


@app.command("remove")
@grouped
def remove_topic(
    reached: Reached,
    *,
    topic: Topic,
    force: Annotated[bool, typer.Option("--force", help="Even if it has consumers or subscribers.")] = False,
    changed: Changed,
) -> None:
    """Remove a topic with its messages and groups. The next message creates it again."""
    question = f"Remove topic {topic} with its messages and groups?"
    members = {"topic": topic, "force": force}
    _change(reached, "topics/remove", "REMOVE", question, members, changed)


@groups_app.command("list")
@grouped
def list_groups(
    reached: Reached,
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only groups of this topic.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List the groups: how far each is behind, and for how long it has had no consumer."""
    head = ("topic", "group", "behind", "held", "coming again", "consumers", "idle")
    groups = reached.admin().view("groups").objects("groups")
    groups = [one for one in groups if topic in (None, one["topic"])]
    show_list(groups, head, _group_line, as_json=json, right=set(head[2:]), nothing="no groups")


def _group_line(one: dict[str, Any]) -> list[str]:
    return [
        printable(one["topic"]),
        printable(one["group"]),
        f"{one['lag']:,}",
        f"{one['held']:,}",
        f"{one['waiting']:,}",
        str(one["consumers"]),
        show_age(one["idle"]) if one["idle"] else "-",
    ]


@groups_app.command("remove")
@grouped
def remove_group(
    reached: Reached,
    *,
    topic: GroupTopic,
    group: Group,
    force: Force = False,
    changed: Changed,
) -> None:
    """Remove a group: the broker keeps no messages for it any more."""
    question = f"Remove group {group} of topic {topic}?"
    members = {"topic": topic, "group": group, "force": force}
    _change(reached, "groups/remove", "REMOVE", question, members, changed)


@groups_app.command("seek")
@grouped
def seek_group(
    reached: Reached,
    *,
    topic: GroupTopic,
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
    question = f"Move group {group} of topic {topic} to {to}?"
    members = {"topic": topic, "group": group, "to": to, "force": force}
    _change(reached, "groups/seek", "SEEK", question, members, changed)


def _change(
    reached: Reached, path: str, word: str, question: str, members: dict[str, Any], changed: Changed
) -> None:
    """Asks for confirmation, unless `changed.yes`, and changes. Exits with 1 if the user declines."""
    admin = reached.admin()
    if not changed.yes and not confirmed(printable(question)):
        print("transfer: nothing was changed", file=sys.stderr)
        raise typer.Exit(EXIT_ERROR)
    operator = {"actor": changed.actor or _user(), "reason": changed.reason, "confirm": word}
    answer = admin.post(path, members | operator)
    if changed.json:
        print_json(answer)
    else:
        print(f"done; the log takes {show_size(answer['log_bytes'])}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user need not have a name
        return "unknown"
