"""Selects device, port and GID, from /sys/class/infiniband and the variables that Mooncake has too.

| variable | meaning |
|---|---|
| MC_RDMA_DEVICES | names of devices, separated by commas; the first usable one is selected |
| MC_IB_PORT | the port's number |
| MC_GID_INDEX | the index of the GID |
| MC_MTU | the most bytes of a packet: 256, 512, 1024, 2048, 4096 |
| MC_IB_TC, MC_IB_SL | traffic class and service level: in which queue switches put the packets |
| MC_PKEY_INDEX | the index of the partition's key |

`look` reads files, the rest is pure.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transfer.transports.config import rdma_wishes
from transfer.transports.errors import DeviceError
from transfer.transports.rdma.driver import DeviceHandle

SYSTEM = Path("/sys/class/infiniband")
#: tables have up to 1024 places, one file each; the search ends after this many empty ones
_GAP = 32
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True, slots=True)
class Gid:
    """index: in the port's table. text: like an IPv6 address. kind: "IB/RoCE v1", "RoCE v2" or "".
    interface: the network interface of the GID, or ""."""

    index: int
    text: str
    kind: str = ""
    interface: str = ""


@dataclass(frozen=True, slots=True)
class DevicePort:
    number: int
    active: bool
    link: str  # "Ethernet" or "InfiniBand"
    rate: float  # Gb/s
    gids: tuple[Gid, ...] = ()
    pkeys: int = 0  # indexes of partitions' keys; 0: unknown


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    ports: tuple[DevicePort, ...] = ()


@dataclass(frozen=True, slots=True)
class Wishes:
    """The settings of the environment; None or () for one that is not set."""

    devices: tuple[str, ...] = ()
    port: int | None = None
    gid_index: int | None = None
    mtu: int | None = None
    traffic_class: int = 0
    service_level: int = 0
    pkey_index: int = 0


@dataclass(frozen=True, slots=True)
class DeviceRoute:
    """The selected device, port and GID. mtu: the most bytes of a packet. gid: as text. traffic_class,
    service_level, pkey_index: of the queue pairs."""

    device: str
    port: int
    gid_index: int
    gid: str
    mtu: int
    lid: int = 0
    why: str = ""
    traffic_class: int = 0
    service_level: int = 0
    pkey_index: int = 0

    def seen_by(self, device: DeviceHandle) -> DeviceRoute:
        """This route with the values that only the open device has. Raises DeviceError if the link is
        down."""
        state = device.port(self.port)
        if not state.active:
            raise _link_down(self.device, self.port)
        gid = device.gid(self.port, self.gid_index)
        return replace(self, mtu=min(self.mtu, state.mtu), lid=state.lid, gid=gid)

    def __str__(self) -> str:
        return f"{self.device} port {self.port} GID {self.gid_index} ({_readable(self.gid)})"


def wishes_of(environ: Mapping[str, str] | None = None) -> Wishes:
    """Reads the settings. Raises OptionError for an invalid value."""
    given = rdma_wishes(environ)
    names = tuple(name.strip() for name in given.get("MC_RDMA_DEVICES", "").split(",") if name.strip())
    port, gid, mtu = (
        int(given[name]) if name in given else None for name in ("MC_IB_PORT", "MC_GID_INDEX", "MC_MTU")
    )
    classes = (int(given.get(name, "0")) for name in ("MC_IB_TC", "MC_IB_SL", "MC_PKEY_INDEX"))
    return Wishes(names, port, gid, mtu, *classes)


def choose(devices: Sequence[Device], wishes: Wishes) -> DeviceRoute:
    """Selects the fastest active port of the permitted devices. Pure. Raises DeviceError."""
    if not devices:
        raise DeviceError("no_device", "this machine has no RDMA device", hint="see `ibv_devices`")
    allowed = list(devices)
    if wishes.devices:
        by_name = {device.name: device for device in devices}
        allowed = [by_name[name] for name in wishes.devices if name in by_name]
        if not allowed:
            raise DeviceError(
                "no_device",
                f"MC_RDMA_DEVICES names {', '.join(wishes.devices)}; here are {', '.join(sorted(by_name))}",
                hint="unset it, or name one of them",
            )
    found: list[tuple[Device, DevicePort]] = [
        (device, port)
        for device in allowed
        for port in device.ports
        if port.active and (wishes.port is None or port.number == wishes.port)
    ]
    if not found:
        raise _link_down(", ".join(device.name for device in allowed), wishes.port, " (MC_IB_PORT)")
    # A list of names is an order; without one the faster link comes first.
    device, port = found[0] if wishes.devices else max(found, key=lambda pair: pair[1].rate)
    gid = choose_gid(port, wishes.gid_index)
    if gid is None:
        raise DeviceError(
            "no_gid",
            f"{device.name} port {port.number} has no GID"
            + ("" if wishes.gid_index is None else f" with the index {wishes.gid_index} (MC_GID_INDEX)"),
            hint=f"unset MC_GID_INDEX, or set one of {', '.join(str(one.index) for one in port.gids)}"
            if wishes.gid_index is not None and port.gids
            else "give its network interface an address",
        )
    if port.pkeys and wishes.pkey_index >= port.pkeys:
        raise DeviceError(
            "no_pkey",
            f"{device.name} port {port.number} has no partition key with the index {wishes.pkey_index}"
            f" (MC_PKEY_INDEX), only up to {port.pkeys - 1}",
            hint="unset MC_PKEY_INDEX; /sys/class/infiniband/*/ports/*/pkeys shows the keys",
        )
    why = "MC_RDMA_DEVICES" if wishes.devices else "the only one" if len(found) == 1 else "the fastest link"
    return DeviceRoute(
        *(device.name, port.number, gid.index, gid.text),
        wishes.mtu or 4096,
        why=why,
        traffic_class=wishes.traffic_class,
        service_level=wishes.service_level,
        pkey_index=wishes.pkey_index,
    )


def choose_gid(port: DevicePort, index: int | None = None) -> Gid | None:
    """InfiniBand: the port's first GID. Ethernet: RoCE v2 with an IPv4 address, then with a global IPv6
    address, then with a link-local one, then RoCE v1."""
    gids = [gid for gid in port.gids if gid.text != _NO_GID]
    if index is not None:
        return next((gid for gid in gids if gid.index == index), None)
    if port.link != "Ethernet":
        return gids[0] if gids else None
    return min(gids, key=_rank, default=None)


def _rank(gid: Gid) -> tuple[bool, int, int]:
    address = ipaddress.IPv6Address(gid.text)
    kind = 0 if address.ipv4_mapped is not None else 2 if address.is_link_local else 1
    return (gid.kind != "RoCE v2", kind, gid.index)


def _readable(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def _link_down(device: str, port: int | None, asked_by: str = "") -> DeviceError:
    which = "no port is active" if port is None else f"port {port}{asked_by} is not active"
    return DeviceError("link", f"{device}: {which}", hint="see `rdma link` and `ibv_devinfo`")


# --- reading the system ------------------------------------------------------------------------


def look(system: Path = SYSTEM) -> list[Device]:
    """All devices with their ports, by name. Never raises; needs no library and no permissions."""
    try:
        names = sorted(os.listdir(system))
    except OSError:
        return []
    return [Device(name, tuple(_ports(system / name / "ports"))) for name in names]


def choose_route(environ: Mapping[str, str] | None = None, system: Path = SYSTEM) -> DeviceRoute:
    """The route that this process uses. Raises DeviceError, OptionError."""
    return choose(look(system), wishes_of(environ))


def _ports(folder: Path) -> list[DevicePort]:
    ports = []
    for name in sorted(_names(folder), key=int):
        state = _text(folder / name / "state")
        rate = _text(folder / name / "rate").split(" ")[0]
        ports.append(
            DevicePort(
                int(name),
                state.startswith("4"),
                _text(folder / name / "link_layer"),
                float(rate) if rate.replace(".", "", 1).isdecimal() else 0.0,
                tuple(_gids(folder / name)),
                len(_names(folder / name / "pkeys")),
            )
        )
    return ports


def _gids(folder: Path) -> list[Gid]:
    found: list[Gid] = []
    empty = 0
    for index in sorted(map(int, _names(folder / "gids"))):
        text = _text(folder / "gids" / str(index))
        if text and text != _NO_GID:
            empty = 0
            kind = _text(folder / "gid_attrs" / "types" / str(index))
            interface = _text(folder / "gid_attrs" / "ndevs" / str(index))
            found.append(Gid(index, text, kind, interface))
        elif (empty := empty + 1) >= _GAP:
            break
    return found


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdecimal()]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # an empty place in the table of GIDs answers EINVAL
        return ""
