"""Checks the network below rdma: links, GID, packet size, lost packets, flow control, GPU memory.

`facts` reads files of the kernel and asks the network interface; all judgements are pure.
"""

from __future__ import annotations

import fcntl
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from transfer.doctor.finding import Check, read
from transfer.transports import cuda, gpu
from transfer.transports.base import Capabilities
from transfer.transports.errors import TransferError
from transfer.transports.gpu import GpuRoute, Way
from transfer.transports.rdma import device_selection
from transfer.transports.rdma.device_selection import Device, DevicePort, DeviceRoute, Gid

#: counters of retransmissions: of mlx5 and bnxt_re (one vocabulary), and of Soft-RoCE
_LOSSES = (
    *("local_ack_timeout_err", "out_of_sequence", "packet_seq_err", "implied_nak_seq_err"),
    *("rnr_nak_retry_err", "completer_retry_err", "retry_exceeded_err", "out_of_seq_request"),
)
#: counters of pause frames of one priority, by names that drivers have
_PAUSE = re.compile(r"(rx|tx)_(prio\d_pause|pfc_ena_frames_pri\d|priority_xo(n|ff)_\d)$")
#: an interface's MTU for packets of 4096 bytes: the headers of IP, UDP and InfiniBand are in it
_ROOM = 4200
_SIOCETHTOOL, _GSSET_INFO, _GSTRINGS, _GSTATS, _STATISTICS, _NAME = 0x8946, 0x37, 0x1B, 0x1D, 1, 32


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """devices: all. route: the selected one, or None. mtu: bytes of its packets, 0: unknown. interface: its
    network interface, whose MTU is `interface_mtu`. losses: counters above zero. pauses: pause frames by
    counter; None: they cannot be read. gpu: how the card reaches memory of GPU 0; None: there is no GPU."""

    devices: tuple[Device, ...] = ()
    route: DeviceRoute | None = None
    mtu: int = 0
    interface: str = ""
    interface_mtu: int = 0
    losses: Mapping[str, int] = field(default_factory=dict)
    pauses: Mapping[str, int] | None = None
    gpu: Way | None = None


def fabric() -> Iterator[Check]:
    """Checks what rdma needs of the network; nothing where there is no device."""
    yield from judge(facts())


def judge(seen: FabricFacts) -> Iterator[Check]:
    """Pure."""
    for device in seen.devices:
        for each in device.ports:
            yield _link(device, each)
    if seen.route is None:
        return
    port, gid = _selected(seen.devices, seen.route)
    if port is not None and port.link == "Ethernet" and gid is not None:
        yield _gid(gid)
    if seen.mtu:
        yield _packet(seen, port)
    yield _lost(seen.losses)
    if port is not None and port.link == "Ethernet":
        yield _flow_control(seen)
    if seen.gpu is not None:
        yield _gpu(seen.gpu)


def _selected(devices: tuple[Device, ...], route: DeviceRoute) -> tuple[DevicePort | None, Gid | None]:
    for device in devices:
        for port in device.ports:
            if (device.name, port.number) == (route.device, route.port):
                return port, next((gid for gid in port.gids if gid.index == route.gid_index), None)
    return None, None


def _link(device: Device, port: DevicePort) -> Check:
    name = f"rdma link {device.name}/{port.number}"
    if port.active:
        return Check("devices", name, "ok", f"active, {port.link}, {port.rate:g} Gb/s")
    hint = "cable and switch port; `rdma link`"
    if port.link == "InfiniBand":
        hint = "cable, and a subnet manager (opensm, or the switch's); `ibstat`"
    return Check("devices", name, "warn", f"not active, {port.link or 'unknown link'}", hint)


def _gid(gid: Gid) -> Check:
    what = f"index {gid.index}, {gid.kind or 'unknown version'}, {gid.interface or 'no interface'}"
    if gid.kind != "RoCE v2":
        hint = "RoCE v1 does not cross routers: give the interface an IPv4 address, or set MC_GID_INDEX"
        return Check("devices", "rdma gid", "warn", what, hint)
    if gid.text.lower().startswith("fe80"):
        hint = "a link-local address reaches this segment only: give the interface an IPv4 address"
        return Check("devices", "rdma gid", "warn", what, hint)
    return Check("devices", "rdma gid", "ok", what)


def _packet(seen: FabricFacts, port: DevicePort | None) -> Check:
    what = f"{seen.mtu} bytes"
    if seen.mtu >= 4096 or port is None:
        return Check("devices", "rdma packet size", "ok", what)
    if port.link == "InfiniBand":
        hint = "the subnet manager chooses it: 4096 needs less processor"
    elif 0 < seen.interface_mtu < _ROOM:
        what += f": {seen.interface} has an MTU of {seen.interface_mtu}"
        hint = f"ip link set {seen.interface} mtu 9000, if all switches between the nodes take it"
    else:
        hint = "is MC_MTU set?"
    return Check("devices", "rdma packet size", "warn", what, hint)


