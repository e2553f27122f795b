"""One side of an exchange, for any version of the library: it uses what all versions have.

As a program it reads tasks, one a line, as JSON. It answers with the endpoint, if it binds, and the result.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import transfer

LARGE = bytes(range(256)) * 2000
MESSAGES = [[b"small"], [b"of", b"three", b"parts"], [LARGE], [b"last"]]
#: ms that anything may take
PATIENCE = 30_000
#: socket type that says something first -> of its peer
PAIRS = {"PUSH": "PULL", "PUB": "SUB", "REQ": "REP", "PAIR": "PAIR", "DEALER": "ROUTER"}


def take_part(task: dict[str, Any], tell: Callable[[str], None]) -> str:
    """Does one side's part. task: kind, bind, endpoint, protocol, token; speaks: this side begins.

    The result: "good" or, with a token, why the other side is not let in.
    """
    security = transfer.Security(token=task["token"])
    with transfer.Context(protocol=task["protocol"], security=security) as context:
        socket = context.socket(getattr(transfer, task["kind"]))
        socket.sndtimeo = socket.rcvtimeo = socket.linger = PATIENCE
        if task["kind"] == "DEALER":
            socket.routing_id = b"dealer"
        if task["kind"] == "SUB":
            socket.subscribe(b"")
        monitor = socket.get_monitor()
        if task["bind"]:
            socket.bind(task["endpoint"])
            tell(socket.last_endpoint)
        else:
            socket.connect(task["endpoint"])
        with socket:
            if task["token"]:
                return _why_not(monitor)
            (_speak if task["speaks"] else _answer)(socket, task["kind"])
        return "good"


def _why_not(monitor: Any) -> str:
    """What keeps the two from each other."""
    while (event := monitor.recv(PATIENCE / 1000)).error is None:
        if event.kind == "connected":
            return "connected"
    return str(event.error)


def _speak(socket: Any, kind: str) -> None:
    socket.wait_for_peers(1, PATIENCE / 1000)
    for message in MESSAGES:
        socket.send_multipart(message)
        if kind in ("REQ", "PAIR", "DEALER"):
            answer = [bytes(part) for part in socket.recv_multipart()]
            assert answer == [b"to", *message], answer


def _answer(socket: Any, kind: str) -> None:
    for message in MESSAGES:
        parts = [bytes(part) for part in socket.recv_multipart()]
        envelope = [parts.pop(0)] if kind == "ROUTER" else []
        assert envelope in ([], [b"dealer"]) and parts == message, (envelope, parts)
        if kind in ("REP", "PAIR", "ROUTER"):
            socket.send_multipart([*envelope, b"to", *message])


def main() -> None:
    """Tasks from standard input, until it ends."""
    for line in sys.stdin:
        try:
            said = take_part(json.loads(line), lambda text: print(text, flush=True))
        except Exception as error:  # noqa: BLE001 - the test shows it
            said = f"{type(error).__name__}: {error}"
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    print(json.dumps([os.path.dirname(os.path.dirname(transfer.__file__)), sorted(PAIRS)]), flush=True)
    main()
