"""A headless Chromium, spoken to over its debugging pipe: no port, and no library of its own."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
#: seconds after which the browser hangs
PATIENCE = 30.0
_FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, and open their own page only
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Page:
    """One tab. Each call has a deadline."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Goes there."""
        self._call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        reply = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def text(self, selector: str) -> str:
        """What a person reads there; empty if it is hidden or not there."""
        found = f"document.querySelector({json.dumps(selector)})"
        return self.evaluate(f"{found}?.checkVisibility() ? {found}.innerText : ''")

    def wait(self, selector: str, word: str) -> str:
        """The text there, when it has this word in it."""
        deadline = time.monotonic() + PATIENCE
        while word not in (found := self.text(selector)):
            assert time.monotonic() < deadline, f"{selector} has {found!r}, and {self.errors}"
            self.evaluate("new Promise((go) => requestAnimationFrame(() => setTimeout(go, 20)))")
        return found

    def click(self, selector: str) -> None:
        """Clicks on the first of them."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, value: str) -> None:
        """Writes into a field."""
        self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            f" one.value = {json.dumps(value)}; one.dispatchEvent(new Event('input')); }})()"
        )

    def _call(self, method: str, **given: Any) -> dict[str, Any]:
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            reply = self._next(deadline)
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                result: dict[str, Any] = reply["result"]
                return result
            self._heard(reply)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 16)
            assert data, "the browser has ended"
            self._pending += data
        first, _, self._pending = self._pending.partition(b"\0")
        reply: dict[str, Any] = json.loads(first)
        return reply

    def _heard(self, reply: dict[str, Any]) -> None:
        given = reply.get("params", {})
        if reply.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(given["exceptionDetails"]))
        elif reply.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
        elif reply.get("method") == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """A browser with one page, whose files are in this folder."""
    assert CHROMIUM is not None
    their_commands, commands = os.pipe()
    answers, their_answers = os.pipe()
    # The browser reads from descriptor 3 and writes to 4; copies above keep them from each other.
    script = f'exec 3<&{their_commands} 4>&{their_answers}; exec "$0" "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(their_commands, their_answers),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(their_commands)
    os.close(their_answers)
    try:
        yield Page(commands, answers)
    finally:
        os.close(commands)  # it ends when nobody can command it any more
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(PATIENCE)
        os.close(answers)
