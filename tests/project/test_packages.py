"""What is built of the repository: the source distribution has every source, and no links."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("transfer", "transports", "patterns", "pyspark_transfer")
FILES = (
    *("pyproject.toml", "setup.py", "tensor_transfer.py", "MANIFEST.in", "README.md", "LICENSE"),
    "deploy/version.py",
)
VERSION = "0.9.0"
BUILT = shutil.ignore_patterns("__pycache__", "*.so", "*.c", ".built")


@pytest.fixture
def copy(tmp_path):
    """The repository's sources, as git has them: a build leaves files where it runs."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=BUILT)
    (tmp_path / "deploy").mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def setup(folder, *arguments, **variables):
    given = {"TRANSFER_VERSION": VERSION, **variables}
    return subprocess.run(
        [sys.executable, "setup.py", "-q", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=50, check=False, env={**os.environ, **given},
    )  # fmt: skip


def sources(folder):
    """Every file below it, through links."""
    return {
        os.path.relpath(os.path.join(place, name), folder)
        for top in ("transfer", "pyspark_transfer")
        for place, _, names in os.walk(folder / top, followlinks=True)
        for name in names
    }


def test_the_source_distribution_has_every_source_and_no_link(copy):
    wanted = sources(copy)
    assert {
        "transfer/transports/core/native/kernel_writes.pyx",
        "transfer/broker/http/page/index.html",
    } <= wanted
    assert {"transfer/patterns/pair.py", "transfer/transports/core/native/crc32c.h"} <= wanted
    done = setup(copy, "sdist")
    assert done.returncode == 0, done.stderr
    (file,) = (copy / "dist").iterdir()
    with tarfile.open(file) as archive:
        assert not [entry.name for entry in archive if entry.issym() or entry.islnk()]
        names = {entry.name.partition("/")[2] for entry in archive if entry.isfile()}
    assert wanted <= names
    assert not [name for name in names if name.startswith(("transports/", "patterns/", "tests/"))]
    assert file.name == f"tensor_transfer-{VERSION}.tar.gz"


def test_what_is_built_of_a_source_distribution_has_its_version(copy, tmp_path_factory):
    assert setup(copy, "sdist").returncode == 0
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(copy / f"dist/tensor_transfer-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    done = setup(folder / f"tensor_transfer-{VERSION}", "--version", TRANSFER_VERSION="")
    assert done.stdout.split()[-1:] == [VERSION], done.stderr


def test_executors_import_the_package_from_a_zip(copy):
    """The wheel as `spark-submit --py-files` takes it, by the name that docs/spark.md gives it."""
    done = setup(copy, "bdist_wheel", TRANSFER_NO_NATIVE="1")
    assert done.returncode == 0, done.stderr
    (wheel,) = (copy / "dist").iterdir()
    archive = wheel.rename(copy / "transfer.zip")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import transfer, pkgutil
assert transfer.__file__.startswith(sys.argv[1]), transfer.__file__
assert "pyspark_transfer" in {one.name for one in pkgutil.iter_modules()}
import pyspark_transfer
with transfer.Context() as c, c.socket(transfer.PULL) as pull, c.socket(transfer.PUSH) as push:
    pull.bind("tcp://127.0.0.1:0")
    push.connect(pull.last_endpoint)
    push.send(b"there")
    pull.rcvtimeo = 10_000
    print(pull.recv().decode(), transfer.__version__, hasattr(pyspark_transfer, "DefaultSource"))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, archive],
        cwd=copy / "dist", capture_output=True, text=True, timeout=50, check=False,
        env={name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "TRANSFER_"))},
    )  # fmt: skip
    spark = importlib.util.find_spec("pyspark") is not None
    assert (done.returncode, done.stdout) == (0, f"there {VERSION} {spark}\n"), done.stderr


@pytest.mark.parametrize("name", ["transports", "patterns"])
def test_a_checkout_without_links_says_so(copy, name):
    """As git makes one where `core.symlinks` is off."""
    link = copy / "transfer" / name
    link.unlink()
    link.write_text(f"../{name}")
    done = setup(copy, "--version")
    assert done.returncode != 0 and "core.symlinks" in done.stderr


@pytest.mark.parametrize("name", ["transports", "patterns"])
def test_the_folders_are_no_packages_by_their_bare_names(name):
    code = f"import {name}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode and f"the package is transfer.{name}" in done.stderr


def test_a_cython_whose_code_can_free_an_object_twice_is_refused(tmp_path):
    fake = tmp_path / "Cython"
    fake.mkdir()
    (fake / "__init__.py").write_text('__version__ = "3.2.4"\n')
    (fake / "Build.py").write_text("cythonize = None\n")
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path / "built")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TRANSFER_NEED_NATIVE": "1"},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode and "Cython 3.2.4 makes code that can crash; 3.3.1 or newer" in done.stderr
    assert not list(tmp_path.glob("built/**/*.so"))
