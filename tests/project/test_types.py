"""What mypy and pyright find in programs: misspelt methods and options, text where bytes are wanted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import transfer

ROOT = Path(__file__).parents[2]

#: each line that is wrong says what mypy has to say of it
PROGRAM = """
import transfer


def sends(context: transfer.Context) -> None:
    push = context.socket("PUSH", sndhwm=10)
    push.linger = 100
    push.routing_id = "me"
    push.send(b"bytes")
    push.send(bytearray(3), transfer.DONTWAIT)
    confirmed: bool = push.send(b"tracked", track=True).confirmed
    push.send("text")  # call-overload
    push.sent(b"misspelt")  # attr-defined
    push.lingr = 100  # attr-defined
    push.linger = "1s"  # assignment
    push.connect(5555)  # arg-type
    print(confirmed)


def receives(socket: transfer.Socket) -> bytes:
    hwm: int = socket.rcvhwm
    frame = socket.recv(copy=False)
    print(hwm, frame.bytes, frame.bites)  # attr-defined
    return socket.recv()
"""


@pytest.mark.timeout(200)
def test_mypy_finds_mistakes_and_nothing_else(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--cache-dir", ROOT / ".mypy_cache", file],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    found = re.findall(r"program\.py:(\d+):.* error: .*\[([\w-]+)\]$", done.stdout, re.M)
    lines = enumerate(PROGRAM.split("\n"), 1)
    wanted = [(str(number), line.split("# ")[1]) for number, line in lines if "  # " in line]
    assert found == wanted, done.stdout + done.stderr


@pytest.mark.timeout(200)
def test_pyright_finds_mistakes_and_nothing_else(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, file],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    found = re.findall(r"program\.py:(\d+):\d+ - (?:error|warning)", done.stdout)
    wanted = [number for number, line in enumerate(PROGRAM.split("\n"), 1) if "  # " in line]
    assert sorted(set(map(int, found))) == wanted, done.stdout + done.stderr


def test_the_socket_says_what_it_is():
    """`pydoc transfer.Socket` begins with it, and each public method has a docstring."""
    assert "Sends and receives messages" in transfer.Socket.__doc__
    public = {
        name: getattr(transfer.Socket, name) for name in dir(transfer.Socket) if not name.startswith("_")
    }
    without = [name for name, one in public.items() if callable(one) and not (one.__doc__ or "").strip()]
    assert without == []
