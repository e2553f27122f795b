"""Asks a broker's HTTP, as a program does."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

#: seconds after which something does not happen any more
PATIENCE = 20.0


def ask(port: int, path: str, *, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, str]:
    """(status, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        named["Content-Type"] = "application/json"
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def get_json(port: int, path: str, **headers: str) -> Any:
    """The JSON at a path under /api/, which has to be there."""
    status, text = ask(port, f"/api/{path}", **headers)
    assert status == 200, text
    return json.loads(text)


def metric_value(port: int, sample: str) -> float:
    """A number of /metrics, by its name and labels."""
    _, text = ask(port, "/metrics")
    for line in text.splitlines():
        if line.startswith(f"{sample} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"{sample} is not in\n{text}")


def until(what: Any, wanted: Any) -> None:
    """Calls `what` until it gives what is wanted."""
    deadline = time.monotonic() + PATIENCE
    while (found := what()) != wanted:
        assert time.monotonic() < deadline, f"{found!r} instead of {wanted!r}"
        time.sleep(0.02)
