"""The Python programs of the ZeroMQ guide, unchanged, on pyzmq and by `transfer as-zmq`.

They are in the repository booksbyus/zguide, in examples/Python; GUIDE_PROGRAMS names that folder.
Nothing of them is part of this project. guide/programs.toml says which are run together, and what is due.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.zmq_compat.released import ROOT, fetched

TABLE = tomllib.loads((Path(__file__).parent / "guide/programs.toml").read_text())
MODULES = TABLE.pop("modules")
RUNNER = Path(__file__).parent / "guide/scenario.py"
RELEASES = ("tornado==6.6.1", "netifaces==0.11.0")
FOLDER = os.environ.get("GUIDE_PROGRAMS")
#: network and processes of its own: the programs bind well-known ports
ALONE = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(700),
    pytest.mark.skipif(
        not FOLDER, reason="GUIDE_PROGRAMS names no folder: examples/Python of booksbyus/zguide"
    ),
]


@pytest.fixture(scope="module")
def libraries():
    """The folder with what some programs import."""
    if (
        not all(map(shutil.which, ("unshare", "ip")))
        or subprocess.run([*ALONE, "true"], timeout=20).returncode
    ):
        pytest.skip("no namespaces here: they need util-linux, iproute2 and a kernel that allows them")
    return fetched("guide_programs", RELEASES)


def played(folder, scenario, libraries, words):
    """Runs the programs of a scenario in a copy of their folder; [(exit code, output, all as is due)]."""
    shutil.copytree(FOLDER, folder)
    (folder / "testdata").write_bytes(b"12345678" * 250_000 + b"9")
    given = folder / "scenario.json"
    limit = scenario.get("limit", 30)
    given.write_text(json.dumps({"command": words, "limit": limit, "run": scenario["run"]}))
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, libraries))),
        "PYTHONUNBUFFERED": "1",
        "TRANSFER_UNAUTHENTICATED": "allow",
        "USER": "me",
    }
    with (folder / "runner.txt").open("w") as out:
        subprocess.run(
            [*ALONE, sys.executable, RUNNER, given], cwd=folder, env=environ, stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, timeout=limit + 60, check=True,
        )  # fmt: skip
    return json.loads(given.read_text())


def problems(scenario, rows):
    return [
        (due.get("program", "helper"), code, output[-1500:])
        for due, (code, output, done) in zip(scenario["run"], rows, strict=True)
        if not done
    ]


def test_every_program_is_in_the_table():
    programs = [due["program"].split()[0] for one in TABLE.values() for due in one["run"] if "program" in due]
    assert sorted({*programs, *MODULES}) == sorted(path.name for path in Path(FOLDER).glob("*.py"))


@pytest.mark.parametrize("name", TABLE)
def test_programs(libraries, tmp_path, name):
    scenario = TABLE[name]
    for due in scenario["run"]:
        due["ends"] = due.get("ends", False) or due.get("same", False)
    pyzmq = played(tmp_path / "pyzmq", scenario, libraries, [sys.executable])
    assert not problems(scenario, pyzmq), "on pyzmq"
    ours = played(tmp_path / "ours", scenario, libraries, [sys.executable, "-m", "transfer", "as-zmq"])
    assert not problems(scenario, ours)
    for due, (_, here, _), (_, there, _) in zip(scenario["run"], ours, pyzmq, strict=True):
        if due.get("same"):
            assert sorted(here.splitlines()) == sorted(there.splitlines())
