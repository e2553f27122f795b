"""What answers to our commands over HTTP may be: endless, or one byte after the other."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from transfer import cli
from transfer.broker.bench import target
from transfer.http.client import MOST
from transfer.transports.errors import UsageError

#: seconds, and bytes, after which the server gives up: the client would read for ever
PATIENCE, PLENTY = 20.0, 4 * MOST
OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Type: application/json\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
#: how an answer begins, and what comes then without end
ENDLESS = {
    "a body": (PLAIN, bytes(100_000)),
    "a body whose length is announced": (OK + b"Content-Length: 1000000000000\r\n\r\n", bytes(100_000)),
    "one chunk": (CHUNKED + b"ffffffffff\r\n", bytes(100_000)),
    "chunks": (CHUNKED, b"186a0\r\n" + bytes(100_000) + b"\r\n"),
    "a refusal": (b"HTTP/1.1 500 Failed\r\n\r\n", bytes(100_000)),
    "answers before the answer": (b"", b"HTTP/1.1 100 Continue\r\nA: " + b"a" * 60_000 + b"\r\n\r\n"),
}
DRIPPING = {
    "headers": (OK + b"A: ", b"a"),
    "a body": (PLAIN, b" "),
    "a chunk": (CHUNKED + b"ffffff\r\n", b" "),
    "a refusal": (b"HTTP/1.1 503 Failing\r\n\r\n", b" "),
    "answers before the answer": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}
COMMANDS = {
    "health": ["health"],
    "look": ["topics", "list", "--url"],
    "get": ["audit", "verify", "--url"],
    "post": ["topics", "purge", "--topic", "t", "--yes", "--url"],
    "lines": ["audit", "export", "--url"],
}


class Server:
    """Answers one request by `head`, and then by `piece` again and again, with this pause between."""

    def __init__(self, head, piece, pause, plenty):
        self._answer = head, piece, pause
        self._plenty = plenty
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        #: whether the client ended the connection; bytes that went before
        self.left, self.sent = False, 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        head, piece, pause = self._answer
        deadline = time.monotonic() + PATIENCE
        with self._listener, self._listener.accept()[0] as connection:
            connection.settimeout(PATIENCE)
            try:
                connection.recv(65536)
                connection.sendall(head)
                while self.sent < self._plenty and time.monotonic() < deadline:
                    connection.sendall(piece)
                    self.sent += len(piece)
                    time.sleep(pause)
            except ConnectionError:
                self.left = True

    def end(self):
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def answering(head, piece, pause=0.0, plenty=PLENTY):
    server = Server(head, piece, pause, plenty)
    try:
        yield server
    finally:
        server.end()


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_without_end_is_given_up(command, kind, capfd):
    with answering(*ENDLESS[kind]) as server:
        code = cli.run([*COMMANDS[command], server.url])
        said = capfd.readouterr().err
    assert code == 1 and "Traceback" not in said
    assert "its answer has more than" in said
    assert server.left and server.sent < MOST + MOST // 2


@pytest.mark.parametrize("kind", DRIPPING)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_that_drips_is_given_up(command, kind, capfd):
    with answering(*DRIPPING[kind], pause=0.05) as server:
        code = cli.run([*COMMANDS[command], server.url, "--timeout", "0.4"])
        said = capfd.readouterr().err
    assert (code, server.left) == (3, True) and "did not answer within 0.4 s" in said


@pytest.mark.parametrize(
    ("line", "pause", "plenty"), [(b"x" * 99_999, 0.0, MOST + MOST // 8), (b"{}", 0.5, 8 * 3)]
)
def test_lines_have_a_limit_each_and_none_together(tmp_path, capfd, line, pause, plenty):
    """An audit may be as large as it is."""
    where = ["--out", str(tmp_path / "audit"), "--timeout", "3"]
    with answering(PLAIN, line + b"\n", pause, plenty) as server:
        assert cli.run(["audit", "export", *where, "--url", server.url]) == 1
    assert "the export was cut off" in capfd.readouterr().err
    assert server.sent >= plenty


@pytest.mark.parametrize("kind", ENDLESS)
def test_metrics_without_end(kind):
    with answering(*ENDLESS[kind]) as server:
        with pytest.raises(UsageError, match="no metrics at"):
            target.Running(url=server.url)
    assert server.left


def test_metrics_that_drip(monkeypatch):
    monkeypatch.setattr(target, "_PATIENCE", 0.4)
    with answering(*DRIPPING["a body"], pause=0.05) as server:
        with pytest.raises(UsageError, match="timed out"):
            target.Running(url=server.url)
    assert server.left
