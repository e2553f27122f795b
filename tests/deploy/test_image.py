"""deploy/docker: its Dockerfile, read as verify.sh reads it, is sound, and pins what pyproject.toml asks for.

The image itself is built, run and proved by verify.sh: `make test-slow`.
"""

from __future__ import annotations

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

from deploy.docker.context import Context, Ignored
from deploy.docker.dockerfile import DockerfileError, expand, needed, parse, states

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
TEXT = (DOCKER / "Dockerfile").read_text()
STAGES = parse(TEXT)
STATES = states(STAGES)
TARGETS = ("tcp", "rdma")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = (DOCKER / "constraints.txt").read_text() + (DOCKER / "build-constraints.txt").read_text()
PINS = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", PINNED, re.M)
}


def instructions(name):
    return [one for stage in STAGES for one in stage.instructions if one.name == name]


def test_stages():
    assert [stage.name for stage in STAGES] == ["python", "build", "tcp", "rdma"]
    assert [stage.name for stage in needed(STAGES, ["tcp"])] == ["python", "build", "tcp"]
    # What goes on has nothing of the build but the environment.
    assert [stage.base for stage in STAGES] == ["debian:12.12-slim", "python", "python", "tcp"]
    assert [one.text for one in instructions("COPY") if one.flags] == ["/opt/transfer /opt/transfer"]


def test_the_base_is_a_release_and_can_be_given():
    assert re.fullmatch(r"debian:12\.\d+-slim", STAGES[0].base)
    assert "latest" not in re.sub(r"#.*", "", TEXT)
    assert parse(TEXT, {"BASE": "debian@sha256:0"})[0].base == "debian@sha256:0"


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_runs_as_nobody_in_particular_and_tells_how_it_is(name):
    state = STATES[name]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", state.user)
    assert state.entrypoint == ("transfer",) and state.command == ("broker",)
    assert state.health == ("transfer", "health")
    assert state.volumes == ("/data",) and state.env["TRANSFER_BROKER__BROKER__DATA"] == "/data"
    assert state.stop_signal == "SIGTERM"
    assert state.env["PATH"].startswith("/opt/transfer/bin:")
    assert {"org.opencontainers.image." + word for word in ("title", "version", "licenses")} <= set(
        state.labels
    )
    assert state.labels["org.opencontainers.image.version"] == PROJECT["project"]["version"]


def test_its_ports_are_those_of_the_broker():
    documented = (ROOT / "docs/broker.md").read_text().split("\n## What it promises", 1)[0]
    table = "\n".join(line for line in documented.splitlines() if line.startswith("| "))
    assert set(STATES["tcp"].ports) == set(
        map(int, re.findall(r"\b\d{4,5}\b", table.replace("127.0.0.1", "")))
    )


def test_what_is_copied_exists_and_goes_to_the_build():
    context = Context.of(ROOT)
    for one in instructions("COPY"):
        if not one.flags:
            for source in one.words()[:-1]:
                assert list(context.files(source)), source
    packages = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    copied = {word for one in instructions("COPY") for word in one.words()[:-1]}
    assert {name.rstrip("*") for name in packages} <= copied


def test_nothing_else_goes_to_the_build():
    ignored = Context.of(ROOT).ignored
    for path in (
        ".git/config", ".venv/bin/python", ".ci/run", "build/image/base.log", "tests/conftest.py", ".env",
        "docs/README.md", "deploy/docker/Dockerfile", "transfer/__pycache__/a.cpython-311.pyc",
        "transports/native/link.c", "transports/native/link.cpython-311-x86_64-linux-gnu.so",
        "transports/native/.built",
    ):  # fmt: skip
        assert ignored.leaves_out(path), path
    for path in (
        "transports/native/link.pyx",
        "transports/native/crc32c.h",
        "transfer/broker/http/page/index.html",
    ):
        assert not ignored.leaves_out(path), path


