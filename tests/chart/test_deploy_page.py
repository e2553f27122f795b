"""docs/deploy.md quotes errors: they are what the code says, and the values that it names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import helm_python
import pytest

from tests.chart.rendering import CHART, ROOT, Values, render
from transfer.transports.core import native
from transfer.transports.errors import DeviceError
from transfer.transports.rdma import device_selection, failures, probe
from transfer.transports.rdma.device_selection import Device, DevicePort, Gid, Wishes
from transfer.transports.rdma.libibverbs_driver import LibibverbsDriver

PAGE = (ROOT / "docs/deploy.md").read_text()
WORDS = " ".join(PAGE.split())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"profil": "tcp"}, "additional properties 'profil' not allowed"),
        ({"security": {"tls": {"mode": "off"}}}, "at '/security/unauthenticated': value must be true"),
        ({"profile": "dra"}, "at '/rdma/deviceClassName': minLength: got 0, want 1"),
        ({"profile": "rdma-shared", "security": {"encrypt": "all"}}, "at '/profile': value must be 'tcp'"),
    ],
)
def test_what_helm_says(values: Values, words: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as caught:
        render(values)
    assert words in str(caught.value)
    assert words in WORDS


def _port(**changes: object) -> DevicePort:
    return DevicePort(
        **{"number": 1, "active": True, "link": "Ethernet", "rate": 100.0, "gids": (), **changes}
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("devices", "wishes", "word"),
    [
        ((), Wishes(), "no_device"),
        ((Device("mlx5_0", (_port(),)),), Wishes(devices=("mlx5_9",)), "no_device"),
        ((Device("mlx5_0", (_port(active=False),)),), Wishes(), "link"),
        ((Device("mlx5_0", (_port(),)),), Wishes(), "no_gid"),
        ((Device("mlx5_0", (_port(gids=(Gid(0, "::1"),), pkeys=2),)),), Wishes(pkey_index=7), "no_pkey"),
    ],
)
def test_why_a_device_cannot_be_used(devices: tuple[Device, ...], wishes: Wishes, word: str) -> None:
    with pytest.raises(DeviceError) as caught:
        device_selection.choose(devices, wishes)
    assert caught.value.reason == word
    text = str(caught.value).partition("\n")[0]
    assert re.search(rf"\| `{re.escape(text)}` \| `{word}` \|", PAGE), text


def test_why_a_driver_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused = failures.device_failed(13, "mlx5_0", "opening the device")
    assert isinstance(refused, DeviceError)
    errors = [refused]
    # In a process of its own: this one may have loaded libibverbs before.
    (tmp_path / "libibverbs.so.1").touch()
    code = (
        "from transfer.transports.rdma.libibverbs_driver import LibibverbsDriver\n"
        "from transfer.transports.errors import DeviceError\n"
        "try: LibibverbsDriver()\n"
        "except DeviceError as error: print(error.reason, str(error).partition(chr(10))[0])"
    )
    environ = {**os.environ, "TRANSFER_LIBIBVERBS": str(tmp_path / "libibverbs.so.1")}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    reason, _, text = ran.stdout.strip().partition(" ")
    errors.append(DeviceError(reason, text))
    monkeypatch.setitem(sys.modules, "transfer.transports.core.native.libibverbs", None)
    monkeypatch.delattr(native, "libibverbs", raising=False)
    with pytest.raises(DeviceError) as caught:
        LibibverbsDriver()
    errors.append(caught.value)
    for error in errors:
        text = re.split(r"[:,] (?=/|which|Permission)", str(error).partition("\n")[0])[0]
        assert f"| `{text}` | `{error.reason}` |" in PAGE, text


def test_too_little_locked_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card is what this machine has not: one in a folder like /sys/class/infiniband."""
    route = device_selection.DeviceRoute("mlx5_0", 1, 0, "fe80::1", 4096, why="the only one")
    monkeypatch.setattr(device_selection, "choose_route", lambda **_: route)
    monkeypatch.setattr(failures, "may_lock", lambda: False)
    monkeypatch.setattr(probe.resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    found = probe.probe(tmp_path)
    assert found.word == "memlock" and f"| `{found.reason}` | `memlock` |" in PAGE


def test_words_of_counters_are_those_that_exist() -> None:
    words = set(re.findall(r"^\| `[^|]+` \| `(\w+)` \|", PAGE, flags=re.MULTILINE))
    documented = "".join((ROOT / "docs" / name).read_text() for name in ("errors.md", "reference/errors.md"))
    assert len(words) > 5
    assert {word for word in words if word not in documented} == set()


def test_values_that_the_page_names_exist() -> None:
    """`broker.persistence.storageClass` and the like, and what --set says."""
    with helm_python.Chart.load(CHART) as chart:
        values = chart.values
    sections = "|".join(values)
    named = set(re.findall(rf"`((?:{sections})(?:\.\w+)+)\b", PAGE))
    named |= {
        one for text in re.findall(r"--set\s+(\S+)", PAGE) for one in re.findall(r"([\w.]+)(?:\[0\])?=", text)
    }
    assert len(named) > 15
    for name in named:
        found = values
        for key in name.split("."):
            assert key in found, name
            found = found[key]


@pytest.mark.parametrize(
    "document",
    [ROOT / "deploy/README.md", *CHART.rglob("*.md")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_beside_the_chart_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", document.read_text()):
        assert target.startswith("https://") or (document.parent / target.partition("#")[0]).exists(), target