def _lost(losses: Mapping[str, int]) -> Check:
    if not losses:
        return Check("devices", "rdma lost packets", "ok", "none since the start of the machine")
    found = ", ".join(f"{name} {count:,}" for name, count in losses.items())
    hint = "if they grow under load: flow control (PFC) or ECN on all switches, and one MTU on the whole way"
    return Check("devices", "rdma lost packets", "warn", found, hint)


def _flow_control(seen: FabricFacts) -> Check:
    check = partial(Check, "devices", "rdma flow control")
    if seen.pauses is None:
        where = seen.interface or "the interface"
        return check("off", f"the counters of {where} cannot be read", "`ethtool -S`")
    used = ", ".join(f"{counter} {count:,}" for counter, count in seen.pauses.items() if count)
    if used:
        return check("ok", used)
    return check("ok", "no pause frame so far", "without PFC or ECN a loaded RoCE network loses packets")


def _gpu(way: Way) -> Check:
    if way.route is not GpuRoute.STAGING:
        return Check("devices", "rdma gpu memory", "ok", f"{way.route.value}: {way.reason}")
    hint = "modprobe nvidia-peermem; or rdma-core 34, Linux 5.12 and NVIDIA's open kernel modules for dma-buf"
    return Check("devices", "rdma gpu memory", "warn", f"through the host: {way.reason}", hint)


# --- reading ---------------------------------------------------------------------------------------


def facts(system: Path = device_selection.SYSTEM) -> FabricFacts:
    """Never raises."""
    devices = tuple(device_selection.look(system))
    if not devices:
        return FabricFacts()
    try:
        route = device_selection.choose_route(system=system)
    except TransferError:  # the probe's check says why
        return FabricFacts(devices)
    _, gid = _selected(devices, route)
    interface = gid.interface if gid is not None else ""
    mtu = read(f"/sys/class/net/{interface}/mtu") if interface else ""
    return FabricFacts(
        devices,
        route,
        _packet_size(route),
        interface,
        int(mtu) if mtu.isdecimal() else 0,
        _losses(system / route.device / "ports" / str(route.port) / "hw_counters"),
        _pauses(interface),
        _way_of_gpu(),
    )


def _packet_size(route: DeviceRoute) -> int:
    """Opens the device, as a connection does."""
    from transfer.transports.rdma.driver import load

    try:
        device = load().open(route.device)
        try:
            return route.seen_by(device).mtu
        finally:
            device.close()
    except TransferError:  # the probe's check says why
        return 0


def _way_of_gpu() -> Way | None:
    try:
        driver = cuda.load()
        if driver is None:
            return None
        machine = cuda.receiving_machine(driver, 0, registers=True)
        return gpu.decide_receiving(gpu.own_memory(0), Capabilities(registers_memory=True), machine)
    except TransferError:  # the check of the driver says why
        return None


def _losses(folder: Path) -> dict[str, int]:
    counters = {name: read(folder / name) for name in _LOSSES}
    return {name: int(text) for name, text in counters.items() if text.isdecimal() and int(text)}


def _pauses(interface: str) -> dict[str, int] | None:
    """Pause frames of each priority, from the interface's driver; None: it has no such counters."""
    try:
        counters = ethtool_statistics(interface)
    except OSError:
        return None
    return {name: count for name, count in counters.items() if _PAUSE.match(name)} or None


def ethtool_statistics(interface: str) -> dict[str, int]:
    """What `ethtool -S` prints. Raises OSError. (Linux: include/uapi/linux/ethtool.h)"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _STATISTICS, 0)
        count = struct.unpack_from("=I", _ethtool(control, interface, asked), 16)[0]
        empty = bytes(count * _NAME)
        names = _ethtool(control, interface, struct.pack("=III", _GSTRINGS, _STATISTICS, count) + empty)[12:]
        values = _ethtool(control, interface, struct.pack("=II", _GSTATS, count) + bytes(8 * count))[8:]
    return {
        names[at * _NAME : (at + 1) * _NAME].split(b"\0")[0].decode(errors="replace"): value
        for at, (value,) in enumerate(struct.iter_unpack("=Q", values))
    }


def _ethtool(control: socket.socket, interface: str, command: bytes) -> bytes:
    import ctypes

    memory = ctypes.create_string_buffer(command, len(command))
    request = struct.pack("16sP", interface.encode()[:15], ctypes.addressof(memory))
    fcntl.ioctl(control, _SIOCETHTOOL, request + bytes(40 - len(request)))
    return memory.raw