def test_packages_are_installed_without_what_they_only_recommend_and_without_traces():
    for one in instructions("RUN"):
        if "apt-get install" in one.text:
            assert "--no-install-recommends" in one.text and "apt-get update" in one.text
            stage = next(stage for stage in STAGES if one in stage.instructions)
            assert stage.name == "build" or ("rm -rf" in one.text and "/var/lib/apt/lists/*" in one.text)
        if re.search(r"pip\S* .*\binstall\b", one.text):
            for command in re.findall(r"pip\S* [^&]*\binstall\b[^&]*", one.text):
                ours = "--no-index --no-deps" in command and "tensor-transfer[" in command
                assert ours or "--require-hashes --requirement" in command, command
    tcp = next(stage for stage in STAGES if stage.name == "tcp")
    assert not [one for one in tcp.instructions if "apt-get" in one.text]
    assert not re.search(r"curl|wget|\bADD\b", re.sub(r"#.*", "", TEXT))


@pytest.mark.parametrize("name", ["constraints.txt", "build-constraints.txt"])
def test_each_pin_has_the_hashes_of_its_wheels(name):
    lines = (DOCKER / name).read_text().replace("\\\n", " ").splitlines()
    pins = [line.split() for line in lines if line and not line.startswith("#")]
    assert pins
    for requirement, *hashes in pins:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", requirement)
        assert len(set(hashes)) in (1, 2), "one wheel for all machines, or one for each of the two"
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


# -- the reader, and verify.sh -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "FROM a AS b\nADD x /x",
        "FROM a AS b\nCOPY --chown=1:1 x /x",
        "FROM a AS b\nCOPY --from=c /x /x",
        "FROM a AS b\nRUN <<EOF\ntrue\nEOF",
        "FROM a AS b\nRUN true \\",
        "FROM a",
        "FROM a AS b\nFROM c AS b",
        "RUN true",
        "FROM $NOTHING AS b",
        "FROM a AS b\nUSER",
    ],
)
def test_what_it_does_not_know_is_refused(text):
    with pytest.raises(DockerfileError):
        parse(text)


@pytest.mark.parametrize("line", ["ENTRYPOINT transfer", "HEALTHCHECK NONE", "ENV A", "ARG A", "CMD [1]"])
def test_forms_that_it_does_not_know_are_refused(line):
    with pytest.raises(DockerfileError):
        states(parse(f"FROM a AS b\n{line}"))


def test_variables_and_lines():
    stages = parse(
        'ARG A=1\nFROM x:${A} AS s\nARG B=two\nENV C="$B words" D=${N:-none}\n# no\nRUN a \\\n # no\n b'
    )
    assert stages[0].base == "x:1" and stages[0].instructions[-1].text == "a b"
    assert states(stages, {"B": "2"})["s"].env["C"] == "2 words" and states(stages)["s"].env["D"] == "none"
    assert expand(r"\$A$A", {"A": "x"}) == "$Ax"
    later = states(parse("FROM x AS s\nARG B=1\nENV C=$B\nFROM s AS t\nENV D=$B$C"))
    assert later["t"].env["D"] == "1", "an argument does not go on to the next stage, a variable does"


def test_rules_of_what_is_ignored():
    rules = Ignored.read("*\n!a\n!b/c\n**/*.so\n# x\na/se?ret\n[xy]*.txt")
    for path in ("d", "b/d", "a/one.so", "a/b/two.so", "a/secret", "a/secret/in", "xa.txt"):
        assert rules.leaves_out(path), path
    for path in ("a", "a/b", "b/c", "b/c/d", "a/x.txt", "a/so"):
        assert not rules.leaves_out(path), path
    assert not Ignored.read("").leaves_out("a")


def test_verify_is_a_shell_program_that_says_what_it_does():
    subprocess.run(["bash", "-n", DOCKER / "verify.sh"], check=True, timeout=20)
    told = subprocess.run(
        [DOCKER / "verify.sh", "--help"], capture_output=True, text=True, check=True, timeout=20
    )
    assert "--target" in told.stdout and "--engine" in told.stdout
    wrong = subprocess.run([DOCKER / "verify.sh", "--target", "x"], capture_output=True, timeout=20)
    assert wrong.returncode == 2 and b"--target" in wrong.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which("debootstrap") is None, reason="debootstrap is not installed here")
def test_the_image_is_built_and_proved():
    done = subprocess.run([DOCKER / "verify.sh"], capture_output=True, text=True, timeout=1100)
    if done.returncode == 2:
        pytest.skip(f"it cannot be told here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in TARGETS:
        assert f"{name}: SIGTERM ended it with status 0" in done.stdout
