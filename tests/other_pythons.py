"""Tests of the core, the sockets, the tensors and RDMA on the other versions of Python that are here.

    python -m tests.other_pythons               3.12 and 3.13, without torch and Spark
    python -m tests.other_pythons 3.13 -k close     one version; what follows is pytest's

Each has a virtual environment below build/pythons, and the compiled core among the sources: its files name
the version. A version that is not here is named, and is no failure. All may take 5 minutes on two cores:
`SLOWEST` and `CHOSEN` say what is left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from deploy.wheels.interpreters import find_interpreter

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build/pythons"
VERSIONS = ("3.12", "3.13")
TESTS = ("tests/core", "tests/sockets", "tests/tensors", "tests/rdma")
#: what builds the compiled core, and what these tests import but for torch and pyspark, which are large
PACKAGES = (
    *("Cython>=3.3.1", "setuptools>=77", "pytest>=8.3", "pytest-timeout>=2.3", "pytest-asyncio>=0.25"),
    *("pytest-xdist>=3.6", "hypothesis>=6.100", "numpy>=1.26", "ml-dtypes>=0.4", "lz4>=4.3"),
    *("zstandard>=0.22", "cryptography>=42.0.4", "safetensors>=0.4", "uvloop>=0.21", "psutil>=5.9"),
    *("msgspec>=0.18", "pyzmq>=27", "prometheus-client>=0.20", "rich>=13", "typer>=0.15"),
)  # fmt: skip
#: Files that take long, and test the kernel, OpenSSL or older versions of transfer more than Python.
SLOWEST = (
    *("tests/core/test_large_copies.py", "tests/core/test_tls.py", "tests/sockets/test_balance.py"),
    *("tests/sockets/test_faults.py", "tests/sockets/test_order.py", "tests/sockets/test_versions.py"),
    "tests/rdma/test_suites.py",
)
#: The Python core, nearly half of the time, is tested on 3.11; so are two kinds of connections. Files named
#: `test_pure` are not about that core.
CHOSEN = "(not pure or test_pure) and not inproc and not ipc"
#: seconds for an environment, for the compiled core, and for the tests of one version
INSTALL_TIMEOUT, BUILD_TIMEOUT, TIMEOUT = 600, 600, 1200


def environment(version: str, interpreter: Path) -> Path:
    """The interpreter of a virtual environment with the packages. Raises CalledProcessError."""
    folder = PLACE / version
    python, mark = folder / "bin/python", folder / "made-of"
    wanted = hashlib.sha256(f"{interpreter}{PACKAGES}".encode()).hexdigest()
    if not mark.exists() or mark.read_text() != wanted:
        subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True, timeout=INSTALL_TIMEOUT)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install", *PACKAGES]
        subprocess.run(pip, check=True, timeout=INSTALL_TIMEOUT)
        # The package itself, so that it has a version, and errors name what to install.
        editable = [*pip[: -len(PACKAGES)], "--no-deps", "--no-build-isolation", "--editable", ROOT]
        variables = {**os.environ, "TRANSFER_NO_NATIVE": "1"}
        subprocess.run(editable, check=True, timeout=INSTALL_TIMEOUT, env=variables)
        mark.write_text(wanted)
    return python


def run(version: str, arguments: list[str]) -> int | None:
    """pytest's exit status on one version; None: it could not be run, which was said."""
    interpreter = find_interpreter(version)
    if interpreter is None:
        print(f"python{version}: skipped: it is not here with its headers")
        return None
    try:
        python = environment(version, interpreter)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        print(f"python{version}: skipped: its environment could not be made (no package index?)")
        return None
    build = [python, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", "2"]
    variables = {**os.environ, "TRANSFER_NEED_NATIVE": "1"}
    log = PLACE / f"{version}.log"
    with log.open("w") as output:
        done = subprocess.run(
            build, cwd=ROOT, env=variables, stdout=output, stderr=output, check=False, timeout=BUILD_TIMEOUT
        )
    if done.returncode:
        print(
            f"python{version}: the compiled core cannot be built:\n{log.read_text()[-4000:]}", file=sys.stderr
        )
        return done.returncode
    chosen = arguments if any(one.startswith("tests") for one in arguments) else [*TESTS, *arguments]
    left_out = [f"--ignore={path}" for path in SLOWEST]
    command = [python, "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not gpu", "-k", CHOSEN]
    command += [*left_out, *chosen]
    variables = {**os.environ, "TRANSFER_CORE": "native"}
    return subprocess.run(command, cwd=ROOT, env=variables, check=False, timeout=TIMEOUT).returncode


def main() -> int:
    """Returns 0 if every version passes that is here."""
    asked = sys.argv[1:]
    versions = [one for one in asked if re.fullmatch(r"3\.\d+t?", one)]
    failed = []
    for version in versions or VERSIONS:
        begun = time.monotonic()
        status = run(version, [one for one in asked if one not in versions])
        if status is not None:
            print(f"python{version}: {time.monotonic() - begun:.0f} s", flush=True)
        if status:
            failed.append(version)
    if failed:
        print(f"failed on {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
