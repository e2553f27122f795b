"""`transfer serve` as a process: where it listens, how it ends, what it has after it was killed."""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
import urllib.request

import numpy as np
import pytest

from tests.cli.run_writer import send_run
from tests.cli.test_broker import ANYWHERE
from tests.ports import free_port
from transfer import cli, units
from transfer.spool import RowStream
from transfer.spool.client.admin import SpoolAdmin
from transfer.transports.errors import Again


def served(command) -> str:
    """The address that it prints, without the run."""
    line = command.first_line()
    assert line.startswith("serving run://"), command.end()
    return line.split()[1].removesuffix("/NAME")


def read_ids(url: str, group: str = "default") -> list[int]:
    with RowStream(url, 7, group=group, timeout=20.0) as stream:
        return np.concatenate([batch["id"] for batch in stream]).tolist()


def test_rows_outlive_a_spool_that_is_killed(start, tmp_path):
    port, ids = free_port(), list(range(100))
    for life in range(3):
        command = start("serve", "--spool", tmp_path / "spool", "--bind", f"127.0.0.1:{port}")
        url = served(command)
        assert url == f"run://127.0.0.1:{port}"
        if life == 0:
            send_run(f"{url}/one", [ids[:55], ids[55:]])
            send_run(f"{url}/half", [ids], done=False)
        assert read_ids(f"{url}/one") == ids
        with SpoolAdmin(url) as spool:
            half = spool.inspect("half")
        assert (half["state"], half["rows"], half["staged_rows"]) == ("open", 0, 100)
        command.process.kill()
        code, _, said = command.end()
        assert code == -signal.SIGKILL, said


@pytest.mark.parametrize(
    ("number", "code", "last"),
    [
        (signal.SIGTERM, 0, "ended by SIGTERM; acknowledged rows are kept"),
        (signal.SIGINT, 130, "transfer: stopped by Ctrl-C"),
    ],
)
def test_signals_end_it_cleanly(start, tmp_path, number, code, last):
    command = start("serve", "--spool", tmp_path, "--bind", "tcp://127.0.0.1:0")
    url = served(command)
    send_run(f"{url}/one", [[1, 2, 3]])
    command.process.send_signal(number)
    ended, output, said = command.end()
    assert (ended, output.count(b"\n")) == (code, 1), said
    assert said.splitlines()[-1].endswith(last) and "Traceback" not in said


def test_where_it_is_as_json(start, tmp_path):
    port = free_port()
    command = start("serve", "--spool", tmp_path, "--bind", f"127.0.0.1:{port}", "--json")
    told = json.loads(command.first_line())
    assert told == {
        "url": f"run://127.0.0.1:{port}",
        "endpoint": f"tcp://127.0.0.1:{port}",
        "rows_endpoint": f"tcp://127.0.0.1:{port + 1}",
        "folder": str(tmp_path),
    }


def test_a_folder_has_one_spool(start, run, tmp_path):
    served(start("serve", "--spool", tmp_path, "--bind", "127.0.0.1:0"))
    code, output, said = run("serve", "--spool", tmp_path, "--bind", "127.0.0.1:0")
    assert (code, output) == (2, b"")
    assert said == (
        f"transfer: another spool runs on {tmp_path}\n  hint: end it first, or use another folder\n"
    )


