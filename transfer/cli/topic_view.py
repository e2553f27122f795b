"""`transfer topics` and `transfer groups`: shows and changes topics and groups."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Any

from transfer.cli.confirmation import confirmed
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.tables import print_json, printable, show_table
from transfer.units import show_age, show_size

if TYPE_CHECKING:
    from transfer.cli.admin import Admin
    from transfer.cli.topics import Changed


def list_groups(admin: Admin, topic: str | None, *, as_json: bool) -> None:
    """Lists all groups, or those of one topic."""
    groups = admin.view("groups").objects("groups")
    groups = [one for one in groups if topic in (None, one["topic"])]
    if as_json:
        for one in groups:
            print_json(one)
        return
    head = ("topic", "group", "behind", "held", "coming again", "consumers", "idle")
    lines = [
        [
            printable(one["topic"]),
            printable(one["group"]),
            f"{one['lag']:,}",
            f"{one['held']:,}",
            f"{one['waiting']:,}",
            str(one["consumers"]),
            show_age(one["idle"]) if one["idle"] else "-",
        ]
        for one in groups
    ]
    show_table(head, lines, right=set(head[2:]))
    if not groups:
        print("no groups")


def list_topics(admin: Admin, contains: str | None, after: str | None, limit: int, *, as_json: bool) -> None:
    """Lists a page of topics."""
    answer = admin.view("topics", contains=contains, after=after, limit=limit)
    topics = answer.objects("topics")
    if as_json:
        for one in topics:
            print_json(one)
    else:
        head = ("topic", "kept", "oldest", "end", "published", "bytes", "subscribers")
        lines = [
            [
                printable(one["topic"]),
                "yes" if one["durable"] else "no",
                f"{one['oldest']:,}",
                f"{one['end']:,}",
                f"{one['messages']:,}",
                show_size(one["bytes"]),
                str(one["subscribers"]),
            ]
            for one in topics
        ]
        show_table(head, lines, right=set(head[2:]))
        if not topics:
            print("no topics")
    if answer["next"] is not None:
        print(f"there are more: --after {printable(answer['next'])}", file=sys.stderr)


def change(
    admin: Admin, path: str, word: str, question: str, members: dict[str, Any], changed: Changed
) -> int:
    """Asks for confirmation, unless `changed.yes`, and changes. Returns 1 if the user declines."""
    if not changed.yes and not confirmed(printable(question)):
        print("transfer: nothing was changed", file=sys.stderr)
        return EXIT_ERROR
    operator = {"actor": changed.actor or _user(), "reason": changed.reason, "confirm": word}
    answer = admin.post(path, members | operator)
    if changed.json:
        print_json(answer)
    else:
        print(f"done; the log takes {show_size(answer['log_bytes'])}")
    return 0


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user need not have a name
        return "unknown"
