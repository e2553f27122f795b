"""Which core is taken, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: makes the compiled core unimportable
HIDE = "import sys; sys.modules['transfer.transports.core.native'] = None\n"


def run(code: str, choice: str, hide: bool) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRANSFER_CORE": choice, "PYTHONPATH": os.getcwd()}
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", (HIDE if hide else "") + code],
        capture_output=True, text=True, timeout=30, check=False, env=environment,
    )  # fmt: skip


SHOW = "from transfer.transports import core; print(core.IMPLEMENTATION, '|', core.REASON)"


def test_asked_for_the_twin():
    done = run(SHOW, "pure", hide=False)
    assert done.stdout.startswith("pure | ") and "TRANSFER_CORE" in done.stdout
    assert done.stderr == ""


def test_a_missing_compiled_core_is_logged_once_by_the_first_context():
    code = f"{SHOW}\nprint(transfer.__name__)\nfor _ in range(3):\n    transfer.Context().term()"
    done = run(f"import transfer\nfrom transfer import Context\n{code}", "auto", hide=True)
    assert done.stdout.startswith("pure | ") and len(done.stdout) > 10
    assert done.stderr.count("the compiled core is missing") == 1
    assert "--only-binary" in done.stderr and "apt install gcc python3-dev" in done.stderr


@pytest.mark.parametrize("code", [SHOW, "import transfer; transfer.Context; transfer.PUSH; transfer.Socket"])
def test_nothing_is_logged_before_there_is_a_context(code):
    assert run(code, "auto", hide=True).stderr == ""


def test_nothing_is_logged_where_the_python_core_was_chosen():
    assert run("import transfer; transfer.Context().term()", "pure", hide=True).stderr == ""


def test_asked_for_the_missing_native():
    done = run(SHOW, "native", hide=True)
    assert done.returncode != 0
    assert "InternalError" in done.stderr and "--only-binary" in done.stderr


def test_native_is_taken_when_it_is_there():
    pytest.importorskip("transfer.transports.core.native.stream", reason="the compiled core is not built")
    for choice in ("auto", "native"):
        done = run(SHOW, choice, hide=False)
        assert done.stdout.strip() == "native |" and done.stderr == ""


def test_every_name_of_the_contract_is_exported():
    names = "Pool Lease HeldBuffer Frame Flusher Stream SocketBase Turn IMPLEMENTATION REASON"
    done = run(
        f"import transfer.transports.core as core; [getattr(core, name) for name in {names.split()}]",
        "pure",
        False,
    )
    assert done.returncode == 0, done.stderr
