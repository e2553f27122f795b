"""The transports: which work here, which could, which one the environment asks for."""

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
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import TransferError
from transfer.transports.handshake.choice import LOCAL
from transfer.transports.probe import Probe, names, probe
from transfer.transports.security.settings import Security

#: how long one self test may take, seconds
PATIENCE = 5.0
#: driven by somebody else's library
#: no protocol to wish for
_UNNAMED = frozenset({LOCAL, "ipc", "inproc"})
#: words of probes that mean: not there, and nobody expects it to be
_ABSENT = frozenset({"no_device", "missing", "switched_off", "system", "no_host_id"})


# --- self tests ---------------------------------------------------------------------------------


def self_tests() -> Iterator[Check]:
    """One message through each transport that needs no hardware, and through each that is usable."""
    yield _self_test("tcp", "tcp://127.0.0.1:0", "tcp")
    with tempfile.TemporaryDirectory(prefix="transfer-doctor-") as folder:
        yield _self_test("ipc", f"ipc://{folder}/socket", "ipc")
    yield _self_test("inproc", f"inproc://doctor-{os.getpid()}", "inproc")
    for name in names():
        found = probe(name)
        if found.usable:
            yield _explained(_local_test() if name == LOCAL else _apart(name), found)
        else:
            status = "off" if found.word in _ABSENT else "warn"
            yield Check("transports", name, status, found.reason, found.hint)


def _local_test() -> Check:
    return _self_test("local", "tcp://127.0.0.1:0", "local")


def _apart(name: str) -> Check:
    """The test in a process of its own: a broken driver may take the whole process with it."""
    command = [sys.executable, "-c", f"from transfer.doctor.transports import tell; tell({name!r})"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=6 * PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return Check("transports", name, "fail", "the test did not end", _hint(name))
    try:
        return Check(**json.loads(ended.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        detail = f"the test ended with status {ended.returncode}: {last}"
        return Check("transports", name, "fail", detail, _hint(name))


def tell(name: str) -> None:
    """Prints the finding of one self test as JSON: what `_apart` runs."""
    sys.stdout.write(json.dumps(asdict(_self_test(name, "tcp://127.0.0.1:0", name))) + "\n")


def _explained(check: Check, found: Probe) -> Check:
    if check.status != "ok" or found.better:
        return check
    detail = f"{check.detail}; used only where it is asked for: {found.reason}"
    return replace(check, detail=detail, hint=found.hint)


def _self_test(name: str, endpoint: str, wanted: str) -> Check:
    """Pushes one message through a socket pair of this transport."""
    from transfer.sockets.context import Context

    sent = b"doctor" * 20_000
    milliseconds = round(PATIENCE * 1000)
    protocol = "auto" if wanted in _UNNAMED else wanted
    policy = "auto" if protocol == "auto" else "require"
    try:
        with (
            # The transports themselves: certificates are looked at elsewhere, and may name other hosts.
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
        return Check("transports", name, "fail", f"{type(error).__name__}: {error}", _hint(name))
    if not same:
        return Check("transports", name, "fail", "a message arrived changed", _hint(name))
    if peer.transport != wanted:
        return Check("transports", name, "warn", f"not used: {peer.reason}", _hint(name))
    detail = f"a message went through{f' ({peer.device})' if peer.device else ''}"
    return Check("transports", name, "ok", detail)


def _hint(name: str) -> str:
    if name == "tcp":
        return "is a firewall closing the loopback interface?"
    return "report this with the output of `transfer doctor --json`"


# --- devices --------------------------------------------------------------------------------------


def devices() -> Iterator[Check]:
    """What the faster transports stand on."""
    for name in ("rdma", "ucx"):
        for key, value in probe(name).details.items():
            if value not in ("", (), [], {}, None):
                yield Check("devices", f"{name} {key}".replace("_", " "), "ok", _told(value))
    yield from _ucx()
    gpu = read("/proc/driver/nvidia/version").splitlines()
    if gpu:
        yield Check("devices", "cuda", "ok", gpu[0])
    else:
        yield Check("devices", "cuda", "off", "no NVIDIA driver", "tensors on the CPU need none")


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _ucx() -> Iterator[Check]:
    from transfer.transports.ucx.probe import report

    seen = report()
    if seen.installed:
        fabric = "with InfiniBand" if seen.infiniband else "without InfiniBand"
        told = f"UCX {seen.version} by {seen.driver}, from {', '.join(seen.copies)}, {fabric}"
        yield Check("devices", "libucx", "ok", told if seen.copies else "not loaded yet")
    for what, remedy in seen.warnings:
        yield Check("devices", "libucx", "warn", what, remedy)


# --- network --------------------------------------------------------------------------------------


def network() -> Iterator[Check]:
    """The interfaces that endpoints may name."""
    addresses = list(_interfaces())
    if addresses:
        told = ", ".join(f"{name} {address}" for name, address in addresses)
        yield Check("network", "interfaces", "ok", told)
    else:
        yield Check("network", "interfaces", "warn", "none found", "only loopback and ipc will do")


def _interfaces() -> Iterator[tuple[str, str]]:
    """(interface, IPv4 address), in the kernel's order. Linux only."""
    if sys.platform != "linux":
        return
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asked, 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue  # up, but without an IPv4 address
            yield name, socket.inet_ntoa(answer[20:24])


# --- what decides the transport ---------------------------------------------------------------------


def protocol() -> Iterator[Check]:
    """The wish in force and the variable that made it, and whether it can be met."""
    try:
        chosen = config.load()
    except TransferError as error:
        yield Check("protocol", "protocol", "fail", str(error))
        return
    found = probe(chosen.protocol) if chosen.protocol in names() else Probe(True)
    yield Check(
        "protocol",
        "protocol",
        "ok" if found.usable else "warn",
        f"{chosen.protocol} ({_source(chosen.protocol_source)})",
        "" if found.usable else f"falls back to another transport: {found.reason}",
    )
    required = chosen.policy == "require" and not found.usable
    yield Check(
        "protocol",
        "policy",
        "fail" if required else "ok",
        f"{chosen.policy} ({_source(chosen.policy_source)})",
        "every connect will fail: set MC_RPC_POLICY=prefer" if required else "",
    )


def _source(name: str) -> str:
    return "the default" if name == "default" else f"set by {name}"
