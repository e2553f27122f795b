"""The end of processes that Spark starts, tried with processes that are no Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from transfer.spark.processes import end, java_processes, uninterrupted


@pytest.fixture
def start():
    """start(shell command, **environment) -> a process that has printed "ready"."""
    running = []

    def begin(command: str, **environment: str) -> subprocess.Popen:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], stdout=subprocess.PIPE, env=os.environ | environment, text=True
        )
        running.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait(10)
        process.stdout.close()


def test_java_is_known_by_what_its_launcher_gives_it(start):
    command = "echo ready; exec sleep 60"
    before = java_processes()  # of the session that other tests share
    java = start(command, _PYSPARK_DRIVER_CONN_INFO_PATH="/nonexistent")
    start(command)
    deadline = time.monotonic() + 10  # in the middle of an exec a process has no environment
    while not (found := java_processes() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == {java.pid}


def test_who_can_end_himself_may(start, tmp_path):
    done = tmp_path / "done"
    process = start(f"trap 'echo tidied > {done}; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
    end([process.pid], patience=30)
    assert done.read_text() == "tidied\n"
    assert not Path(f"/proc/{process.pid}").exists()


def test_who_does_not_end_is_killed_with_all_that_he_started(start):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)"
    inner = f'{sys.executable} -c "{code}; time.sleep(60)"'
    process = start(f"trap '' TERM; {inner} & wait")
    child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().strip()
    assert Path(f"/proc/{child}").exists()
    end([process.pid], patience=0.2)
    assert not Path(f"/proc/{process.pid}").exists()
    assert process.stdout.read() == ""  # the end of the pipe: the child has ended too


def test_who_is_gone_needs_no_end(start):
    process = start("echo ready")
    process.wait(10)
    end([process.pid])


def test_ctrl_c_has_no_effect_within():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_thread_is_never_interrupted_anyway():
    before = signal.getsignal(signal.SIGINT)
    inside = []

    def work():
        with uninterrupted():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert inside == [before]
