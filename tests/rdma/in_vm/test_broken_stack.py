"""A broken stack gives the reason, by word, and never more than that."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.rdma.ends import devices
from transfer.transports.core import native
from transfer.transports.errors import DeviceError
from transfer.transports.rdma import device_selection
from transfer.transports.rdma.driver import load
from transfer.transports.rdma.probe import probe

# They break the machine's stack, and mend it: that is for a machine that is thrown away.
pytestmark = pytest.mark.skipif(
    "TRANSFER_TEST_VM" not in os.environ, reason="only in the virtual machine: `make test-rdma`"
)

# All is imported before the rights go: the interpreter may lie where only root reads.
LIMITED = """
import ctypes, mmap, os, resource, sys
import transfer.transports.rdma.probe, transfer.transports.probe
from transfer.transports.rdma.driver import load
if {plain}:
    load()
{warm}
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit}, {limit}))
if {plain}:
    os.setgid(65534); os.setuid(65534)
"""


#: one message, with all the modules that it takes
WARM = """
import transfer, transfer.transports.probe
with transfer.Context(protocol="tcp") as context, context.socket(transfer.PULL) as pull:
    pull.bind("tcp://127.0.0.1:0")
    with context.socket(transfer.PUSH, sndtimeo=20000) as push:
        push.connect(pull.last_endpoint)
        push.send(b"x" * 100_000)
        pull.rcvtimeo = 20000
        pull.recv()
        push.peers()
transfer.transports.probe.forget()
"""


def run(code: str, *, limit: int = 64 << 10, plain: bool = True, warm: str = "") -> str:
    """The code as a user without rights, with so much memory to lock."""
    code = LIMITED.format(limit=limit, plain=plain, warm=warm) + textwrap.dedent(code)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


#: auto goes on over TCP and names the reason; require fails with it
WAYS = """
import transfer
from transfer.transports.probe import probe
print(probe("rdma").word, "|", probe("rdma").hint)
for policy in ("prefer", "require"):
    with transfer.Context(protocol="rdma", policy=policy) as context, context.socket(transfer.PULL) as pull:
        pull.bind("tcp://127.0.0.1:0")
        with context.socket(transfer.PUSH, sndtimeo=20000, handshake_ivl=20000) as push:
            pull.rcvtimeo = 20000
            try:
                push.connect(pull.last_endpoint)
            except transfer.TransferError as error:
                print(type(error).__name__, "|", str(error).replace(chr(10), " "))
                continue
            push.send(b"x" * 100_000)
            assert pull.recv() == b"x" * 100_000
            [peer] = push.peers()
            print(peer.transport, "|", peer.reason)
"""


def check_both_ways(said: str, word: str, reason: str) -> None:
    probed, falls, fails = said.splitlines()
    assert probed.startswith(f"{word} | ") and len(probed) > len(word) + 3, said
    assert falls.startswith("tcp | ") and reason in falls, said
    assert not fails.startswith("tcp") and reason in fails, said


def test_the_device_here_is_usable() -> None:
    found = probe()
    assert found.usable, found.reason
    assert "rxe0" in found.details["route"] and found.details["mtu"] == 4096


def test_little_locked_memory_is_seen_before_it_fails() -> None:
    check_both_ways(run(WAYS, warm=WARM), "memlock", "only 64 KiB of memory may be locked")


def test_little_locked_memory_is_the_cause_that_a_registration_names() -> None:
    os.chmod("/dev/infiniband/uverbs0", 0o666)
    said = run(
        """
        from transfer.transports.errors import RegistrationError
        from transfer.transports.rdma.driver import load
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
        said = run(WAYS, limit=1 << 30, warm=WARM)
    finally:
        os.chmod("/dev/infiniband/uverbs0", 0o666)
    check_both_ways(said, "permission", "EACCES")


def test_no_libibverbs() -> None:
    """Hidden from one process."""
    libraries = [path for path in Path("/usr/lib").glob("*-linux-gnu/libibverbs.so.1") if path.exists()]
    assert libraries
    hidden = "".join(f"rm {library} && " for library in libraries)
    again = "".join(f"ln -s {os.readlink(library)} {library}; " for library in libraries)
    ran = subprocess.run(
        ["bash", "-c", f"{hidden} {sys.executable} -c {shlex.quote(WAYS)}; {again}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert all(library.exists() for library in libraries)
    assert ran.stdout, ran.stderr
    check_both_ways(ran.stdout, "library", "libibverbs cannot be loaded")
    assert "rdma-core" in ran.stdout


def test_no_device() -> None:
    """The device is taken out of the kernel, and put back."""
    rdma = shutil.which("rdma", path=os.environ["PATH"] + ":/sbin:/usr/sbin")
    subprocess.run([rdma, "link", "delete", "rxe0"], check=True, timeout=20)
    try:
        said = run(WAYS, plain=False)
    finally:
        subprocess.run(
            [rdma, "link", "add", "rxe0", "type", "rxe", "netdev", "veth0"], check=True, timeout=20
        )
    check_both_ways(said, "no_device", "this machine has no RDMA device")
    assert devices() == ["rxe0"] and probe().usable


def test_a_read_only_file_and_what_is_not_mapped_are_told_apart(tmp_path) -> None:
    import mmap

    from transfer.transports.core import address_of
    from transfer.transports.errors import RegistrationError

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


def test_the_chosen_gid_is_the_one_with_an_address() -> None:
    route = device_selection.choose_route({})
    assert (route.device, route.port, route.gid_index) == ("rxe0", 1, 1)
    assert device_selection.choose_route({"MC_GID_INDEX": "0"}).gid_index == 0


def test_without_the_compiled_core_there_is_no_driver(monkeypatch) -> None:
    assert load().name == "libibverbs" and load().version.startswith("1.")
    monkeypatch.setitem(sys.modules, "transfer.transports.core.native.libibverbs", None)
    monkeypatch.delattr(native, "libibverbs", raising=False)
    with pytest.raises(DeviceError, match="needs the compiled core"):
        load()
