"""The version comes from git's tags: deploy/version.py. What is built, and what runs, says the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

import transfer
from deploy.version import UNKNOWN, of_description, version_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_given_version(monkeypatch):
    monkeypatch.delenv("TRANSFER_VERSION", raising=False)


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit, and a function that runs git in it."""

    def git(*arguments):
        settings = ["-c", "user.name=one", "-c", "user.email=one@example.com", "-c", "commit.gpgsign=false"]
        command = ["git", *settings, *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=30)

    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    return tmp_path, git


@pytest.mark.parametrize(
    ("described", "version"),
    [
        ("v0.2.0-0-g1a2b3c4d5e", "0.2.0"),
        ("v0.2.0-3-g1a2b3c4d5e", "0.2.1.dev3+g1a2b3c4d5e"),
        ("v0.2.0-0-g1a2b3c4d5e-dirty", "0.2.1.dev0+g1a2b3c4d5e.dirty"),
        ("v1.9.9-12-g1a2b3c4d5e-dirty", "1.9.10.dev12+g1a2b3c4d5e.dirty"),
        ("v1.0.0rc1-0-g1a2b3c4d5e", "1.0.0rc1"),
        ("v1.0.0rc1-2-g1a2b3c4d5e", "1.0.0rc2.dev2+g1a2b3c4d5e"),
    ],
)
def test_what_git_describes(described, version):
    assert of_description(described) == version
    assert str(Version(version)) == version, "PEP 440 writes it in the same way"
    tag = Version(described.split("-")[0])
    assert Version(version) == tag or tag < Version(version)


def test_a_tag_that_is_no_version_is_refused():
    with pytest.raises(SystemExit, match=r"v0\.2 is no version"):
        of_description("v0.2-0-g1a2b3c4d5e")


def test_a_repository_before_and_behind_its_first_tag(repository):
    folder, git = repository
    assert re.fullmatch(r"0\.1\.0\.dev1\+g[0-9a-f]{10}", version_of(folder))
    (folder / "file").write_text("two")
    assert re.fullmatch(r"0\.1\.0\.dev1\+g[0-9a-f]{10}\.dirty", version_of(folder))
    assert ".dirty" not in version_of(folder, committed=True)
    git("tag", "other-9")
    git("commit", "--all", "--quiet", "--message", "two")
    git("tag", "v0.1.0")
    assert version_of(folder) == "0.1.0"
    git("commit", "--allow-empty", "--quiet", "--message", "three")
    assert re.fullmatch(r"0\.1\.1\.dev1\+g[0-9a-f]{10}", version_of(folder))


def test_a_tree_inside_another_repository_does_not_take_its_tags(repository):
    folder, git = repository
    git("tag", "v9.0.0")
    (folder / "inside").mkdir()
    assert version_of(folder / "inside") == UNKNOWN


def test_a_source_distribution_and_a_given_version_need_no_git(tmp_path, monkeypatch):
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: x\nVersion: 0.3.0\n\ntext\n")
    assert version_of(tmp_path) == "0.3.0"
    monkeypatch.setenv("TRANSFER_VERSION", "0.4.0")
    assert version_of(tmp_path) == "0.4.0"
    monkeypatch.setenv("TRANSFER_VERSION", "v0.4")
    with pytest.raises(SystemExit, match="no version"):
        version_of(tmp_path)


def test_without_git_it_is_unknown(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert version_of(repository[0]) == UNKNOWN


def test_what_is_built_has_it():
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=True,
        env={**os.environ, "TRANSFER_VERSION": "0.5.0"},
    )  # fmt: skip
    assert done.stdout.split()[-1] == "0.5.0"


def test_the_package_says_what_is_installed():
    assert transfer.__version__ == metadata.version("tensor-transfer")
    assert "__version__" in dir(transfer)


def test_the_package_does_not_load_metadata_until_it_is_asked():
    code = "import sys, transfer; assert 'importlib.metadata' not in sys.modules; print(transfer.__version__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    assert done.stdout.strip()


def test_the_chart_and_the_documents_name_one_version():
    """What is written by hand: examples, and the chart, to which a release gives its own version."""
    chart = yaml.safe_load((ROOT / "deploy/helm/transfer/Chart.yaml").read_text())
    version = chart["appVersion"]
    assert chart["version"] == version
    named = {
        found
        for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md"), ROOT / "README.md"]
        for found in re.findall(r"(?:\btransfer |\bV=|transfer:)(\d+\.\d+\.\d+)", page.read_text())
    }
    assert named <= {version}
