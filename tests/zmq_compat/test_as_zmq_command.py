"""`transfer as-zmq`: programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import multiprocessing, os, subprocess, sys
import zmq

def child(answers):
    import zmq
    answers.put(zmq.__transfer__)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    process = spawn.Process(target=child, args=(answers,))
    process.start()
    assert answers.get(timeout=30)
    process.join()
    code = "import zmq; assert zmq.__transfer__"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    with zmq.Context() as context, context.socket(zmq.REQ) as req, context.socket(zmq.REP) as rep:
        port = rep.bind_to_random_port("tcp://127.0.0.1")
        req.connect(f"tcp://127.0.0.1:{port}")
        req.send(b"question")
        rep.send(rep.recv())
        assert req.recv() == b"question"
        transport = req._links.state.peers and req.peers()[0].transport
    print(zmq.__transfer__, sys.argv[1:], transport)
    sys.exit(7)
"""


def as_zmq(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "transfer", "as-zmq", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env=os.environ | variables,
    )


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM)
    return str(path)


def test_a_program_its_arguments_and_its_exit_code(program):
    done = as_zmq("--transport", "tcp", program, "--transport", "mine")
    assert (done.returncode, done.stdout) == (7, "True ['--transport', 'mine'] tcp\n"), done.stderr


@pytest.mark.parametrize("first", ["-m", "python"])
def test_a_module_and_a_command(program, first, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["-m", "program"] if first == "-m" else [sys.executable, program]
    done = as_zmq(*words)
    assert done.returncode == 7 and done.stdout.startswith("True []"), done.stderr


def test_the_environments_own_start_file_runs(program, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('its own')")
    done = as_zmq("-c", "import zmq; print(zmq.__transfer__)", PYTHONPATH=str(tmp_path))
    assert done.stdout == "its own\n" * 2 + "True\n", done.stderr  # of the command, and of the program


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no-such-program"], "there is no program 'no-such-program'"),
        (["--transprot", "tcp", "program.py"], "no such option: --transprot"),
        (["--transport", "pigeon", "program.py"], "MC_RPC_PROTOCOL"),
        (["--policy", "maybe", "program.py"], "MC_RPC_POLICY"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage(arguments, text):
    done = as_zmq(*arguments)
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr
