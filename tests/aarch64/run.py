"""Builds the compiled core for aarch64 by deploy/wheels' compiler, and runs tests on it under qemu.

    python -m tests.aarch64.run                       the tests of the core, without those in Python
    python -m tests.aarch64.run tests/core/test_tls.py -k close   what pytest is asked for instead

Emulated, all takes some twenty times as long: `LEFT_OUT` names what is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.wheels.environments import Unable, python_environments, tools_environment
from deploy.wheels.platforms import PLATFORMS
from deploy.wheels.target import Target
from tests.aarch64.emulator import VERSION, Missing, prepare

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/aarch64"
COPIED = ("transfer", "patterns", "transports", "tests", "pyspark_transfer")
FILES = ("setup.py", "tensor_transfer.py", "pyproject.toml", "README.md", "LICENSE", "deploy/version.py")
TESTS = ("tests/core", "-k", "not pure")
#: files, and why they do not run here
LEFT_OUT = {
    "tests/core/test_core_choice.py": "programs with a time limit: an emulated import takes most of it",
    "tests/core/test_exit.py": "the same",
    "tests/core/test_fork.py": "the same, and forks of the emulator",
    "tests/core/test_json_check.py": "minutes of Python for a check that has nothing of a processor",
    "tests/core/test_large_copies.py": "gigabytes",
    "tests/core/test_memory.py": "the emulator's memory is counted with the process's",
    "tests/core/test_tls.py": "minutes of OpenSSL: tests/core/test_tls_peers.py has the core's part",
}
BUILD_TIMEOUT, TIMEOUT = 1800, 3600
#: seconds for a test: the usual 60, emulated
TEST_TIMEOUT = 600


def build() -> Path:
    """The folder with the packages, the tests, and the core for aarch64. Raises Unable."""
    tree = PLACE / "tree"
    for name in COPIED:
        shutil.rmtree(tree / name, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.so", "__pycache__", ".built")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored, symlinks=True)
    (tree / "deploy").mkdir(exist_ok=True)
    for name in FILES:
        shutil.copy2(ROOT / name, tree / name)
    place = ROOT / "build/wheels"
    zig = tools_environment(place, print).find_package("ziglang") / "zig"
    interpreter = python_environments(place, [VERSION], print)[VERSION]
    target = Target(PLATFORMS["manylinux-aarch64"], VERSION, interpreter, zig, place)
    target.check_headers()
    variables = {**os.environ, **target.variables(), "TRANSFER_NEED_NATIVE": "1"}
    command = [str(interpreter.python), "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2"]
    done = subprocess.run(
        command, cwd=tree, env=variables, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT
    )
    if done.returncode:
        raise Unable(f"the core cannot be built for aarch64:\n{(done.stdout + done.stderr)[-4000:]}")
    return tree


def main() -> int:
    """Returns pytest's exit status; 2 where something is missing here."""
    try:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        emulated = prepare(PLACE, pip)
        tree = build()
    except (Missing, Unable) as error:
        print(f"make test-aarch64: {error}", file=sys.stderr)
        return 2
    left_out = [] if sys.argv[1:] else [f"--ignore={name}" for name in LEFT_OUT]
    command = [str(emulated.python), "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command += [f"--timeout={TEST_TIMEOUT}", *left_out, *(sys.argv[1:] or TESTS)]
    variables = {"PYTHONPATH": f"{emulated.packages}:{tree}", "TRANSFER_CORE": "native"}
    return subprocess.run(
        command, cwd=tree, env={**os.environ, **variables}, check=False, timeout=TIMEOUT
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
