"""Ctrl-C while a command waits: it ends at once with status 130, without a traceback or a process left."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transfer.cli import run

ROOT = Path(__file__).parents[2]
#: seconds after which it hangs
PATIENCE = 40.0
#: seconds for the kernel to remove what has ended
GRACE = 3.0

#: who gets the signal: the foreground group, as from a terminal, or the command alone, as from `kill`
WHOM = {"group": os.killpg, "leader": os.kill}


class Command:
    """`transfer` in a session of its own, which is also its process group."""

    def __init__(self, *arguments: str, ignoring: bool = False, **environment: str) -> None:
        """ignoring: it starts with SIGINT ignored, as what a script starts with `&` does."""
        ignored = ("sh", "-c", 'trap "" INT; exec "$@"', "sh") if ignoring else ()
        self.process = subprocess.Popen(
            [*ignored, sys.executable, "-m", "transfer", *arguments],
            cwd=ROOT, env=os.environ | environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def interrupted(self, whom: str) -> tuple[int, str, str]:
        """(status, standard output, standard error) after Ctrl-C now."""
        WHOM[whom](self.process.pid, signal.SIGINT)
        try:
            output, said = self.process.communicate(timeout=PATIENCE)
        finally:
            self.close()
        return self.process.returncode, output, said

    def others(self) -> list[int]:
        """What else runs in its session, whoever is the parent now."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if entry.name.isdigit() and int(fields[3]) == self.process.pid != int(entry.name):
                found.append(int(entry.name))
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate(timeout=PATIENCE)


def left(command: Command) -> list[int]:
    deadline = time.monotonic() + GRACE
    while command.others() and time.monotonic() < deadline:
        time.sleep(0.01)
    return command.others()


@pytest.mark.parametrize("whom", WHOM)
@pytest.mark.parametrize(
    ("words", "summary"),
    [
        (["push", "-d", "x"], "sent 0 messages"),
        (["pub", "-d", "x"], "sent 0 messages"),
        (["req", "-d", "x"], "received 0 messages"),
        (["pull"], "received 0 messages"),
        (["sub"], "received 0 messages"),
        (["rep"], "answered 0 messages"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_that_waits_for_its_peer_ends(words, summary, whom):
    """The peer takes the connection and says nothing, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        command = Command(*words, "--connect", f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        try:
            peer, _ = listener.accept()
        except TimeoutError:
            command.close()
            raise
        with peer:
            code, output, said = command.interrupted(whom)
    assert (code, output) == (130, ""), said
    assert said.startswith(summary) and said.count("\n") == 1, said
    assert left(command) == []


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["serve", "--spool", "data", "--bind", "127.0.0.1:0"], "serving"),
        (["pull", "--bind", "tcp://127.0.0.1:0"], "bound to"),
        (["doctor", "--serve", "tcp://127.0.0.1:0"], "answering at"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_kill_int_ends_what_a_script_started_in_the_background(tmp_path, words, first):
    """The shell of a script has it ignore SIGINT; a person who sends one by `kill` means it."""
    words = [str(tmp_path / word) if word == "data" else word for word in words]
    command = Command(*words, ignoring=True)
    try:
        ready = command.process.stdout if words[0] != "pull" else command.process.stderr
        assert ready is not None and ready.readline().startswith(first)
    except BaseException:
        command.close()
        raise
    code, _, said = command.interrupted("leader")
    assert code == 130, said
    assert left(command) == []


@pytest.mark.parametrize("whom", WHOM)
def test_doctor_ends_while_java_hangs(tmp_path, whom):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n: > '{tmp_path}/asked'\nexec sleep 600\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    command = Command("doctor", PATH=f"{tmp_path}:{os.environ['PATH']}", JAVA_HOME="", TMPDIR=str(tmp_path))
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "asked").exists() and command.process.poll() is None:
        if time.monotonic() > deadline:
            command.close()
            pytest.fail("it never asked for Java")
        time.sleep(0.01)
    # Java may run before `Popen` has returned, and nobody can end what Popen has not yet told of.
    time.sleep(0.5)
    code, output, said = command.interrupted(whom)
    assert (code, output, said) == (130, "", "transfer: stopped by Ctrl-C\n")
    assert left(command) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked", "java"]


def test_ctrl_c_while_a_command_is_loading(monkeypatch, capsys):
    """Before it has begun: the parser has a word of its own for that."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("transfer.cli.options.Sink.writer", interrupted)
    assert run(["pull", "--bind", "tcp://127.0.0.1:0"]) == 130
    assert capsys.readouterr().err == "transfer: stopped by Ctrl-C\n"
