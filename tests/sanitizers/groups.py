"""Which tests run on a sanitizer, in groups that take some minutes each."""

from __future__ import annotations

CORE = ("tests/core",)
SOCKETS = ("tests/sockets",)
FAULTS = ("tests/faults",)
FUZZ = (
    *("tests/fuzz", "tests/transports/test_fuzz_hello.py", "tests/transports/test_fuzz_upgrade.py"),
    "tests/tensors/test_fuzz_header.py",
)
LOCAL = ("tests/local", "tests/transports/test_contract.py")

#: of each sanitizer: what pytest is asked for, by group
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "asan": {"core": CORE, "sockets": SOCKETS, "faults": FAULTS, "fuzz": FUZZ, "local": LOCAL},
    "tsan": {"core": CORE, "sockets": SOCKETS, "local": LOCAL},
}
#: those of `make test-asan` and `make test-tsan`
USUAL = {"asan": ("core", "fuzz"), "tsan": ("core",)}
