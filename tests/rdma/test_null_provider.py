"""The null provider: its promises at the level of verbs, its faults, what it leaves behind."""

from __future__ import annotations

import ctypes
import errno
import gc
import hashlib
import os
import random
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import transfer
from tests.rdma import null_provider
from tests.rdma.ends import World, devices, meet, world
from tests.rdma.in_vm.test_killed import PHASES, one_kill
from tests.rdma.null_provider import BUILT, SHARED, SOURCES, Missing, NullProvider
from tests.rdma.raw_verbs import RECEIVE, RECEIVES, Done, RawPair
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.probe import probe
from transfer.transports.rdma.driver import load
from transfer.transports.testing.ends import plain, receive, until

HEADER = Path("/usr/include/infiniband/verbs.h")
#: names of all checks
CHECKS = tuple(re.findall(r'^    \{"(\w+)", \w+\},$', (SOURCES / "checks.c").read_text(), re.MULTILINE))
_numbers = count()


def compiled(program: str) -> Path:
    """A program of the folder, with all parts of the provider in it."""
    parts = [*null_provider.parts(), *sorted(SOURCES.glob(f"{program}*.c"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [*parts, *sorted(SOURCES.glob("*.h"))]))
    target = BUILT / f"{program}-{digest.hexdigest()[:16]}"
    if not target.exists():
        try:
            null_provider.compile_c(parts, target, ("-std=gnu11", "-O2", "-g", "-pthread"))
        except Missing as missing:
            pytest.skip(str(missing))
    return target


@pytest.fixture
def name() -> Iterator[str]:
    """A NULL_VERBS_NAME of which nothing is left."""
    made = f"null_test-{os.getpid()}-{next(_numbers)}"
    yield made
    left = sorted(SHARED.glob(f"{made}.*"))
    for path in left:
        path.unlink()
    assert not left


# -- verbs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS)
def test_verbs(check: str, name: str) -> None:
    ran = subprocess.run(
        [compiled("checks"), check],
        env={**os.environ, "NULL_VERBS_NAME": name},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert not ran.returncode, ran.stderr


def test_all_checks_run() -> None:
    assert len(CHECKS) > 20
    assert subprocess.check_output([compiled("checks")], text=True, timeout=30).split() == list(CHECKS)


def layout(header: str, folder: Path) -> str:
    """Sizes and offsets of all structures of ours, as a header has them."""
    text = re.sub(r"/\*.*?\*/", "", (SOURCES / "verbs_abi.h").read_text(), flags=re.DOTALL)
    lines = ["#include <stdio.h>", "#include <stddef.h>", f"#include {header}", "int main(void) {"]
    for struct, body in re.findall(r"^struct (ibv_\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        flat = re.sub(r"(struct|union) \{.*?\} \w+;", "", body, flags=re.DOTALL)
        fields = re.findall(r"(\w+)(?:\[\d+\])?(?=[,;])|\(\*(\w+)\)\(", flat)
        for field in sorted({one or other for one, other in fields} - UNNAMED):
            lines.append(f'printf("{struct}.{field} %zu\\n", offsetof(struct {struct}, {field}));')
        if struct not in CUT:
            lines.append(f'printf("{struct} %zu\\n", sizeof(struct {struct}));')
    for field in (
        "ah_attr.grh.dgid",
        "ah_attr.grh.hop_limit",
        "ah_attr.dlid",
        "ah_attr.port_num",
        "alt_ah_attr",
    ):
        lines.append(f'printf("{field} %zu\\n", offsetof(struct ibv_qp_attr, {field}));')
    lines.append('printf("rkey %zu\\n", offsetof(struct ibv_send_wr, wr.rdma.rkey)); return 0; }')
    source, program = folder / "layout.c", folder / "layout"
    source.write_text("\n".join(lines))
    null_provider.compile_c([source], program, (f"-I{SOURCES}",))
    program.chmod(0o755)
    return subprocess.check_output([program], text=True, timeout=30)


#: of which the header has more than ours
CUT = {
    *("ibv_device", "ibv_context", "ibv_pd", "ibv_mr", "ibv_comp_channel", "ibv_qp", "ibv_cq", "ibv_srq"),
    *("ibv_global_route", "ibv_ah_attr"),
}
#: of fields that stand for others, or that are different in the header
UNNAMED = {
    *("unused_ops", "before", "between", "after", "end", "rest", "room", "raw", "aligned", "mutex"),
    *("wr", "qp_type_room", "void", "int"),
}


def test_the_layout_is_that_of_the_header(tmp_path: Path) -> None:
    if not HEADER.exists():
        pytest.skip("no header of libibverbs: apt-get install libibverbs-dev")
    try:
        ours = layout('"verbs_abi.h"', tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    theirs = layout("<infiniband/verbs.h>", tmp_path)
    assert ours == theirs and ours.count("\n") > 150


def test_two_processes_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null_provider, "_FLAGS", ("-O0", "-shared", "-fPIC", "-pthread"))
    try:
        with ThreadPoolExecutor() as pool:
            first, second = pool.map(null_provider.build, [tmp_path] * 2)
    except Missing as missing:
        pytest.skip(str(missing))
    assert first == second and list(tmp_path.iterdir()) == [first]
    begun = first.stat().st_mtime_ns
    assert null_provider.build(tmp_path).stat().st_mtime_ns == begun


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null_provider.shutil, "which", lambda _: None)
    with pytest.raises(Missing, match="gcc"):
        null_provider.build(tmp_path)


# -- through the binding ---------------------------------------------------------------------------


class Ends:
    """Two queue pairs of one device, driven by hand."""

    def __init__(self) -> None:
        self.pairs = [RawPair("null0", 1 << 16) for _ in range(2)]
        gid = bytes(10) + b"\xff\xff\x7f\0\0\1"
        for pair, peer in zip(self.pairs, reversed(self.pairs), strict=True):
            pair.connect(peer.number, gid, peer.rkey, psn=7, our_psn=7, gid_index=1)
        self.memory = self.pairs[1].memory

    def send(self) -> None:
        self.pairs[0].send(64, 1)

    def read(self) -> None:
        peer = self.pairs[1]
        self.pairs[0].read(peer.address + 4096, peer.rkey, 64, 2)

    def statuses(self) -> list[int]:
        """Of what completed at the first."""
        return [one.status for one in self.pairs[0].poll() if one.wr_id != RECEIVE]

    def close(self) -> None:
        for pair in self.pairs:
            pair.close()


@pytest.fixture
def ends(null: NullProvider) -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


class Channels:
    """A device with two channels of the core, connected to each other."""

    def __init__(self) -> None:
        from transfer.transports.core.native.ring_channel import RingChannel
        from transfer.transports.core.native.verbs import VerbsDevice, VerbsRegion

        self.device = VerbsDevice("null0")
        self.channels = [RingChannel(self.device, 1 << 16) for _ in range(2)]
        memory = bytearray(4096)
        self.region = VerbsRegion(self.device, ctypes.addressof(ctypes.c_char.from_buffer(memory)), 4096, 1)
        gid = self.device.gid(1, 1)
        for one, peer in zip(self.channels, reversed(self.channels), strict=True):
            one.connect(
                peer.address, peer.rkey, peer.size, peer.number, gid, 0, 7, 4096, 4, 14, 6, 1, 1, 7, *[0] * 3
            )

    def close(self) -> None:
        for one in (*self.channels, self.region, self.device):
            one.close()


def test_what_is_not_closed_is_closed_when_it_is_collected(null: NullProvider) -> None:
    """In the right order: channels and regions before the device."""
    made = Channels()
    made.itself = made  # type: ignore[attr-defined]  # only the collector finds it
    assert null.left()
    del made
    gc.collect()
    assert not null.left()


def test_a_device_is_closed_last(null: NullProvider) -> None:
    made = Channels()
    with pytest.raises(OSError, match="closing the device") as caught:
        made.device.close()
    assert caught.value.errno == errno.EBUSY
    assert made.device.gid(1, 1), "and all goes on"
    made.close()
    with pytest.raises(OSError, match="closed"):
        made.channels[0].connect(*[0] * 4, bytes(16), *[0] * 12)
    assert not null.left()


def test_a_forked_child_leaves_its_parent_s_objects(null: NullProvider) -> None:
    made = Channels()
    child = os.fork()
    if not child:
        try:
            made.close()  # nothing, and nothing is raised
            made.device.gid(1, 1)
        except OSError as error:
            os._exit(error.errno or 0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.ENODEV
    assert made.device.gid(1, 1)
    made.close()
    assert not null.left()


@pytest.mark.parametrize("fault", ["register=12", "pair=12"])
def test_a_channel_that_cannot_be_made_leaves_nothing(null: NullProvider, fault: str) -> None:
    from transfer.transports.core.native.ring_channel import RingChannel
    from transfer.transports.core.native.verbs import VerbsDevice

    device = VerbsDevice("null0")
    descriptors = len(os.listdir("/proc/self/fd"))
    null.fault(fault, 0, 3)  # a queue pair is asked for with less inline data, too
    with pytest.raises(OSError, match=r"registering|queue pair"):
        RingChannel(device, 1 << 16)
    null.fault("clear")
    assert len(os.listdir("/proc/self/fd")) == descriptors
    device.close()
    assert not null.left()


def test_it_reads_writes_and_sends(ends: Ends) -> None:
    ends.memory[4096:4100] = b"read"
    ends.read()
    assert ends.pairs[0].poll() == [Done(2, 0, 2, 0)]
    assert ends.pairs[0].memory[:4] == b"read"
    ends.pairs[0].write(ends.pairs[1].address + 100, b"written", 77, which=3)
    assert ends.pairs[1].poll() == [Done(RECEIVE, 0, 129, 77)]
    assert ends.memory[100:107] == b"written"
    assert ends.pairs[0].poll() == [Done(3, 0, 1, 0)]


def test_a_lost_completion_and_a_late_one(ends: Ends, null: NullProvider) -> None:
    null.fault("lose:read")
    null.fault("late=3:read", 1)
    for _ in range(3):
        ends.read()
    assert [len(ends.statuses()) for _ in range(4)] == [1, 0, 0, 1]


def test_a_chosen_status_ends_the_pair(ends: Ends, null: NullProvider) -> None:
    null.fault("status=9")
    ends.read()
    ends.read()
    assert ends.statuses() == [9, 5]


def test_nobody_has_to_poll_for_a_timeout(ends: Ends) -> None:
    """A sender without a receive buffer: its descriptor wakes it in time, and it costs nothing until then."""
    pair = ends.pairs[0]
    for _ in range(RECEIVES + 1):
        pair.write(ends.pairs[1].address, b"", 1)
    while pair.poll():
        pass
    pair.arm()
    poller = select.poll()
    poller.register(pair.channel.fd, select.POLLIN)
    used, begun = time.process_time(), time.monotonic()
    while not (found := ends.statuses()):
        assert poller.poll(5000)
    assert found[0] == 13
    pair.take_event()
    assert 0.4 < time.monotonic() - begun < 3 and time.process_time() - used < 0.1


def test_it_counts_what_happens(null: NullProvider) -> None:
    before = {what: null.count(what) for what in ("sends", "reads")}
    made = Ends()
    made.read()
    made.close()
    assert null.count("reads") == before["reads"] + 1 and null.count("sends") == before["sends"]


# -- the transport on it ---------------------------------------------------------------------------


def test_the_probe_sees_a_device(null: NullProvider) -> None:
    found = probe("rdma")
    assert found.usable and found.details["route"] == "null0 port 1 GID 1 (127.0.0.1)"
    assert load().devices() == devices() == ["null0"]
    null.fault("down")
    transfer.transports.probe.forget()
    assert probe("rdma").word == "link"


def test_little_memory_to_lock(over_null: World, null: NullProvider) -> None:
    with meet(over_null) as ends:
        null.fault(f"memlock={64 << 20}")
        for data in (bytes(65 << 20), b"after"):  # the first one goes through the ring
            ends.connecting.send(plain(data))
            got = until(lambda: (ends.connecting.flush() and False) or ends.accepting.receive(), "it")
            assert got[0].bytes == data
        assert ends.connecting.carrier.refused.total() == 1


def test_no_queue_pair_is_left(over_null: World, null: NullProvider) -> None:
    null.fault(f"pair={errno.ENOMEM}", 0, 3)  # asked for with less inline data, too
    with pytest.raises(Declined, match="ENOMEM"):
        over_null.connect(over_null.socket(), over_null.socket())
    over_null.connect(over_null.socket(), over_null.socket())


@pytest.mark.parametrize("phase", PHASES)
def test_a_peer_is_killed(phase: str, null: NullProvider) -> None:
    with world() as made:
        hub = made.socket()
        near, there = made.connect(made.socket(), hub)
        prepare = null_provider.Entrance(null_provider.environment(null.name))
        one_kill(made, hub, phase, random.Random(3), prepare)
        near.send(plain(b"others go on"))
        assert receive(there)[0].bytes == b"others go on"


PROGRAM = """
import sys, transfer
with transfer.Context(protocol="rdma", policy="require") as context, context.socket(transfer.PUSH) as push:
    push.sndtimeo = 20000
    push.connect(sys.argv[1])
    for number in range(200):
        push.send(bytes([number]) * (1 + number * 300))
    push.close(20000)
"""


def test_another_program_uses_it(null: NullProvider, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with transfer.Context(protocol="rdma") as context, context.socket(transfer.PULL) as pull:
        pull.bind("tcp://127.0.0.1:0")
        pull.rcvtimeo = 20_000
        command = [sys.executable, "-m", "tests.rdma.null_provider", program, pull.last_endpoint]
        with subprocess.Popen(command) as started:
            for number in range(200):
                assert pull.recv() == bytes([number]) * (1 + number * 300)
            assert {peer.transport for peer in pull.peers()} <= {"rdma"}
            assert started.wait(20) == 0


def run(null: NullProvider, code: str, **variables: str) -> str:
    environment = {**os.environ, **null_provider.environment(null.name), **variables}
    command = [sys.executable, "-c", "from tests.rdma.test_null_provider import Ends\n" + code]
    return subprocess.check_output(command, env=environment, text=True, timeout=30).strip()


def test_a_fault_and_no_copies_from_the_environment(null: NullProvider) -> None:
    code = "ends = Ends(); ends.memory[4096] = 9; ends.read(); "
    code += "ends.read(); print(ends.statuses(), ends.pairs[0].memory[0]); ends.close()"
    said = run(null, code, NULL_VERBS_COPY="0", NULL_VERBS_FAULT="lose:send;status=10:read,1,1")
    assert said == "[0, 10] 0"


def test_leftovers_of_a_killed_process_go(null: NullProvider) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run(null, "import os; ends = Ends(); os.kill(os.getpid(), 9)")
    assert len(null.left()) == 1  # its process; names of connected pairs went when they were connected
    made: Any = Ends()
    assert null.left() == [f"{null.name}.{os.getpid()}"]
    made.close()
    assert not null.left()
