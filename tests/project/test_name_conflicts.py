"""Other distributions of PyPI that have our names: `transfer`, and `transports` beside `transfer.transports`.

The first tests make the other distribution's files; the slow ones install the real ones from the index.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_install import PIP, environment, package, run, without_ours  # noqa: F401 - fixtures

ROOT = Path(__file__).parents[2]
HINT = "pip install --force-reinstall --no-deps '/src/our transfer'"
MEND = f"pip uninstall -y transfer && {HINT}"


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder, capture_output=True, text=True, timeout=50, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
    )  # fmt: skip


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as its script runs it, where `folder` comes first on the path."""
    return python(folder, "-c", "import sys; from tensor_transfer import main; sys.exit(main())", *words)


@pytest.fixture
def other(tmp_path) -> Path:
    """A folder in which ours was installed from its checkout, and another distribution."""
    ours = tmp_path / "tensor_transfer-0.1.0.dist-info"
    ours.mkdir()
    (ours / "METADATA").write_text("Metadata-Version: 2.0\nName: tensor-transfer\nVersion: 0.1.0\n")
    (ours / "direct_url.json").write_text('{"url": "file:///src/our%20transfer", "dir_info": {}}')
    (tmp_path / "transfer").mkdir()
    (tmp_path / "transfer/__init__.py").write_text("raise SystemExit('it was imported')")
    (tmp_path / "transfer-0.40.dist-info").mkdir()
    (tmp_path / "transfer-0.40.dist-info/METADATA").write_text(
        "Metadata-Version: 2.0\nName: transfer\nVersion: 0.40\n"
    )
    (tmp_path / "transfer-0.40.dist-info/RECORD").write_text(
        "transfer/__init__.py,,\ntransfer/__main__.py,,\n"
    )
    return tmp_path


def test_the_command_names_the_distribution_that_overwrote_it(other) -> None:
    done = command(other, "version")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "transfer: transfer 0.40 has installed files of the same names over tensor-transfer\n"
        f"  hint: {MEND}\n"
    )


def test_the_command_says_so_where_files_of_the_other_one_were_left(other) -> None:
    shutil.rmtree(other / "transfer-0.40.dist-info")
    done = command(other, "version")
    assert done.returncode == 1
    assert "another distribution had installed files of the same names" in done.stderr
    assert f"hint: {HINT}\n" in done.stderr


def test_the_command_says_so_where_the_other_one_took_our_files_with_it(other) -> None:
    (other / "transfer/__init__.py").unlink()
    shutil.copy(ROOT / "tensor_transfer.py", other)
    program = f"import sys; sys.path.insert(0, {str(other)!r}); from tensor_transfer import main; main()"
    done = python(other, "-I", "-S", "-c", program)  # without the path to ours
    assert done.returncode == 1 and f"hint: {MEND}\n" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("record", "source"),
    [
        ('{"url": "file:///src/it", "dir_info": {"editable": true}}', "-e /src/it"),
        ('{"url": "https://example.org/it.whl", "archive_info": {}}', "https://example.org/it.whl"),
        (None, "tensor-transfer"),
    ],
    ids=["editable", "from elsewhere", "from an index"],
)
def test_what_mends_it_names_where_ours_came_from(other, record, source) -> None:
    """It named the index, which does not have the package."""
    told = other / "tensor_transfer-0.1.0.dist-info/direct_url.json"
    told.unlink() if record is None else told.write_text(record)
    done = python(other, "-c", "import tensor_transfer; print(tensor_transfer.remedy())")
    assert done.stdout == f"pip uninstall -y transfer && pip install --force-reinstall --no-deps {source}\n"


def test_the_command_works_where_there_is_no_other_one(tmp_path) -> None:
    done = command(tmp_path, "version")
    assert done.returncode == 0 and done.stdout.startswith("transfer "), done.stderr


def test_the_doctor_names_the_other_distribution(other) -> None:
    shutil.rmtree(other / "transfer")  # ours was installed last
    done = command(other, "doctor", "--json")
    found = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "package"]
    assert [(one["status"], one["hint"]) for one in found] == [("warn", MEND)], done.stdout
    assert "transfer 0.40" in found[0]["detail"]
    alone = json.loads(command(ROOT, "doctor", "--json").stdout)["checks"]
    assert not [one for one in alone if one["name"] == "package"]


# --- with the real ones ---------------------------------------------------------------------------


@pytest.fixture
def fresh(environment, tmp_path) -> Path:  # noqa: F811
    """An empty environment; it is skipped where there is no index."""
    run([sys.executable, "-m", "venv", str(tmp_path / "env")], tmp_path)
    return tmp_path / "env"


def pip(fresh: Path, *words: str) -> None:
    run([str(fresh / "bin/pip"), *words, "-q"], fresh, **PIP)


def there(fresh: Path, name: str) -> bool:
    program = f"import importlib, sys; importlib.import_module({name!r})"
    done = subprocess.run(
        [fresh / "bin/python", "-c", program],
        cwd=fresh, capture_output=True, timeout=50, check=False, env=without_ours(),
    )  # fmt: skip
    return done.returncode == 0


def files(fresh: Path, name: str) -> list[Path]:
    return [
        path for path in fresh.glob(f"lib/*/site-packages/{name}/**/*") if "__pycache__" not in path.parts
    ]


@pytest.mark.slow
def test_it_stands_beside_the_transports_of_pypi(fresh, package) -> None:  # noqa: F811
    pip(fresh, "install", str(package), "transports==0.10.0")
    assert there(fresh, "transports") and there(fresh, "transfer.transports.errors")
    pip(fresh, "uninstall", "-y", "tensor-transfer")
    assert there(fresh, "transports") and not there(fresh, "transfer.transports")
    assert not files(fresh, "transfer") and not files(fresh, "pyspark_transfer")
    pip(fresh, "install", str(package))
    pip(fresh, "uninstall", "-y", "transports")
    assert there(fresh, "transfer.transports.errors") and not there(fresh, "transports")
    assert not files(fresh, "transports")


@pytest.mark.slow
@pytest.mark.parametrize("last", ["ours", "theirs"])
def test_the_transfer_of_pypi_is_found_and_removed(fresh, package, last) -> None:  # noqa: F811
    theirs, ours = ("--no-deps", "transfer==0.40"), (f"{package}[cli]",)
    for words in (theirs, ours) if last == "ours" else (ours, theirs):
        pip(fresh, "install", *words)
    done = subprocess.run(
        [fresh / "bin/tensor-transfer", "doctor"],
        cwd=fresh, capture_output=True, text=True, timeout=60, check=False, env=without_ours(),
    )  # fmt: skip
    said = done.stdout if last == "ours" else done.stderr
    assert "transfer 0.40" in said and "pip uninstall -y transfer && pip install" in " ".join(said.split())
    pip(fresh, "uninstall", "-y", "transfer")
    pip(fresh, "install", "--force-reinstall", "--no-deps", str(package))
    for name in ("transfer", "tensor-transfer"):
        assert run([str(fresh / "bin" / name), "version"], fresh, PYTHONWARNINGS="ignore").startswith(
            "transfer "
        )
    assert not files(fresh, "transfer/resnet50.py")
