"""What is known of UCX without loading it; texts of /proc are made up here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from transfer.transports.ucx import installed as files, probe as ucx

MAPS = """\
7f0000000000-7f0000001000 r-xp 00000000 08:01 11 /venv/site-packages/libucx/lib/libucp.so.0.0.0
7f0000001000-7f0000002000 r--p 00001000 08:01 11 /venv/site-packages/libucx/lib/libucp.so.0.0.0
7f0000002000-7f0000003000 r-xp 00000000 08:01 12 /venv/site-packages/libucx/lib/libucs.so.0.0.0
7f0000003000-7f0000004000 r-xp 00000000 08:01 13 /venv/site-packages/libucx/lib/ucx/libuct_cma.so.0.0.0
7f0000004000-7f0000005000 rw-p 00000000 00:00 0 [heap]
7f0000005000-7f0000006000 r-xp 00000000 08:01 14 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000006000-7f0000007000 rw-s 00000000 00:01 15 /memfd:something (deleted)
"""
SYSTEM = """\
7f1000000000-7f1000001000 r-xp 00000000 08:01 21 /usr/lib/x86_64-linux-gnu/libucp.so.0.0.0
7f1000001000-7f1000002000 r-xp 00000000 08:01 22 /usr/lib/x86_64-linux-gnu/ucx/libuct_ib.so.0.0.0 (deleted)
"""
MANGLED = (
    "7f2000000000-7f2000001000 r-xp 00000000 08:01 31 "
    "/venv/site-packages/torch.libs/libucp-1a2b3c4d.so.0.0.0\n"
)
WHEEL = "/venv/site-packages/libucx/lib"


def test_mapped_files():
    found = files.mapped(MAPS)
    assert [one.name for one in found] == ["libucp", "libucs", "libuct_cma"]
    assert {one.directory for one in found} == {WHEEL}
    assert files.copies(found) == (WHEEL,)
    assert not files.has_infiniband(found)
    assert files.mapped("") == () and files.mapped("nonsense\n\n7f r-xp\n") == ()


def test_two_copies():
    found = files.mapped(MAPS + SYSTEM + MANGLED)
    assert files.copies(found) == (
        WHEEL, "/usr/lib/x86_64-linux-gnu", "/venv/site-packages/torch.libs",
    )  # fmt: skip
    assert files.has_infiniband(found)
    report = ucx.report(MAPS + SYSTEM)
    assert any("two copies" in text for text, _ in report.warnings)
    assert all(hint for _, hint in report.warnings)


def test_infiniband_next_to_the_library(tmp_path):
    assert not files.infiniband_module(tmp_path)
    (tmp_path / "ucx").mkdir()
    (tmp_path / "ucx" / "libuct_cma.so.0").touch()
    assert not files.infiniband_module(tmp_path)
    (tmp_path / "ucx" / "libuct_ib.so.0").touch()
    assert files.infiniband_module(tmp_path)
    maps = f"7f0-7f1 r-xp 00000000 08:01 1 {tmp_path}/libucp.so.0.0.0\n"
    assert files.has_infiniband(files.mapped(maps))


def test_devices(tmp_path):
    assert ucx.devices(tmp_path / "none") == ()
    (tmp_path / "mlx5_1").mkdir()
    (tmp_path / "mlx5_0").mkdir()
    assert ucx.devices(tmp_path) == ("mlx5_0", "mlx5_1")


@pytest.mark.parametrize(
    ("installed", "names", "module", "system", "usable", "better"),
    [
        ((), (), False, False, False, False),
        ((), ("mlx5_0",), False, True, False, False),
        (("ucp",), ("mlx5_0",), True, False, True, True),
        (("libucx",), (), False, False, True, False),
        (("ucxx",), (), False, False, True, False),
        (("ucxx",), ("mlx5_0",), False, False, True, False),
        (("ucxx",), ("mlx5_0",), False, True, True, True),
        (("ucxx",), ("mlx5_0",), True, False, True, True),
    ],
)
def test_probe(monkeypatch, installed, names, module, system, usable, better):
    monkeypatch.setattr(files, "find_spec", lambda name: object() if name in installed else None)
    monkeypatch.setattr(ucx, "devices", lambda: names)
    monkeypatch.setattr(ucx, "wheel", lambda: Path("/wheel"))
    monkeypatch.setattr(ucx, "infiniband_module", lambda _: module)
    monkeypatch.setattr(ucx, "ucx_of_the_system", lambda: system)
    found = ucx.probe()
    assert (found.usable, found.better) == (usable, better)
    assert found.usable or (found.word and found.hint)


@pytest.mark.parametrize(
    ("installed", "wished", "found"),
    [
        ((), "auto", False),
        (("ucp",), "auto", True),
        (("libucx",), "auto", True),
        (("ucxx",), "auto", True),
        (("libucx",), "libucp", True),
        ((), "libucp", True),
    ],
)
def test_available(monkeypatch, installed, wished, found):
    monkeypatch.setattr(files, "find_spec", lambda name: object() if name in installed else None)
    assert files.available(wished) == found


def test_where_libucp_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "wheel", lambda: Path("/wheel"))
    there = tmp_path / "lib" / files.SONAME
    plain = files.libraries("", str(tmp_path), prefer_system=False)
    assert plain == (f"/wheel/{files.SONAME}", files.SONAME)
    there.parent.mkdir()
    there.touch()
    assert files.libraries("", str(tmp_path), prefer_system=False) == (plain[0], str(there), files.SONAME)
    assert files.libraries("", str(tmp_path), prefer_system=True) == (str(there), files.SONAME, plain[0])
    # What the process has already comes first, so that there are not two.
    loaded = files.libraries(MAPS, str(tmp_path), prefer_system=True)
    assert loaded[0] == f"{WHEEL}/libucp.so.0.0.0" and loaded[1] == str(there)
    monkeypatch.setattr(files, "wheel", lambda: None)
    assert files.libraries("", "/nowhere", prefer_system=False) == (files.SONAME,)


def test_a_driver_that_nobody_knows_is_told_and_kills_nobody(monkeypatch):
    monkeypatch.setenv("TRANSFER_UCX_DRIVER", "ucx-py")
    found = ucx.probe()
    assert not found.usable and "TRANSFER_UCX_DRIVER" in found.reason and "libucp" in found.hint
    assert any("TRANSFER_UCX_DRIVER" in what for what, _ in ucx.report("").warnings)


def test_probing_loads_nothing():
    code = (
        "import os, sys; before = dict(os.environ);"
        "from transfer.transports.ucx import probe, stream, upgrade;"
        "probe.probe(); probe.report(); assert dict(os.environ) == before;"
        "assert not {'ucxx', 'libucx', 'rmm', 'numpy'} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=60)
    assert done.returncode == 0
