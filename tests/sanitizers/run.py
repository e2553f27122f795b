"""The compiled core built with a sanitizer, and tests on it.

    python -m tests.sanitizers.run asan                      the usual groups of tests
    python -m tests.sanitizers.run tsan sockets              groups by their names (groups.py)
    python -m tests.sanitizers.run asan tests/core -k close  what pytest is asked for instead

The packages and tests are copied into build/asan or build/tsan, and the core is built there. All processes of
a run write their reports to files in build/asan/reports, children too, and one report fails the run. Before
the tests, faults that are planted (planted.c) have to be reported in the same way: a run whose sanitizer is
not loaded fails.

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
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.sanitizers.groups import GROUPS, USUAL

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
COPIED = ("examples", "transfer", "patterns", "transports", "tests", "bench", "docs", "pyspark_transfer")
FILES = (
    "setup.py",
    "deploy/version.py",
    "tensor_transfer.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "Makefile",
)
BUILD_TIMEOUT = 1800
TIMEOUT = 7200
PLANTED_TIMEOUT = 120


class Missing(Exception):
    """What a run needs, and how to get it."""


@dataclass(frozen=True)
class Sanitizer:
    name: str
    flags: str
    #: of gcc, loaded before all others, in this order
    libraries: tuple[str, ...]
    package: str
    #: a symbol that every instrumented module asks for
    symbol: bytes
    #: variables of the environment, and what begins the names of their reports
    options: dict[str, tuple[str, str]]
    #: functions of planted.c, and what is reported of them
    planted: dict[str, str]


_COMMON = "symbolize=1:allocator_may_return_null=1"
_TSAN = (
    f"exitcode=66:die_after_fork=0:report_signal_unsafe=0:history_size=4:suppressions={HERE / 'tsan.supp'}"
)
SANITIZERS = {
    "asan": Sanitizer(
        "asan",
        # The wire's numbers stand at any address, which x86-64 and ARMv8 read.
        "-fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=undefined",
        # Behind libasan, libubsan would write its reports to the standard error only.
        ("libubsan.so", "libasan.so"),
        "libasan8 libubsan1",
        b"__asan_init",
        # An interpreter that ends leaves thousands of objects: every leak report would be about those.
        {
            "ASAN_OPTIONS": (
                f"{_COMMON}:detect_leaks=0:detect_stack_use_after_return=1:verify_asan_link_order=0",
                "asan",
            ),
            "UBSAN_OPTIONS": (f"{_COMMON}:print_stacktrace=1:halt_on_error=1", "ubsan"),
        },
        {"use_after_free": "heap-use-after-free", "undefined_shift": "shift exponent 40 is too large"},
    ),
    "tsan": Sanitizer(
        "tsan",
        "-fsanitize=thread",
        ("libtsan.so",),
        "libtsan2",
        b"__tsan_init",
        {
            "TSAN_OPTIONS": (f"{_COMMON}:{_TSAN}", "tsan"),
        },
        {"data_race": "data race"},
    ),
}


def libraries(sanitizer: Sanitizer) -> list[str]:
    """Where the sanitizer's libraries are. Raises Missing without one."""
    if shutil.which("gcc") is None:
        raise Missing("the sanitizers come with gcc: apt-get install gcc libc6-dev")
    found = []
    for name in sanitizer.libraries:
        asked = ["gcc", f"-print-file-name={name}"]
        path = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
        if not os.path.isabs(path):  # gcc answers with the bare name
            raise Missing(f"gcc has no {name}: apt-get install {sanitizer.package}, or those of your gcc")
        found.append(os.path.realpath(path))
    return found


def environment(sanitizer: Sanitizer, reports: Path) -> dict[str, str]:
    """Of a process on code that was built with it, and of its children: each writes its reports to files."""
    options = {
        variable: f"{value}:log_path={reports / prefix}"
        for variable, (value, prefix) in sanitizer.options.items()
    }
    preloaded = " ".join(libraries(sanitizer))
    return {**os.environ, **options, "LD_PRELOAD": preloaded, "PYTHONMALLOC": "malloc"}


