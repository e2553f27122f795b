"""`transfer dlq`: shows a broker's dead letters as text or as JSON, and replays, purges and makes them."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transfer.cli.admin import Admin
from transfer.cli.exits import EXIT_ERROR
from transfer.cli.tables import print_json, printable, show_table
from transfer.transports.errors import UsageError
from transfer.units import show_size

_DETAILS = (
    "message_id", "delivery_id", "tenant", "consumer", "topic", "original_topic", "state", "reason",
    "attempts", "last_error", "first", "last",
)  # fmt: skip


def ids_of(lists: Sequence[str] | None, single: Sequence[str] | None) -> list[str]:
    """Combines --ids, which are split at commas, and --id, which are not. Raises UsageError."""
    ids = [id.strip() for text in lists or () for id in text.split(",")]
    ids = [id for id in ids if id] + list(single or ())
    if not ids:
        raise UsageError("no message is named", hint="--ids MESSAGE[,MESSAGE]..., or --id MESSAGE")
    return ids


def list_letters(admin: Admin, *, as_json: bool, **filters: str | int | None) -> None:
    """Lists a page of letters."""
    answer = admin.get("dlq/list", **filters)
    letters = answer.objects("letters")
    if as_json:
        for letter in letters:
            print_json(letter)
    else:
        tenants = any(letter["tenant"] for letter in letters)
        head = ["message", "consumer", "topic", "reason", "attempts", "last", "payload", "state"]
        lines = [_line(letter) for letter in letters]
        if tenants:
            head = ["tenant", *head]
            lines = [
                [printable(letter["tenant"]) or "-", *line]
                for letter, line in zip(letters, lines, strict=True)
            ]
        show_table(head, lines, right={"attempts", "payload"})
        if not letters:
            print("no dead letters")
    if answer["next"] is not None:
        print(f"there are more: --after {answer['next']}", file=sys.stderr)


def _line(letter: dict[str, Any]) -> list[str]:
    return [
        printable(letter["message_id"]),
        printable(letter["consumer"]),
        printable(letter["topic"]),
        printable(letter["reason"])[:60],
        str(letter["attempts"]),
        letter["last"] or "-",
        show_size(letter["payload_bytes"]),
        "damaged" if letter["damaged"] else letter["state"],
    ]


def inspect_letter(admin: Admin, id: str, tenant: str | None, *, as_json: bool) -> None:
    """Shows a letter, or each letter of a message."""
    letters = admin.get("dlq/inspect", id=id, tenant=tenant).objects("letters")
    if as_json:
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
            print(f"{'header:':<16}{printable(name)}: {printable(json.dumps(value))}")
        print(f"{'payload:':<16}{show_size(letter['payload_bytes'])}{_where(letter)}")
        if "payload" in letter:
            print("\n".join(printable(line) for line in letter["payload"].splitlines()))


def _where(letter: dict[str, Any]) -> str:
    if "log" in letter:
        return f", in the log: offset {letter['log']['offset']} of {printable(letter['log']['topic'])}"
    if "payload_base64" in letter:
        return ", no text (--json shows it as base64)"
    return ", its beginning:" if letter.get("payload_cut") else ""


def change(admin: Admin, path: str, verb: str, members: dict[str, Any], *, as_json: bool) -> int:
    """Replays or purges letters. Returns 1 if one of them failed, or the audit could not be written."""
    answer = admin.post(path, members)
    if as_json:
        print_json(answer)
    else:
        print(f"{verb} {answer[verb]} of {answer['requested']}")
        for failure in answer["failures"]:
            print(f"transfer: {printable(failure['id'])}: {printable(failure['message'])}", file=sys.stderr)
    return EXIT_ERROR if answer["failures"] or not _audited(answer) else 0


def quarantine(admin: Admin, members: dict[str, Any], file: Path | None, *, as_json: bool) -> int:
    """Makes a dead letter by hand. file: its payload; - is standard input."""
    if (file is None) == (members["payload"] is None):
        raise UsageError("the payload is missing", hint="--payload TEXT or --payload-file FILE, one of them")
    if file is not None:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        members = members | {"payload_base64": base64.b64encode(data).decode()}
    answer = admin.post("dlq/dead-letter", members)
    if as_json:
        print_json(answer)
    else:
        print(f"{printable(answer['letter']['message_id'])} is a dead letter now")
    return 0 if _audited(answer) else EXIT_ERROR


def _audited(answer: dict[str, Any]) -> bool:
    if not answer["audited"]:
        print(
            "transfer: done, but the broker cannot write its audit: it allows no other change until then",
            file=sys.stderr,
        )
    return bool(answer["audited"])