@pytest.mark.parametrize("option", ["--bind", "--rows-bind", "--metrics"])
def test_a_port_in_use_is_one_clear_line(run, tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ends = ("--bind", "127.0.0.1:0") if option != "--bind" else ()
        code, output, said = run("serve", "--spool", tmp_path, *ends, option, f"127.0.0.1:{port}")
    assert (code, output) == (2, b""), said
    assert said.startswith("transfer: ") and f"{port}" in said and "is in use\n  hint: " in said
    assert said.count("\n") == 2


def test_other_machines_are_let_in_with_a_warning_where_that_is_allowed(start, run, tmp_path, monkeypatch):
    code, _, said = run("serve", "--spool", tmp_path, "--bind", "tcp://*:0", "--rows-bind", "127.0.0.1:0")
    assert (
        code == 1
        and "would accept connections without authentication" in said
        and "TRANSFER_UNAUTHENTICATED=allow" in said
    )
    monkeypatch.setenv("TRANSFER_UNAUTHENTICATED", "allow")
    command = start("serve", "--spool", tmp_path, "--bind", "tcp://*:0", "--rows-bind", "127.0.0.1:0")
    url = served(command)
    assert url.startswith(f"run://{socket.gethostname()}:")
    send_run(f"run://127.0.0.1:{url.rpartition(':')[2]}/one", [[1]])
    command.process.send_signal(signal.SIGTERM)
    code, _, said = command.end()
    assert code == 0
    warnings = [line for line in said.splitlines() if "WARNING" in line]
    assert len(warnings) == 1 and "without authentication" in warnings[0] and "0.0.0.0" in warnings[0]


def test_metrics_are_served(start, tmp_path):
    port = free_port()
    command = start("serve", "--spool", tmp_path, "--bind", "127.0.0.1:0", "--metrics", f"127.0.0.1:{port}")
    served(command)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert b'transfer_sockets{socket="ROUTER"} 1.0' in answer.read()


def test_metrics_that_cannot_ask_for_the_token_are_not_served(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_TOKEN", "a4fc542c74e437a9de36a1413212954a")
    code, _, said = run("serve", "--spool", tmp_path, "--bind", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    assert code == 1 and "requests without a token" in said and "TRANSFER_TOKENLESS=allow" in said


def test_a_damaged_folder_is_told_with_what_to_do(start, run, tmp_path):
    command = start("serve", "--spool", tmp_path, "--bind", "127.0.0.1:0")
    send_run(f"{served(command)}/one", [list(range(50))])
    command.process.kill()
    command.end()
    (records,) = tmp_path.glob("*.log")
    data = bytearray(records.read_bytes())
    data[data.index(b"one")] ^= 255
    records.write_bytes(data)
    code, _, said = run("serve", "--spool", tmp_path, "--bind", "127.0.0.1:0")
    assert code == 1
    assert f"\ntransfer: {tmp_path} is damaged, and nothing was changed: " in said and "Traceback" not in said
    assert "\n  hint: restore the folder" in said


#: `transfer` on a disk that fails when a file says so
_BAD_DISK = """
import errno, os, pathlib, sys
good, flag = os.fdatasync, pathlib.Path(sys.argv.pop())
def fdatasync(fd):
    if flag.exists():
        raise OSError(errno.EIO, "Input/output error")
    good(fd)
os.fdatasync = fdatasync
from transfer.cli import main
main(sys.argv[1:])
"""


def test_a_failed_disk_ends_it_so_that_it_is_started_again(start, tmp_path):
    flag, folder = tmp_path / "bad", tmp_path / "spool"
    command = start("serve", "--spool", folder, "--bind", "127.0.0.1:0", flag, program=("-c", _BAD_DISK))
    url = served(command)
    send_run(f"{url}/one", [[1, 2, 3]])
    with RowStream(f"{url}/one", 1, timeout=2.0) as stream:
        next(iter(stream))
        flag.touch()
        with pytest.raises(Again):
            stream.acknowledge()
    code, _, said = command.end()
    assert code == 1
    assert "\ntransfer: the spool has ended: appended records may or may not be kept: " in said
    assert "Traceback" not in said
    flag.unlink()
    again = start("serve", "--spool", folder, "--bind", "127.0.0.1:0")
    # Whether the first group's word was kept is in doubt, as it was told.
    assert read_ids(f"{served(again)}/one", group="another") == [1, 2, 3]


#: `transfer` in which the thread that answers requests ends when a file says so
_BAD_THREAD = """
import pathlib, sys
from transfer.spool import Spool
receive, flag = Spool._receive_requests, pathlib.Path(sys.argv.pop())
def bad(self):
    if flag.exists():
        raise SystemExit("out of luck")
    receive(self)
Spool._receive_requests = bad
from transfer.cli import main
main(sys.argv[1:])
"""


def test_a_thread_that_ends_ends_it(start, tmp_path):
    flag, folder = tmp_path / "bad", tmp_path / "spool"
    command = start("serve", "--spool", folder, "--bind", "127.0.0.1:0", flag, program=("-c", _BAD_THREAD))
    served(command)
    flag.touch()
    code, _, said = command.end()
    assert code == 1
    assert "transfer: the spool has ended: the spool's thread requests has ended: SystemExit" in said


def test_a_missing_library_is_one_clear_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "transfer.spool.server.server", None)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert cli.run(["serve", "--spool", str(tmp_path)]) == 1
    assert "a spool needs numpy\n  hint: pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--bind", "somewhere"],
        ["--bind", "ipc:///tmp/x"],
        ["--rows-bind", "tcp://x:y"],
        ["--retention-age", "7 years"],
        ["--retention-bytes", "much"],
    ],
)
def test_wrong_options_end_with_usage(words, capsys, tmp_path):
    assert cli.run(["serve", "--spool", str(tmp_path / "new"), *words]) == 2
    assert words[1] in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_no_folder_is_wrong_usage(capsys):
    assert cli.run(["serve"]) == 2
    assert "--spool" in capsys.readouterr().err


def test_a_file_is_no_folder(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert cli.run(["serve", "--spool", str(tmp_path / "file")]) == 2
    assert "file is no folder\n  hint: name a folder" in capsys.readouterr().err


def test_none_is_the_default_of_both_retentions(monkeypatch, tmp_path):
    said = []
    monkeypatch.setattr("transfer.cli.run_spool.serve", lambda kept, **_: said.append(kept) or 0)
    folder = ["serve", "--spool", str(tmp_path)]
    for words in ([], ["--retention-age", "none", "--retention-bytes", "off"]):
        assert cli.run([*folder, *words]) == 0
    assert said[0] == said[1] and (said[0].retention_bytes, said[0].retention_age) == (None, None)
    assert cli.run([*folder, "--retention-age", "7d", "--retention-bytes", "1GB"]) == 0
    assert (said[2].retention_bytes, said[2].retention_age) == (10**9, 604_800)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("12h", 43_200), ("7d", 604_800), ("200ms", 0.2)],
)
def test_times_are_read(text, seconds):
    assert units.seconds(text) == units.age(text) == seconds


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_the_soft_limit_of_descriptors_is_raised(start, tmp_path, command):
    folder = ["--spool", tmp_path, "--bind", "127.0.0.1:0", "--rows-bind", "127.0.0.1:0"]
    if command == "broker":
        folder = ["--data", tmp_path, *ANYWHERE]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        served = start(command, *folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert served.first_line()
    assert resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
