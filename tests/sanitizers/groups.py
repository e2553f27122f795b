"""Which tests run on a sanitizer, in groups that take some minutes each."""

from __future__ import annotations

#: copies of gigabytes, most of the core's time on TSan
COPIES = "tests/core/test_large_copies.py"
CORE = ("tests/core",)
#: where threads meet in a socket, and close it under receives
_SOCKETS = (
    *("threads", "lifecycle", "drain", "pair", "push_pull"),
    *("req_rep", "pub_sub", "secure", "router_dealer"),
)
SOCKETS = tuple(f"tests/sockets/test_{name}.py" for name in _SOCKETS)
FAULTS = ("tests/faults/test_bad_peer.py", "tests/faults/test_payloads.py", "tests/sockets/test_faults.py")
#: what ASan adds to each allocation of gigabytes counts as the process's memory
RESIDENT = "tests/faults/test_bad_peer.py::test_announced_messages_that_never_come_cost_no_memory"
FUZZ = (
    *("tests/fuzz", "tests/transports/test_fuzz_hello.py", "tests/transports/test_fuzz_upgrade.py"),
    "tests/tensors/test_fuzz_header.py",
)
SHM = ("tests/shm",)
#: on the null provider
RDMA = tuple(f"tests/rdma/test_{name}.py" for name in ("stream", "faults", "device_events", "sockets"))
#: on the null driver, whose own threads TSan does not see
CUDA = ("tests/cuda",)

#: of each sanitizer: what pytest is asked for, by group
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "asan": {
        "core": CORE,
        "sockets": SOCKETS,
        "faults": (*FAULTS, f"--deselect={RESIDENT}"),
        "fuzz": FUZZ,
        "rdma": RDMA,
        "cuda": CUDA,
    },
    "tsan": {
        "core": (*CORE, f"--ignore={COPIES}"),
        "copies": (COPIES,),
        "sockets": SOCKETS,
        "faults": FAULTS[2:],
        "shm": SHM,
        "rdma": RDMA,
    },
}
#: those of `make test-asan` and `make test-tsan`
USUAL = {"asan": ("core", "sockets", "fuzz"), "tsan": ("core", "sockets")}
