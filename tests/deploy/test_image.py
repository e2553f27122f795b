"""deploy/docker: its Dockerfile is sound, and pins what pyproject.toml asks for.

The image itself is built, run and proved by verify.sh: `make test-slow`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy.version import UNKNOWN
from deploy.wheels.interpreters import find_interpreter

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
TEXT = (DOCKER / "Dockerfile").read_text()
#: (name, text) of each instruction, with the lines that it goes on over
INSTRUCTIONS = re.findall(
    r"^([A-Z]+) (.*)$", re.sub(r"^#.*\n", "", TEXT, flags=re.M).replace("\\\n", " "), re.M
)
TARGETS = ("tcp", "rdma")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = (DOCKER / "constraints.txt").read_text() + (DOCKER / "build-constraints.txt").read_text()
PINS = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", PINNED, re.M)
}


def texts(name):
    return [text for instruction, text in INSTRUCTIONS if instruction == name]


def copied():
    """What is copied from the folder of the build."""
    return {word for text in texts("COPY") if "--from" not in text for word in text.split()[:-1]}


def test_stages():
    assert texts("FROM") == ["${BASE} AS python", "python AS build", "python AS tcp", "tcp AS rdma"]
    # What goes on has nothing of the build but the environment.
    others = [text for text in texts("COPY") if "--from" in text]
    assert others == ["--from=build /opt/transfer /opt/transfer"]


def test_the_base_is_a_release_and_can_be_given():
    assert re.fullmatch(r"BASE=debian:12\.\d+-slim", texts("ARG")[0])
    assert "latest" not in re.sub(r"#.*", "", TEXT)


def test_the_label_and_the_package_have_the_version_that_the_build_is_given():
    assert texts("ARG").count(f"VERSION={UNKNOWN}") == 2
    assert any("TRANSFER_VERSION=${VERSION}" in text for text in texts("RUN"))
    assert any('image.version="${VERSION}"' in text for text in texts("LABEL"))


def test_its_ports_are_those_of_the_broker():
    documented = (ROOT / "docs/broker.md").read_text().split("\n## What it promises", 1)[0]
    table = "\n".join(line for line in documented.splitlines() if line.startswith("| "))
    ports = re.findall(r"\b\d{4,5}\b", table.replace("127.0.0.1", ""))
    assert {port for text in texts("EXPOSE") for port in text.split()} == set(ports)


def test_what_is_copied_exists():
    for name in copied():
        assert (ROOT / name).exists(), name
    packages = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} <= copied()


@pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed here")
@pytest.mark.skipif(os.geteuid() != 0, reason="buildah needs root, or user namespaces that are set up")
def test_nothing_else_goes_to_the_build(tmp_path):
    """A build of the whole context: what .dockerignore lets through."""
    buildah = ["buildah", "--root", tmp_path / "s", "--runroot", tmp_path / "r", "--storage-driver", "vfs"]

    def run(*arguments):
        command = [*buildah, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=50).stdout.strip()

    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY . /\n")
    run("bud", "--isolation", "chroot", "--quiet", "--tag", "localhost/context", "--file", file, ROOT)
    folder = Path(run("mount", run("from", "--pull=never", "localhost/context")))
    try:
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    finally:
        run("rm", "--all")
    page = "transfer/broker/http/page/"
    assert {
        "transports/core/native/kernel_writes.pyx",
        "transports/core/native/crc32c.h",
        f"{page}index.html",
    } <= names
    assert {"pyproject.toml", "deploy/docker/constraints.txt"} <= names
    assert {name.split("/")[0] for name in names} == {word.split("/")[0] for word in copied()}
    assert not [name for name in names if re.search(r"\.(py[cod]|so|c|html)$", name) and page not in name]
    deployed = {name for name in names if name.startswith("deploy/") and "constraints" not in name}
    assert deployed == {"deploy/version.py"}


def test_packages_are_installed_without_what_they_only_recommend_and_without_traces():
    for text in texts("RUN"):
        if "apt-get install" in text:
            assert "--no-install-recommends" in text and "apt-get update" in text
            assert "gcc" in text or ("rm -rf" in text and "/var/lib/apt/lists/*" in text)
        for command in re.findall(r"pip\S* [^&]*\binstall\b[^&]*", text):
            ours = "--no-index --no-deps" in command and "tensor-transfer[" in command
            assert ours or "--require-hashes --requirement" in command, command
    assert not re.search(r"curl|wget|\bADD\b", re.sub(r"#.*", "", TEXT))


@pytest.mark.parametrize("name", ["constraints.txt", "build-constraints.txt"])
def test_each_pin_has_the_hashes_of_its_wheels(name):
    lines = (DOCKER / name).read_text().replace("\\\n", " ").splitlines()
    pins = [line.split() for line in lines if line and not line.startswith("#")]
    assert pins
    for requirement, *hashes in pins:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", requirement)
        # One wheel for all, or for each of two machines one, of the stable interface or for each Python.
        assert len(set(hashes)) in (1, 2, 4, 6)
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), requirement


@pytest.mark.parametrize(
    ("name", "holed", "mended"), [("aiohttp", "3.14.0", "3.14.1"), ("cryptography", "42.0.3", "42.0.4")]
)
def test_versions_with_known_holes_are_not_taken(name, holed, mended):
    extras = PROJECT["project"]["optional-dependencies"].values()
    found = [
        Requirement(text)
        for texts in extras
        for text in texts
        if canonicalize_name(Requirement(text).name) == name
    ]
    assert found
    for one in found:
        assert not one.specifier.contains(holed) and one.specifier.contains(mended)


# -- versions ------------------------------------------------------------------------------------------------


def asked(requirements, extras):
    """Those requirements that these extras bring here, others of ours resolved."""
    for text in requirements:
        one = Requirement(text)
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        if canonicalize_name(one.name) == "tensor-transfer":
            for extra in one.extras:
                yield from asked(PROJECT["project"]["optional-dependencies"][extra], {extra})
        else:
            yield one


def image_asks_for():
    extras = re.search(r"^ARG EXTRAS=(\S+)$", TEXT, re.M)[1].split(",")
    found = list(asked(PROJECT["project"]["dependencies"], ()))
    for extra in extras:
        found += asked(PROJECT["project"]["optional-dependencies"][extra], {extra})
    return found


def test_the_pins_are_what_the_project_asks_for():
    for one in [*image_asks_for(), *map(Requirement, PROJECT["build-system"]["requires"])]:
        name = canonicalize_name(one.name)
        assert name in PINS, f"{name}: run deploy/docker/constrain.py"
        assert one.specifier.contains(PINS[name]), f"{one}: pinned is {PINS[name]}"


def test_the_pins_are_whole_and_have_nothing_else():
    """What they need in turn is pinned too, as far as it is installed here in that version."""
    waiting, seen = [canonicalize_name(one.name) for one in image_asks_for()], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            here = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        # Another version than the pinned one may ask for others, but most likely for the same.
        same = Version(here.version) == PINS[name]
        for one in asked(here.requires or (), {""}):
            known = canonicalize_name(one.name) in PINS
            assert known or not same, f"{one} of {name}: run deploy/docker/constrain.py"
            if known:
                waiting.append(canonicalize_name(one.name))
    tools = {"cython", "setuptools", "wheel", "packaging"}
    assert set(PINS) - seen - tools <= {name for name in PINS if name not in installed()}
    assert not {name for name in PINS if re.match(r"nvidia|cuda|ucxx|libucx|torch|pyspark|pyarrow", name)}


def installed():
    return {canonicalize_name(one.name) for one in metadata.distributions()}


# -- verify.sh -----------------------------------------------------------------------------------------------


def test_verify_is_a_shell_program_that_says_what_it_does():
    subprocess.run(["bash", "-n", DOCKER / "verify.sh"], check=True, timeout=20)
    told = subprocess.run(
        [DOCKER / "verify.sh", "--help"], capture_output=True, text=True, check=True, timeout=20
    )
    assert "--target" in told.stdout and "--engine" in told.stdout
    wrong = subprocess.run([DOCKER / "verify.sh", "--target", "x"], capture_output=True, timeout=20)
    assert wrong.returncode == 2 and b"--target" in wrong.stderr
    no_folder = subprocess.run([DOCKER / "verify.sh", "--python", __file__], capture_output=True, timeout=20)
    assert no_folder.returncode == 2 and __file__.encode() in no_folder.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    not (shutil.which("debootstrap") and shutil.which("buildah")),
    reason="debootstrap or buildah is not installed here",
)
@pytest.mark.parametrize("python", [None, "3.12", "3.13"], ids=["debian", "3.12", "3.13"])
def test_the_image_is_built_and_proved(python):
    words = [DOCKER / "verify.sh"]
    if python is not None:
        if (found := find_interpreter(python)) is None:
            pytest.skip(f"there is no CPython {python} here")
        words += ["--python", found.resolve().parents[1]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1100)
    if done.returncode == 2:
        pytest.skip(f"it cannot be told here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in TARGETS:
        assert f"{name}: SIGTERM ended it with status 0" in done.stdout
