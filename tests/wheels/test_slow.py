"""The wheels themselves, and the source distribution: `make test-slow ARGS=tests/wheels`.

They are built of the commit: what is not committed is not tested here. zig and auditwheel are installed below
build/wheels, once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.wheels.__main__ import PYTHONS
from deploy.wheels.interpreters import find_interpreter

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/wheels/round_trip.py"
HERE = "manylinux-x86_64"
#: seconds for the wheels of a test; the compiler may have to be fetched, and build a C library first
BUILD = 1500

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD + 120),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="wheels are built of a commit"),
]


def run(command, folder, timeout=300, **variables):
    ours = ("TRANSFER_", "PYTHON", "SETUPTOOLS_")
    env = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder, env={**env, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def wheels(out, *arguments, **variables):
    """Has the wheels built that the arguments name, and returns them."""
    place = [] if "--place" in arguments else ["--place", ROOT / "build/wheels"]
    command = [sys.executable, "-m", "deploy.wheels", "--out", out, *arguments, *place]
    done = run(command, ROOT, BUILD, **variables)
    assert "SHA256SUMS" in done
    return sorted(out.glob("*.whl"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel of each Python that is here, for this machine."""
    if os.uname().machine != "x86_64":
        pytest.skip("the wheels that are tried out here are those of x86-64")
    out = tmp_path_factory.mktemp("dist")
    wheels(out, "--platform", HERE, "--python", *(one for one in PYTHONS if find_interpreter(one)))
    return out


@pytest.fixture
def no_compiler(tmp_path):
    """A PATH on which every compiler fails, and says that it was called."""
    folder = tmp_path / "no-compiler"
    folder.mkdir()
    for name in ("cc", "gcc", "g++", "c++", "clang", "ld", "x86_64-linux-gnu-gcc"):
        (folder / name).write_text(f"#!/bin/sh\necho {name} was called >> {folder}/called\nexit 1\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("version", PYTHONS)
def test_it_installs_in_a_fresh_environment_without_a_compiler(built, version, tmp_path, no_compiler):
    interpreter = find_interpreter(version)
    if interpreter is None:
        pytest.skip(f"no python{version} here")
    environment = tmp_path / "environment"
    run([interpreter, "-m", "venv", environment], tmp_path)
    pip = [environment / "bin/pip", "--disable-pip-version-check", "install", "--no-index"]
    path = f"{no_compiler}:{os.environ['PATH']}"
    asked = ["--find-links", built, "--only-binary", ":all:", "--pre", "tensor-transfer"]
    printed = run([*pip, *asked], tmp_path, PATH=path, CC="gcc")
    printed += run([environment / "bin/python", PROGRAM], tmp_path, PATH=path)
    assert f"core native, python {version}" in printed and printed.rstrip().endswith(": there")
    assert not (no_compiler / "called").exists()
    print(printed)


def test_a_source_distribution_makes_the_compiled_core_in_an_empty_environment(built, tmp_path):
    """pip's own environment for the build, and this machine's C compiler: where there is no wheel."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    (sdist,) = built.glob("*.tar.gz")
    environment = tmp_path / "environment"
    run([sys.executable, "-m", "venv", environment], tmp_path)
    answer = subprocess.run(
        [environment / "bin/pip", "download", "--no-deps", "--dest", tmp_path / "seen", "setuptools"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if answer.returncode:
        pytest.skip(f"no package index can be reached: {answer.stderr.strip().splitlines()[-1]}")
    pip = [environment / "bin/pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
    run([*pip, sdist], tmp_path, 900, TRANSFER_NEED_NATIVE="1")
    assert "core native" in run([environment / "bin/python", PROGRAM], tmp_path)


def test_the_same_commit_makes_the_same_bytes(built, tmp_path):
    """In another folder, by one job at a time, of C code that is translated again."""
    place = tmp_path / "another/place"
    version = next(one for one in PYTHONS if find_interpreter(one))
    again = tmp_path / "again"
    asked = ["--platform", HERE, "--python", version, "--place", place, "--jobs", "1"]
    (wheel,) = wheels(again, *asked, TZ="Asia/Tokyo")
    assert wheel.read_bytes() == (built / wheel.name).read_bytes()
    (sdist,) = again.glob("*.tar.gz")
    assert sdist.read_bytes() == (built / sdist.name).read_bytes()


@pytest.mark.parametrize("platform", ["manylinux-aarch64", "musllinux-x86_64", "musllinux-aarch64"])
def test_the_other_platforms_are_built_and_granted_their_tags(platform, tmp_path):
    """auditwheel refuses others. That they run, `make test-aarch64` shows for one of them."""
    version = next(one for one in PYTHONS if find_interpreter(one))
    (wheel,) = wheels(tmp_path, "--platform", platform, "--python", version)
    assert platform.rpartition("-")[2] in wheel.name and platform.partition("-")[0] in wheel.name
