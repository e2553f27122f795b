"""A broken stack gives the reason, by word, and never more than that."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.verbs.ends import devices
from transports.verbs import choosing
from transports.verbs.driver import load
from transports.verbs.probe import probe

pytestmark = pytest.mark.skipif(not devices(), reason="no RDMA device here: `make test-rdma` brings one")

# All is imported before the rights go: the interpreter may lie where only root reads.
LIMITED = """
import ctypes, mmap, os, resource, sys
import transports.verbs.probe, transports.probe
from transports.verbs.driver import load
if {plain}:
    load()
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit}, {limit}))
if {plain}:
    os.setgid(65534); os.setuid(65534)
"""


def run(code: str, *, limit: int = 64 << 10, plain: bool = True) -> str:
    """The code as a user without rights, with so much memory to lock."""
    code = LIMITED.format(limit=limit, plain=plain) + textwrap.dedent(code)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_the_device_here_is_usable() -> None:
    found = probe()
    assert found.usable, found.reason
    assert "rxe0" in found.details["route"] and found.details["mtu"] == 4096


def test_little_locked_memory_is_seen_before_it_fails() -> None:
    assert run("from transports.verbs.probe import probe; print(probe().word)") == "memlock"


def test_little_locked_memory_is_the_cause_that_a_registration_names() -> None:
    os.chmod("/dev/infiniband/uverbs0", 0o666)
    said = run(
        """
        from transports.errors import RegistrationError
        from transports.verbs.driver import load
        import mmap
        device = load().open("rxe0")
        memory = bytearray(1 << 20)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        try:
            device.register(address, len(memory), local_write=True, remote_read=False)
        except RegistrationError as error:
            print(error.reason, "1 MiB" in str(error), "rxe0" in str(error), "ulimit -l" in error.hint)
        device.close()
        """
    )
    assert said == "memlock True True True"


def test_no_permission_for_the_device() -> None:
    os.chmod("/dev/infiniband/uverbs0", 0o600)
    try:
        said = run("from transports.verbs.probe import probe; print(probe().word)", limit=1 << 30)
    finally:
        os.chmod("/dev/infiniband/uverbs0", 0o666)
    assert said == "permission"


def test_no_pyverbs() -> None:
    said = run(
        """
        import sys
        sys.modules["pyverbs"] = None
        from transports.verbs.probe import probe
        found = probe()
        print(found.word, "python3-pyverbs" in found.hint)
        """,
        plain=False,
        limit=1 << 30,
    )
    assert said == "no_pyverbs True"


def test_a_read_only_file_and_what_is_not_mapped_are_told_apart(tmp_path) -> None:
    import mmap

    from transports.errors import RegistrationError
    from transports.verbs.memory import address_of

    file = tmp_path / "file"
    file.write_bytes(bytes(8192))
    device = load().open("rxe0")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        with memoryview(mapped) as view:
            with pytest.raises(RegistrationError) as refused:
                device.register(address_of(view), 8192, local_write=True, remote_read=False)
    assert refused.value.reason == "read_only"
    with pytest.raises(RegistrationError) as refused:
        device.register(0x1000, 4096, local_write=False, remote_read=True)
    assert refused.value.reason == "address"
    device.close()


def test_importing_pyverbs_leaves_logging_alone() -> None:
    said = run(
        """
        import logging
        from transports.verbs.driver import load
        print(load().devices(), logging.root.handlers, logging.root.level)
        """,
        plain=False,
        limit=1 << 30,
    )
    assert said == "['rxe0'] [] 30"


def test_the_chosen_gid_is_the_one_with_an_address() -> None:
    route = choosing.choose_route({})
    assert (route.device, route.port, route.gid_index) == ("rxe0", 1, 1)
    assert choosing.choose_route({"MC_GID_INDEX": "0"}).gid_index == 0
