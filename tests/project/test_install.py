"""What `pip install` brings, and the page on CI, in an empty environment that is made for it.

The compiled core is left out (TRANSFER_NO_NATIVE): to build it again takes most of a minute, and every other
test runs on it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ci.md"
#: of packages that belong to hardware, or bring gigabytes
_HARDWARE = re.compile(r"nvidia|cuda|cupy|ucx|rmm|verbs|rdma|torch|spark|triton", re.IGNORECASE)

#: bytecode is made of what is imported, and not of all that is installed
PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}

pytestmark = pytest.mark.timeout(240)


def run(command: list[str], folder: Path, **variables: str) -> str:
    answer = subprocess.run(
        command,
        cwd=folder, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL, check=False,
        env={**without_ours(), **variables},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def without_ours() -> dict[str, str]:
    """The tests' own settings must not be the user's."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TRANSFER_", "PYTHON"))}


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with what the page installs first, and the names of what came before extras."""
    folder = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", str(folder)], ROOT)
    answer = subprocess.run(
        [folder / "bin" / "pip", "download", "-q", "--no-deps", "-d", folder / "seen", "typer"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if answer.returncode:
        pytest.skip(f"no package index can be reached: {answer.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture(scope="module")
def package(environment, tmp_path_factory) -> Path:
    """The wheel, built from the source distribution of a copy, since a build leaves files where it runs."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("transfer", "transports", "patterns", "pyspark_transfer"):
        left = shutil.ignore_patterns("__pycache__", "*.so", "*.c", ".built")
        shutil.copytree(ROOT / name, folder / name, ignore=left, symlinks=True)
    (folder / "deploy").mkdir()
    for name in (
        *("pyproject.toml", "setup.py", "tensor_transfer.py", "MANIFEST.in", "README.md", "LICENSE"),
        "deploy/version.py",
    ):
        shutil.copy(ROOT / name, folder / name)
    run([sys.executable, "setup.py", "-q", "sdist"], folder)
    (source,) = (folder / "dist").iterdir()
    pip(environment, "wheel", "--no-deps", "--wheel-dir", str(folder / "wheels"), str(source))
    (wheel,) = (folder / "wheels").iterdir()
    return wheel


def installed(environment: Path) -> set[str]:
    listed = run([str(environment / "bin" / "pip"), "list", "--format", "json"], environment)
    return {package["name"].lower().replace("_", "-") for package in json.loads(listed)}


def pip(environment: Path, command: str, *what: str) -> None:
    run([str(environment / "bin" / "pip"), command, "-q", *what], environment, TRANSFER_NO_NATIVE="1", **PIP)


def files_of_the_page() -> dict[str, str]:
    """By their names, which stand before the fences."""
    found = re.findall(
        r"^`([\w./]+)`[^\n]*:\n\n<!--.*?-->\n```\w+\n(.*?)^```$", PAGE.read_text(), re.S | re.M
    )
    return dict(found)


def test_an_installation_brings_nothing_of_hardware(environment, package) -> None:
    pip(environment, "install", str(package))
    names = installed(environment)
    assert "tensor-transfer" in names
    assert not [name for name in names if _HARDWARE.search(name)]
    assert names <= {"tensor-transfer", "pip", "setuptools"}, "the base needs nothing but Python"
    program = (
        "import transfer\n"
        "with transfer.Context() as c, c.socket(transfer.PULL) as pull, c.socket(transfer.PUSH) as push:\n"
        "    pull.bind('tcp://127.0.0.1:0')\n"
        "    push.connect(pull.last_endpoint)\n"
        "    push.send(b'there')\n"
        "    pull.rcvtimeo = 10000\n"
        "    print(pull.recv().decode())\n"
    )
    python = str(environment / "bin" / "python")
    assert run([python, "-c", program], environment).strip() == "there"
    for words, extra in (
        (["-m", "transfer", "doctor"], "cli"),
        (["-c", "import transfer; transfer.Context(metrics_port=0)"], "metrics"),
    ):
        answer = subprocess.run(
            [python, *words], cwd=environment, env=without_ours(), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert answer.returncode == 1 and f"pip install 'tensor-transfer[{extra}]'" in answer.stderr


def test_the_page_on_ci_runs_as_it_stands(environment, package, tmp_path) -> None:
    """Each `run:` of the job, with its variables; the package comes from here instead of an index."""
    files = files_of_the_page()
    assert set(files) == {"tests/conftest.py", "tests/test_service.py", ".github/workflows/test.yml"}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    job = yaml.safe_load(files[".github/workflows/test.yml"])["jobs"]["test"]
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert len(steps) == 3, steps
    printed = ""
    for step in steps:
        command = step.replace('"tensor-transfer[broker]"', f'"{package}[broker]"')
        assert command.startswith("pip install") == (command != step), step
        printed = run(
            ["bash", "-euc", command],
            tmp_path,
            PATH=f"{environment / 'bin'}:{os.environ['PATH']}",
            **PIP,
            **job["env"],
        )
    assert "2 passed" in printed, printed
    names = installed(environment)
    assert {"numpy", "aiohttp", "msgspec"} <= names
    assert not [name for name in names if _HARDWARE.search(name)], "the broker brings nothing of it either"


def test_the_table_of_extras_is_true() -> None:
    """What the page says of extras stands in pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    named = set(re.findall(r"\[(\w+)\]`", PAGE.read_text()))
    assert named <= set(project["optional-dependencies"])
    hardware = {
        extra
        for extra, needs in project["optional-dependencies"].items()
        if any(re.search(r"ucx|cuda", need) for need in needs)
    }
    assert hardware - {"dev", "bench"} == {"ucx"}


def test_the_page_on_installing_names_every_extra() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cells = re.findall(r"^\| ([^|]*) \|", (ROOT / "docs/install.md").read_text(), re.MULTILINE)
    named = [extra for cell in cells for extra in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(project["optional-dependencies"])
