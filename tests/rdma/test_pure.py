"""The pure parts of the rdma transport, against models."""

from __future__ import annotations

import errno

import pytest

from transfer.transports.errors import (
    DeviceError,
    OptionError,
    OutOfDescriptors,
    RegistrationError,
)
from transfer.transports.rdma import failures
from transfer.transports.rdma.device_selection import (
    Device,
    DevicePort,
    Gid,
    Wishes,
    choose,
    choose_gid,
    look,
    wishes_of,
)
from transfer.transports.rdma.failures import Circumstances, mapping_of, registration_cause

# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "now", "reason"),
    [
        (errno.ENOMEM, Circumstances(limit=65536), "memlock"),
        (errno.ENOMEM, Circumstances(limit=1 << 30, pinned=1 << 30), "memlock"),
        (errno.ENOMEM, Circumstances(limit=65536, locked=True), "memory"),
        (errno.ENOMEM, Circumstances(limit=-1), "memory"),
        (errno.ENOMEM, Circumstances(limit=-1, regions=10, max_regions=10), "keys"),
        (errno.EFAULT, Circumstances(mapped=False), "address"),
        (errno.EFAULT, Circumstances(writable=False), "read_only"),
        (errno.EPERM, Circumstances(), "permission"),
        (errno.EFAULT, Circumstances(device_memory=True), "peermem"),
        (errno.ENOMEM, Circumstances(device_memory=True, limit=65536), "memlock"),
        (errno.EOPNOTSUPP, Circumstances(), "unsupported"),
        (0, Circumstances(), "register"),
    ],
)
def test_causes_of_a_failed_registration(number: int, now: Circumstances, reason: str) -> None:
    assert registration_cause(number, 1 << 20, now)[0] == reason
    error = failures.registration_failed(
        ValueError("native"), number, device="mlx5_0", address=0x1000, size=1 << 20, now=now
    )
    assert isinstance(error, RegistrationError)
    assert "1 MiB" in str(error) and "mlx5_0" in str(error) and error.hint
    assert error.reason == reason


def test_no_descriptors_are_told_as_such() -> None:
    made = failures.registration_failed(
        ValueError(), errno.EMFILE, device="d", address=0, size=1, now=Circumstances()
    )
    assert isinstance(made, OutOfDescriptors)


MAPS = """\
00001000-00003000 rw-p 00000000 00:00 0
00003000-00004000 r--p 00000000 00:00 0 /some file
00008000-00009000 rw-p 00000000 00:00 0
"""


def test_what_lies_at_an_address() -> None:
    assert mapping_of(MAPS, 0x1800, 0x800) == (True, True)
    assert mapping_of(MAPS, 0x1800, 0x2000) == (True, False)
    assert mapping_of(MAPS, 0x3000, 0x2000)[0] is False
    assert mapping_of(MAPS, 0x5000, 1)[0] is False


# --- devices -----------------------------------------------------------------------------------


def gid(index: int, text: str, kind: str = "RoCE v2") -> Gid:
    return Gid(index, text, kind, "eth0")


V4, V4_OLD = gid(3, "::ffff:10.0.0.1"), gid(2, "::ffff:10.0.0.1", "IB/RoCE v1")
V6, LINK = gid(5, "2001:db8::1"), gid(1, "fe80::1")


def test_gids_by_default() -> None:
    roce = DevicePort(1, True, "Ethernet", 100, (V4_OLD, LINK, V6, V4))
    assert choose_gid(roce) == V4
    assert choose_gid(DevicePort(1, True, "Ethernet", 100, (V4_OLD, LINK, V6))) == V6
    assert choose_gid(DevicePort(1, True, "Ethernet", 100, (V4_OLD, LINK))) == LINK
    assert choose_gid(roce, 2) == V4_OLD
    assert choose_gid(roce, 9) is None
    ib = DevicePort(1, True, "InfiniBand", 100, (gid(0, "fe80::5", ""), gid(1, "::ffff:1.2.3.4", "")))
    assert choose_gid(ib).index == 0


def test_devices_by_default_and_by_name() -> None:
    slow = Device("a", (DevicePort(1, True, "Ethernet", 25, (V4,)),))
    fast = Device(
        "b", (DevicePort(1, False, "Ethernet", 400, (V4,)), DevicePort(2, True, "Ethernet", 200, (V6,)))
    )
    down = Device("c", (DevicePort(1, False, "InfiniBand", 400, (LINK,)),))
    every = [slow, fast, down]
    assert (choose(every, Wishes()).device, choose(every, Wishes()).port) == ("b", 2)
    assert choose(every, Wishes(devices=("nope", "a", "b"))).device == "a"
    assert choose(every, Wishes(port=1)).device == "a"
    assert choose(every, Wishes(mtu=1024)).mtu == 1024
    for wishes, reason in (
        (Wishes(devices=("nope",)), "no_device"),
        (Wishes(devices=("c",)), "link"),
        (Wishes(port=7), "link"),
        (Wishes(gid_index=77), "no_gid"),
    ):
        with pytest.raises(DeviceError) as refused:
            choose(every, wishes)
        assert refused.value.reason == reason and refused.value.hint
    with pytest.raises(DeviceError):
        choose([], Wishes())


def test_wishes_of_the_environment() -> None:
    said = {"MC_RDMA_DEVICES": " a , b", "MC_IB_PORT": "2", "MC_GID_INDEX": "3", "MC_MTU": "1024"}
    assert wishes_of(said) == Wishes(("a", "b"), 2, 3, 1024)
    assert wishes_of({"MC_IB_TC": "106", "MC_IB_SL": "3", "MC_PKEY_INDEX": "2"}) == Wishes(
        traffic_class=106, service_level=3, pkey_index=2
    )
    assert wishes_of({}) == Wishes()
    wrong = {"MC_MTU": "1000", "MC_GID_INDEX": "x", "MC_IB_PORT": "-1", "MC_IB_TC": "256", "MC_IB_SL": "16"}
    for bad in ({name: text} for name, text in wrong.items()):
        with pytest.raises(OptionError):
            wishes_of(bad)


def test_devices_are_read_from_the_system(tmp_path) -> None:
    ports = tmp_path / "mlx5_0" / "ports" / "1"
    for name, text in {
        "state": "4: ACTIVE",
        "rate": "100 Gb/sec (4X EDR)",
        "link_layer": "Ethernet",
        "gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001",
        "gids/1": "0000:0000:0000:0000:0000:ffff:0a4d:0001",
        "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000",
        "gid_attrs/types/0": "RoCE v2",
        "gid_attrs/types/1": "RoCE v2",
        "gid_attrs/ndevs/1": "eth0",
    }.items():
        (ports / name).parent.mkdir(parents=True, exist_ok=True)
        (ports / name).write_text(text + "\n")
    [device] = look(tmp_path)
    assert device.name == "mlx5_0" and device.ports[0].rate == 100 and len(device.ports[0].gids) == 2
    route = choose([device], Wishes())
    assert route.gid_index == 1 and "10.77.0.1" in str(route)
    assert look(tmp_path / "nothing") == []
