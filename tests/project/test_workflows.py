"""The workflows of GitHub Actions. They run there only: here it is checked that what they call exists, and
that their Pythons are those that the package names."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from itertools import product
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: what the runner has besides what the steps before have brought
_THERE = {"make", "docker", "helm", "echo", "image"}


def jobs_of(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"]


JOBS = [
    pytest.param(job, id=f"{path.stem}-{name}")
    for path in WORKFLOWS
    for name, job in jobs_of(path.stem).items()
]


def commands(job):
    """Each line that a job runs, once for each value of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    for values in product(*matrix.values()):
        for step in job["steps"]:
            text = step.get("run", "")
            for name, value in zip(matrix, values, strict=True):
                text = text.replace(f"${{{{ matrix.{name} }}}}", value)
            assert "${{" not in text, "what comes from outside reaches the shell by `env` only"
            yield from filter(None, text.splitlines())


def test_all_are_there():
    assert [path.stem for path in WORKFLOWS] == ["images", "test", "wheels"]


@pytest.mark.parametrize("job", JOBS)
def test_what_a_job_calls_is_there(job):
    called = 0
    for line in commands(job):
        first, *rest = shlex.split(line)
        if first == "make":
            subprocess.run(
                ["make", "--dry-run", *rest], cwd=ROOT, check=True, capture_output=True, timeout=60
            )
        elif first == "helm":
            assert any((ROOT / word).is_dir() for word in rest if word.startswith("deploy/"))
        elif first.partition("=")[0] not in _THERE:
            assert (ROOT / first).stat().st_mode & 0o111, f"{first} is no program"
        called += 1
    assert called
    assert 0 < job["timeout-minutes"] <= 90


def test_the_pythons_are_those_of_the_package():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    supported = [found[1] for one in named if (found := re.fullmatch(r".*:: Python :: (3\.\d+)", one))]
    assert jobs_of("test")["test"]["strategy"]["matrix"]["python"] == supported


def test_nothing_is_published_but_tags():
    [pushing] = [step for step in jobs_of("images")["image"]["steps"] if "docker push" in step.get("run", "")]
    assert pushing["if"] == "startsWith(github.ref, 'refs/tags/v')"
