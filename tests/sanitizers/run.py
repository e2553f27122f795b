"""The compiled core built with a sanitizer, and tests on it.

    python -m tests.sanitizers.run asan                      the usual tests
    python -m tests.sanitizers.run asan tests/core -k close  what pytest is asked for instead

The packages and tests are copied into build/asan or build/tsan, and the core is built there. A report fails
the run. Reports of undefined behaviour go to the standard error, which pytest captures: what shows is that
the process dies. In a child whose exit status no test looks at, such a report goes unnoticed.

ThreadSanitizer's build exists, and no test has run on it yet.

Only the core is instrumented; the interpreter is as it is. Its calls of malloc, pthread and the C library are
seen all the same, since the sanitizer's library is loaded first:

- AddressSanitizer sees each read and write of the core, and all memory of the process (PYTHONMALLOC=malloc).
- ThreadSanitizer sees accesses of the core alone. The GIL is made of a pthread mutex and a condition, so two
  accesses under it are ordered; what is found are races with code that runs without it: the flusher, and
  senders and receivers inside `nogil`. What the interpreter or numpy does with the same memory is not seen.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
COPIED = ("transfer", "patterns", "transports", "tests", "bench", "docs", "pyspark_transfer")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile")
#: what pytest runs unless it is asked for something else
SUITE = (
    *("tests/sanitizers", "tests/core", "tests/sockets", "tests/faults", "tests/local", "tests/fuzz"),
    *("tests/transports/test_contract.py", "tests/transports/test_fuzz_hello.py"),
    *("tests/transports/test_fuzz_upgrade.py", "tests/tensors/test_fuzz_header.py"),
)
BUILD_TIMEOUT = 1800
TIMEOUT = 7200


class Missing(Exception):
    """What the build needs, and how to get it."""


@dataclass(frozen=True)
class Sanitizer:
    name: str
    flags: str
    library: str
    package: str
    #: a symbol that every instrumented module asks for
    symbol: bytes
    #: for the environment; each writes its reports to files, as pytest captures the standard error
    options: dict[str, str]


_COMMON = "symbolize=1:allocator_may_return_null=1"
SANITIZERS = {
    "asan": Sanitizer(
        "asan",
        # The wire's numbers stand at any address, which x86-64 and ARMv8 read.
        "-fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=undefined",
        "libasan.so",
        "libasan8",
        b"__asan_init",
        # An interpreter that ends leaves thousands of objects: every leak report would be about those.
        {
            "ASAN_OPTIONS": f"{_COMMON}:detect_leaks=0:detect_stack_use_after_return=1",
            "UBSAN_OPTIONS": f"{_COMMON}:print_stacktrace=1:halt_on_error=1",
        },
    ),
    "tsan": Sanitizer(
        "tsan",
        "-fsanitize=thread",
        "libtsan.so",
        "libtsan2",
        b"__tsan_init",
        {
            "TSAN_OPTIONS": f"{_COMMON}:exitcode=66:die_after_fork=0:report_signal_unsafe=0:history_size=4"
            f":suppressions={HERE / 'tsan.supp'}"
        },
    ),
}


def library(sanitizer: Sanitizer) -> str:
    """Where the sanitizer's library is. Raises Missing without it."""
    if shutil.which("gcc") is None:
        raise Missing("the sanitizers come with gcc: apt-get install gcc libc6-dev")
    asked = ["gcc", f"-print-file-name={sanitizer.library}"]
    found = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    if not os.path.isabs(found):  # gcc answers with the bare name
        raise Missing(
            f"gcc has no {sanitizer.library}: apt-get install {sanitizer.package}, or that of your gcc"
        )
    return os.path.realpath(found)


def environment(sanitizer: Sanitizer, reports: Path) -> dict[str, str]:
    """Of a process on code that was built with it. Reports go to files `reports.PID`."""
    options = {name: f"{value}:log_path={reports}" for name, value in sanitizer.options.items()}
    return {**os.environ, **options, "LD_PRELOAD": library(sanitizer), "PYTHONMALLOC": "malloc"}


def prefix(sanitizer: Sanitizer) -> list[str]:
    """gcc before 14 maps TSan's shadow to fixed places, which a kernel with over 28 random bits may use."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    random = int(bits.read_text()) if sanitizer.name == "tsan" and os.access(bits, os.R_OK) else 0
    return ["setarch", platform.machine(), "-R"] if random > 28 and shutil.which("setarch") else []


def build(sanitizer: Sanitizer) -> Path:
    """The folder with the packages, the tests and the instrumented core."""
    library(sanitizer)
    place = ROOT / "build" / sanitizer.name
    for name in COPIED:  # what was removed at the source must not stay; what was compiled stays in build/
        shutil.rmtree(place / name, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.so", "__pycache__", ".built")
        shutil.copytree(ROOT / name, place / name, ignore=ignored)
    for name in FILES:
        shutil.copy2(ROOT / name, place / name)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    flags = {
        "TRANSFER_CORE_FLAGS": f"-O1 -g -fno-omit-frame-pointer {sanitizer.flags}",
        "LDFLAGS": sanitizer.flags,
        "TRANSFER_NEED_NATIVE": "1",
    }
    subprocess.run(command, cwd=place, env=os.environ | flags, check=True, timeout=BUILD_TIMEOUT)
    modules = list((place / "transports/native").glob("*.so"))
    bare = [module.name for module in modules if sanitizer.symbol not in module.read_bytes()]
    if bare or not modules:
        raise Missing(f"these were built without {sanitizer.name}: {bare}; remove {place} and try again")
    return place


def run(name: str, chosen: list[str]) -> tuple[int, str]:
    """(exit status, reports) of a run of pytest. A report makes the status 1 at least."""
    sanitizer = SANITIZERS[name]
    place = build(sanitizer)
    folder = place / "reports"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.sanitizers.plugin",
    ]
    suite = [path for path in SUITE if (place / path).exists()]
    # They name no file to pytest when they begin with an option alone.
    named = any(word.startswith("tests") for word in chosen)
    command += [*chosen, *(() if named else suite)]
    environ = environment(sanitizer, folder / "report")
    environ |= {"PYTHONPATH": str(place), "TRANSFER_CORE": "native", "TRANSFER_TEST_SANITIZER": name}
    done = subprocess.run(
        [*prefix(sanitizer), *command], cwd=place, env=environ, check=False, timeout=TIMEOUT
    )
    reports = "\n".join(path.read_text(errors="replace") for path in sorted(folder.iterdir()))
    return done.returncode or int(bool(reports)), reports


def main() -> int:
    name, *chosen = sys.argv[1:]
    try:
        status, reports = run(name, chosen)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    if reports:
        print(f"{reports}\nthe core failed on {name}: the reports stand above", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
