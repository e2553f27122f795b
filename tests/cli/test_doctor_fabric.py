"""What `transfer doctor` says of the network below rdma."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transfer.doctor import fabric
from transfer.doctor.fabric import FabricFacts, facts, judge
from transfer.transports.gpu import GpuRoute, Way
from transfer.transports.rdma.device_selection import Device, DevicePort, DeviceRoute, Gid

GID = Gid(3, "0000:0000:0000:0000:0000:ffff:0a4d:0001", "RoCE v2", "eth2")
PORT = DevicePort(1, True, "Ethernet", 200.0, (GID,))
GOOD = FabricFacts(
    (Device("mlx5_0", (PORT,)),), DeviceRoute("mlx5_0", 1, 3, GID.text, 4096), 4096, "eth2", 9000,
    pauses={"rx_prio3_pause": 7, "tx_prio3_pause": 0}, gpu=Way(GpuRoute.DMABUF, "it can be exported"),
)  # fmt: skip


def said(seen):
    return {check.name.removeprefix("rdma "): check for check in judge(seen)}


def with_gid(**changes):
    gid = replace(GID, **changes) if not isinstance(GID, tuple) else GID._replace(**changes)
    return replace(GOOD, devices=(Device("mlx5_0", (replace(PORT, gids=(gid,)),)),))


def test_nothing_where_there_is_no_device():
    assert list(judge(FabricFacts())) == []


def test_a_good_network():
    found = said(GOOD)
    assert {check.status for check in found.values()} == {"ok"}
    assert found["link mlx5_0/1"].detail == "active, Ethernet, 200 Gb/s"
    assert found["gid"].detail == "index 3, RoCE v2, eth2"
    assert found["flow control"].detail == "rx_prio3_pause 7"
    assert found["gpu memory"].detail == "dmabuf: it can be exported"


@pytest.mark.parametrize(
    ("seen", "name", "status", "words"),
    [
        (replace(GOOD, devices=(Device("mlx5_0", (replace(PORT, active=False),)),)), "link mlx5_0/1", "warn",
         ("not active", "cable")),
        (FabricFacts((Device("mlx5_0", (DevicePort(1, False, "InfiniBand", 0.0),)),)), "link mlx5_0/1",
         "warn", ("not active", "subnet manager")),
        (with_gid(kind="IB/RoCE v1"), "gid", "warn", ("RoCE v1", "MC_GID_INDEX")),
        (with_gid(text="fe80:0000:0000:0000:0000:0000:0000:0001"), "gid", "warn", ("eth2", "link-local")),
        (replace(GOOD, mtu=1024, interface_mtu=1500), "packet size", "warn",
         ("1024 bytes: eth2 has an MTU of 1500", "ip link set eth2 mtu 9000")),
        (replace(GOOD, mtu=1024), "packet size", "warn", ("1024", "MC_MTU")),
        (replace(GOOD, losses={"out_of_sequence": 1234}), "lost packets", "warn",
         ("out_of_sequence 1,234", "PFC")),
        (replace(GOOD, pauses={"rx_prio3_pause": 0}), "flow control", "ok", ("no pause frame", "PFC")),
        (replace(GOOD, pauses=None), "flow control", "off", ("eth2 cannot be read", "ethtool")),
        (replace(GOOD, gpu=Way(GpuRoute.STAGING, "no dma-buf")), "gpu memory", "warn",
         ("through the host: no dma-buf", "nvidia-peermem")),
        (replace(GOOD, gpu=Way(GpuRoute.PEERMEM, "it is loaded")), "gpu memory", "ok", ("peermem", "")),
    ],
)  # fmt: skip
def test_what_is_wrong_has_a_remedy(seen, name, status, words):
    check = said(seen)[name]
    assert check.status == status
    assert words[0] in check.detail and words[1] in check.hint
    assert status == "ok" or check.hint


def test_it_reads_the_kernel_s_files(tmp_path, monkeypatch):
    port = tmp_path / "mlx5_0/ports/1"
    for name, text in {
        "state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "link_layer": "Ethernet",
        "gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001", "gids/3": GID.text,
        "gid_attrs/types/3": "RoCE v2", "gid_attrs/ndevs/3": "lo",
        "hw_counters/out_of_sequence": "17", "hw_counters/packet_seq_err": "0",
        "hw_counters/lifespan": "12",
    }.items():  # fmt: skip
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(text + "\n")
    monkeypatch.setattr(fabric, "_packet_size", lambda route: 1024)
    seen = facts(tmp_path)
    assert seen.losses == {"out_of_sequence": 17}
    assert (seen.route.gid_index, seen.interface, seen.mtu) == (3, "lo", 1024)
    assert seen.interface_mtu > 0 and seen.pauses is None  # of loopback


def test_the_driver_of_an_interface_tells_its_counters():
    """By the same ioctl as ethtool, of whatever interface here has counters."""
    import socket

    found = {}
    for _, name in socket.if_nameindex():
        try:
            found[name] = fabric.ethtool_statistics(name)
        except OSError:
            continue
    if not any(found.values()):
        pytest.skip("no interface here has counters of its driver")
    for counters in found.values():
        assert all(name and count >= 0 for name, count in counters.items())
