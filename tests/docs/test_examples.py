"""Every program in README.md and docs/ runs, or says why it is not run; what they print is what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import tests.ports
from tests.docs.examples import (
    DOCUMENTS,
    Example,
    examples,
    on_free_ports,
    programs,
    run_python,
    run_shell,
    without_ports,
)

#: what a fence may be: run here, parsed here, or a figure or output
LANGUAGES = {"python", "sh", "toml", "yaml", "promql", ""}


def test_every_fence_is_accounted_for() -> None:
    for example in examples():
        assert example.language in LANGUAGES, example
        assert "not run" not in example.notes or len(example.notes["not run"].split()) > 2, f"{example}: why?"
        if example.language == "promql":
            assert "not run" in example.notes, example


def test_the_documents_hold_as_many_fences_as_we_see() -> None:
    """A fence that the pattern does not understand would never be run."""
    marks = sum(len(re.findall(r"^ *```", document.read_text(), re.MULTILINE)) for document in DOCUMENTS)
    outputs = sum(1 for example in examples() if example.output)
    assert marks == 2 * (len(examples()) + outputs)
    assert len(programs("python", spark=False)) >= 4
    assert len(programs("python", spark=True)) >= 3


def test_nothing_hidden_is_run() -> None:
    """Hidden comments set up a broker or a spool: pasted programs did not run."""
    assert not [path for path in DOCUMENTS if re.search(r"<!--\s*(before|after):", path.read_text())]


def test_ports_do_not_get_in_each_others_way(monkeypatch) -> None:
    free = iter([29100, 29100, 29101, 23181])  # one with another example's port in it, itself, its neighbour
    monkeypatch.setattr(tests.ports, "free_port", lambda: next(free))
    assert on_free_ports("tcp://a:5580 http://a:9100 155580 tcp://a:5580") == (
        "tcp://a:29100 http://a:23181 155580 tcp://a:29100"
    )


@pytest.mark.parametrize("example", programs("python", spark=False), ids=str)
def test_python(example: Example, tmp_path) -> None:
    for module in ("numpy", "torch"):
        if re.search(rf"\b{module}\b", example.code):
            pytest.importorskip(module, reason=f"pip install 'tensor-transfer[{module}]'")
    printed = run_python(example, tmp_path)
    if example.output:
        assert without_ports(printed) == without_ports(example.output)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("example", programs("sh", spark=False), ids=str)
def test_shell(example: Example, tmp_path) -> None:
    printed = run_shell(example, tmp_path)
    if example.output:
        assert without_ports(printed) == without_ports(example.output)


@pytest.mark.parametrize("example", [e for e in examples() if e.language == "toml"], ids=str)
def test_toml(example: Example) -> None:
    assert tomllib.loads("\n".join(line.strip() for line in example.code.splitlines()))


def test_options_of_the_bench_that_pages_name_exist() -> None:
    """The benchmarks take too long to be run here; what they are started with is compared with --help."""
    named = {
        option
        for example in examples()
        for line in example.code.splitlines()
        if line.startswith("python -m bench")
        for option in re.findall(r"--[a-z]+", line.partition("#")[0])
    }
    answer = subprocess.run(
        [sys.executable, "-m", "bench", "--help"],
        cwd=DOCUMENTS[0].parent, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    assert named
    assert {option for option in named if option not in answer.stdout} == set()