def prefix(sanitizer: Sanitizer) -> list[str]:
    """gcc before 14 maps TSan's shadow to fixed places, which a kernel with over 28 random bits may use."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    random = int(bits.read_text()) if sanitizer.name == "tsan" and os.access(bits, os.R_OK) else 0
    return ["setarch", platform.machine(), "-R"] if random > 28 and shutil.which("setarch") else []


def watched(
    sanitizer: Sanitizer, command: list[str], place: Path, timeout: float, **variables: str
) -> tuple[int, str]:
    """(exit status, reports) of a command that runs in `place`. A report of any of its processes makes the
    status 1 at least."""
    folder = place / "reports"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    done = subprocess.run(
        [*prefix(sanitizer), *command],
        cwd=place,
        env=environment(sanitizer, folder) | variables,
        check=False,
        timeout=timeout,
    )
    reports = "\n".join(path.read_text(errors="replace") for path in sorted(folder.iterdir()))
    return done.returncode or int(bool(reports)), reports


#: its child has the fault, and neither the status nor the output of that is looked at
_PARENT = """
import subprocess, sys
child = "import ctypes, sys; ctypes.CDLL(sys.argv[1])[sys.argv[2]](40)"
subprocess.run([sys.executable, "-c", child, *sys.argv[1:]], stderr=subprocess.DEVNULL, timeout=60)
"""


def check_planted(sanitizer: Sanitizer) -> None:
    """Each planted fault fails a run. Raises Missing if one does not: such a run would show nothing."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        built = place / "planted.so"
        command = ["gcc", "-shared", "-fPIC", "-O1", "-g", "-pthread", *sanitizer.flags.split()]
        subprocess.run([*command, str(HERE / "planted.c"), "-o", str(built)], check=True, timeout=60)
        for fault, words in sanitizer.planted.items():
            program = [sys.executable, "-c", _PARENT, str(built), fault]
            status, reports = watched(sanitizer, program, place, PLANTED_TIMEOUT)
            if status == 0 or words not in reports:
                raise Missing(
                    f"{sanitizer.name} does not report a planted {fault}: is {sanitizer.package} of the same "
                    f"gcc? (exit status {status}, reports: {reports or 'none'})"
                )


def build(sanitizer: Sanitizer) -> Path:
    """The folder with the packages, the tests and the instrumented core."""
    place = ROOT / "build" / sanitizer.name
    for name in COPIED:  # what was removed at the source must not stay; what was compiled stays in build/
        shutil.rmtree(place / name, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.so", "__pycache__", ".built")
        shutil.copytree(ROOT / name, place / name, ignore=ignored, symlinks=True)
    (place / "deploy").mkdir(exist_ok=True)
    for name in FILES:
        shutil.copy2(ROOT / name, place / name)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    flags = {
        "TRANSFER_CORE_FLAGS": f"-O1 -g -fno-omit-frame-pointer {sanitizer.flags}",
        "LDFLAGS": sanitizer.flags,
        "TRANSFER_NEED_NATIVE": "1",
    }
    subprocess.run(command, cwd=place, env=os.environ | flags, check=True, timeout=BUILD_TIMEOUT)
    modules = list((place / "transports/core/native").glob("*.so"))
    bare = [module.name for module in modules if sanitizer.symbol not in module.read_bytes()]
    if bare or not modules:
        raise Missing(f"these were built without {sanitizer.name}: {bare}; remove {place} and try again")
    return place


def asked(name: str, chosen: list[str]) -> list[str]:
    """What pytest is asked for: groups by their names, the usual ones, or what was chosen."""
    known = GROUPS[name]
    groups = [word for word in chosen if word in known]
    rest = [word for word in chosen if word not in known]
    if not groups and not any(word.startswith("tests") for word in rest):
        groups = list(USUAL[name])
    return [*(word for group in groups for word in known[group]), *rest]


def run(name: str, chosen: list[str]) -> tuple[int, str]:
    """(exit status, reports) of a run of pytest."""
    sanitizer = SANITIZERS[name]
    check_planted(sanitizer)
    place = build(sanitizer)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", "-p", "tests.sanitizers.plugin"]
    return watched(
        sanitizer,
        [*command, *asked(name, chosen)],
        place,
        TIMEOUT,
        PYTHONPATH=str(place),
        TRANSFER_CORE="native",
        TRANSFER_TEST_SANITIZER=name,
    )


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
