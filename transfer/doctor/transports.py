"""Checks the transports: which work, which are missing, which one the environment selects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from transfer.doctor.finding import Check, read
from transfer.transports import config
from transfer.transports.address import LOCAL
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import DeviceError, TransferError
from transfer.transports.probe import Probe, names, probe
from transfer.transports.security.settings import Security

#: seconds that one self test may take
_PATIENCE = 5.0
#: transports that no protocol option selects
_UNNAMED = frozenset({LOCAL, "ipc", "inproc"})
#: results of probes for transports that are absent and optional
_ABSENT = frozenset({"no_device", "missing", "switched_off", "system", "no_host_id"})
#: of a probe's details those that `fabric` judges
_JUDGED = frozenset({"gid_index", "mtu", "peermem"})


# --- self tests ---------------------------------------------------------------------------------


def self_tests() -> Iterator[Check]:
    """Sends a message through each transport that needs no hardware, and through each usable one."""
    try:
        config.load()
    except TransferError:
        yield Check("transports", "tests", "off", "not run: a variable is wrong", "see protocol below")
        return
    yield _self_test("tcp", "tcp://127.0.0.1:0", "tcp")
    with tempfile.TemporaryDirectory(prefix="transfer-doctor-") as folder:
        yield _self_test("ipc", f"ipc://{folder}/socket", "ipc")
    yield _self_test("inproc", f"inproc://doctor-{os.getpid()}", "inproc")
    for name in names():
        found = probe(name)
        if found.usable:
            yield _explained(_local_test() if name == LOCAL else _test_in_process(name), found)
        else:
            yield Check("transports", name, _status(found), found.reason, found.hint)


def _status(found: Probe) -> str:
    """The status of a transport that cannot be used: what a user set has to have an effect."""
    if config.settings_in(found.reason):
        return "fail"
    return "off" if found.word in _ABSENT else "warn"


def _local_test() -> Check:
    return _self_test("local", "tcp://127.0.0.1:0", "local")


def _test_in_process(name: str) -> Check:
    """Runs a self test in another process: a broken driver may crash the process."""
    command = [sys.executable, "-c", f"from transfer.doctor.transports import report; report({name!r})"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=6 * _PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return Check("transports", name, "fail", "the test did not end", _hint(name))
    try:
        return Check(**json.loads(ended.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        detail = f"the test ended with status {ended.returncode}: {last}"
        return Check("transports", name, "fail", detail, _hint(name))


def report(name: str) -> None:
    """Prints the finding of one self test as JSON, for `_test_in_process`."""
    sys.stdout.write(json.dumps(asdict(_self_test(name, "tcp://127.0.0.1:0", name))) + "\n")


def _explained(check: Check, found: Probe) -> Check:
    if check.status != "ok" or found.better:
        return check
    detail = f"{check.detail}; used only if it is selected: {found.reason}"
    return replace(check, detail=detail, hint=found.hint)


def _self_test(name: str, endpoint: str, wanted: str) -> Check:
    """Pushes one message through a socket pair of this transport."""
    from transfer.sockets.context import Context

    sent = b"doctor" * 20_000
    milliseconds = round(_PATIENCE * 1000)
    protocol = "auto" if wanted in _UNNAMED else wanted
    policy = "auto" if protocol == "auto" else "require"
    try:
        with (
            # Without TLS: another check verifies the certificates, which may be for other hosts.
            Context(protocol=protocol, policy=policy, security=Security()) as context,
            context.socket(SocketType.PULL) as pull,
            context.socket(SocketType.PUSH) as push,
        ):
            push.sndtimeo = pull.rcvtimeo = milliseconds
            pull.bind(endpoint)
            push.connect(pull.last_endpoint)
            push.send(sent)
            same = pull.recv() == sent
            (peer,) = push.peers()
    except (TransferError, OSError) as error:
        what = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        return Check("transports", name, "fail", what, getattr(error, "hint", "") or _hint(name))
    if not same:
        return Check("transports", name, "fail", "a message arrived changed", _hint(name))
    if peer.transport != wanted:
        return Check("transports", name, "warn", f"not used: {peer.reason}", _hint(name))
    detail = f"a message was transferred{f' ({peer.device})' if peer.device else ''}"
    return Check("transports", name, "ok", detail)


def _hint(name: str) -> str:
    if name == "tcp":
        return "is a firewall closing the loopback interface?"
    return "report this with the output of `transfer doctor --json`"


# --- devices --------------------------------------------------------------------------------------


def devices() -> Iterator[Check]:
    """Checks the devices of the faster transports."""
    for name in ("rdma", "ucx"):
        for key, value in probe(name).details.items():
            if key not in _JUDGED and value not in ("", (), [], {}, None):
                yield Check("devices", f"{name} {key}".replace("_", " "), "ok", _shown(value))
    yield from _ucx()
    yield _cuda()


def _cuda() -> Check:
    kernel = read("/proc/driver/nvidia/version").splitlines()
    try:
        from transfer.transports.core.native import libcuda  # type: ignore[attr-defined]

        version, count = libcuda.version(), libcuda.device_count()
    except ImportError:
        return Check("devices", "cuda", "off", "the pure core calls no CUDA driver", "see the core above")
    except DeviceError as error:
        if kernel:
            return Check("devices", "cuda", "warn", f"{kernel[0]}, but {error}", error.hint)
        return Check("devices", "cuda", "off", "no NVIDIA driver", "tensors on the CPU need none")
    gpus = f"{count} GPU{'s' if count != 1 else ''}"
    return Check("devices", "cuda", "ok", f"{gpus}, driver of CUDA {version // 1000}.{version % 1000 // 10}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _ucx() -> Iterator[Check]:
    from transfer.transports.ucx import probe as ucx_probe

    seen = ucx_probe.report()
    if seen.installed:
        fabric = "with InfiniBand" if seen.infiniband else "without InfiniBand"
        library = f"UCX {seen.version} by {seen.driver}, from {', '.join(seen.copies)}, {fabric}"
        yield Check("devices", "libucx", "ok", library if seen.copies else "not loaded yet")
    for what, remedy in seen.warnings:
        yield Check("devices", "libucx", "warn", what, remedy)


# --- network --------------------------------------------------------------------------------------


def network() -> Iterator[Check]:
    """Lists the interfaces that endpoints may name."""
    addresses = list(_interfaces())
    if addresses:
        found = ", ".join(f"{name} {address}" for name, address in addresses)
        yield Check("network", "interfaces", "ok", found)
    else:
        yield Check("network", "interfaces", "warn", "none found", "only loopback and ipc work")


def _interfaces() -> Iterator[tuple[str, str]]:
    """Yields (interface, IPv4 address) in the kernel's order. Linux only."""
    if sys.platform != "linux":
        return
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(control, 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue  # up, but without an IPv4 address
            yield name, socket.inet_ntoa(answer[20:24])


# --- what decides the transport ---------------------------------------------------------------------


def protocol() -> Iterator[Check]:
    """Checks the selected protocol and policy, with their sources."""
    try:
        chosen = config.load()
    except TransferError as error:
        yield Check("protocol", "protocol", "fail", str(error).split("\n", 1)[0], error.hint)
        return
    found = probe(chosen.protocol) if chosen.protocol in names() else Probe(True)
    shown = f"{chosen.protocol} ({_source(chosen.protocol_source)})"
    if found.usable:
        yield Check("protocol", "protocol", "ok", shown)
    else:
        shown += f", which this process does not have: {found.reason}"
        yield Check("protocol", "protocol", "warn", shown, found.hint)
    policy = f"{chosen.policy} ({_source(chosen.policy_source)})"
    if found.usable:
        yield Check("protocol", "policy", "ok", policy)
    elif chosen.policy == "require":
        hint = "every connect will fail: set MC_RPC_POLICY=prefer"
        yield Check("protocol", "policy", "fail", policy, hint)
    else:
        yield Check("protocol", "policy", "ok", f"{policy}: connections use another transport instead")


def _source(name: str) -> str:
    return "the default" if name == "default" else f"set by {name}"
