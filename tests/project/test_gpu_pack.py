"""What travels to a machine with a GPU: the parts of UCX's wheel, each once."""

from __future__ import annotations

import zipfile

from bench import gpu_pack


def test_only_the_libraries_travel(tmp_path):
    wheel, target = tmp_path / "ucx.whl", tmp_path / "ucx.zip"
    wanted = {
        "libucx/__init__.py",
        "libucx/load.py",
        "libucx/lib/libucp.so.0",
        "libucx/lib/ucx/libuct_cuda.so.0",
        "libucx_cu13.libs/libcudart-1.so.13",
    }
    others = {
        "libucx/lib/libucp.so",
        "libucx/lib/libucp.so.0.0.0",
        "libucx/lib/libucp.a",
        "libucx/lib/libucs_signal.so.0",
        "libucx/include/ucp/api/ucp.h",
        "libucx-1.dist-info/RECORD",
    }
    with zipfile.ZipFile(wheel, "w") as made:
        for name in wanted | others:
            made.writestr(name, name)
    gpu_pack._trim(wheel, target)
    with zipfile.ZipFile(target) as trimmed:
        assert set(trimmed.namelist()) == wanted
        assert all(trimmed.read(name) == name.encode() for name in wanted)
