"""What a machine with a GPU and no package index needs for `make test-gpu`: wheels, and UCX's libraries.

`python -m bench.gpu --pack DIR` makes it, for the Python there; `make test-gpu GPU_PACK=DIR` uses it. torch,
CuPy, numpy, a compiler and the CUDA driver have to be there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: what tests and benchmarks import, besides torch, CuPy and numpy
WHEELS = (
    "cython",
    "cuda-bindings",
    "hypothesis",
    "lz4",
    "ml-dtypes",
    "msgspec",
    "packaging",
    "prometheus-client",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "pyzmq",
    "rich",
    "setuptools",
    "typer",
)
UCX = "libucx-cu13"
#: files of UCX that are needed: its four libraries, TCP, shared memory, InfiniBand and CUDA
_PARTS = ("libucp", "libucs", "libuct", "libucm")
_UNNEEDED = (".a", ".la", ".h", "_signal")
#: bytes that may travel
MOST = 45 << 20


def pack(folder: Path, python: str) -> int:
    """Fills the folder; returns its bytes. python: as "3.12". Raises CalledProcessError from pip, and
    OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest"]
    platform = ["--python-version", python, "--implementation", "cp"]
    for tag in ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"):
        platform += ["--platform", tag]
    subprocess.run([*wanted, str(folder), *platform, *WHEELS], check=True)
    for wheel in folder.glob("numpy-*.whl"):  # there, with torch and CuPy
        wheel.unlink()
    with tempfile.TemporaryDirectory() as whole:
        subprocess.run([*wanted, whole, *platform, "--no-deps", UCX], check=True)
        [wheel] = Path(whole).glob("*.whl")
        _trim(wheel, folder / "ucx.zip")
    return sum(path.stat().st_size for path in folder.iterdir())


def _trim(wheel: Path, target: Path) -> None:
    """The libraries of a wheel of UCX, each once: a name that another one stands for is left out."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as trimmed:
        for name in source.namelist():
            file = name.rsplit("/", 1)[-1]
            is_part = file.startswith(_PARTS) and ".so.0" in file and ".so.0." not in file
            is_python = name.startswith("libucx/") and name.endswith(".py")
            of_its_own = name.startswith("libucx_cu13.libs/")
            if (is_part or is_python or of_its_own) and not any(one in file for one in _UNNEEDED):
                trimmed.writestr(source.getinfo(name), source.read(name))


def unpack(folder: Path, site: Path) -> None:
    """Installs a pack into a folder for the PYTHONPATH, with this Python, without an index."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
    subprocess.run([*command, "--target", str(site), *map(str, folder.glob("*.whl"))], check=True)
    with zipfile.ZipFile(folder / "ucx.zip") as trimmed:
        trimmed.extractall(site)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
