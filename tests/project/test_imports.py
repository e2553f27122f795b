"""Importing does nothing: no optional library, no thread, no logger, no environment, no descriptor."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import textwrap
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONAL = (
    "numpy", "torch", "pyspark", "pyarrow", "lz4", "safetensors", "ml_dtypes", "prometheus_client", "typer",
    "msgspec", "rich", "zmq", "ucxx", "transfer.transports.core.native", "asyncio", "multiprocessing",
    "logging.config",
)  # fmt: skip
PACKAGES = (
    "transfer", "transfer.asyncio", "transfer.broker", "transfer.metrics", "transfer.objects",
    "transfer.patterns", "transfer.sockets", "transfer.spark", "transfer.spool", "transfer.torch",
    "transfer.transports", "transfer.zmq", "pyspark_transfer",
)  # fmt: skip
#: packages that export names by `lazy.exports`
LAZY = (
    "transfer.broker", "transfer.broker.clients", "transfer.log", "transfer.metrics", "transfer.mooncake",
    "transfer.objects",
    "transfer.sockets", "transfer.sockets.connections", "transfer.spark", "transfer.spool",
    "transfer.tensors", "transfer.torch",
)  # fmt: skip
#: what a module of ours is for decides what it may load beyond that
CORE = "transfer.transports.core.native"
ALLOWED = {
    "transfer.asyncio": {"asyncio", CORE},
    "transfer.zmq": {CORE},
    "pyspark_transfer": {"pyspark", "msgspec", CORE},
}

PROBE = """
import logging, os, sys, threading
names = {names!r}
environment = dict(os.environ)
handlers = list(logging.getLogger().handlers), logging.getLogger().level
descriptors = sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else []
threads = threading.active_count()
before = set(sys.modules)
import {package}
loaded = [name for name in names if name in sys.modules and name not in before]
assert not loaded, f"loaded {{loaded}}"
assert dict(os.environ) == environment, "the environment changed"
assert (list(logging.getLogger().handlers), logging.getLogger().level) == handlers, "the root logger changed"
assert threading.active_count() == threads, "a thread was started"
if descriptors:
    assert sorted(os.listdir("/proc/self/fd")) == descriptors, "a descriptor was opened"
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=ROOT, capture_output=True, text=True, timeout=50, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_has_no_effect(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.fail(f"{package} does not exist")
    names = tuple(name for name in OPTIONAL if name not in ALLOWED.get(package, ()))
    answer = run_python(PROBE.format(names=names, package=package))
    assert answer.returncode == 0, answer.stderr


def test_every_public_name_of_transfer_is_there() -> None:
    answer = run_python(
        """
        import transfer
        missing = [name for name in transfer.__all__ if not hasattr(transfer, name)]
        assert not missing, missing
        assert set(transfer.__all__) <= set(dir(transfer))
        """
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("package", LAZY)
def test_every_name_that_a_package_exports_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ and [name for name in module.__all__ if not hasattr(module, name)] == []
    assert not hasattr(module, "nothing")


def test_interpreter_exit_is_clean_with_open_sockets() -> None:
    """Forgotten sockets neither hang the exit nor print a traceback."""
    answer = run_python(
        """
        import warnings
        warnings.simplefilter("ignore", ResourceWarning)
        import transfer
        context = transfer.Context()
        pull = context.socket(transfer.PULL)
        pull.bind("tcp://127.0.0.1:0")
        """
    )
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr


def test_no_package_of_tests_has_the_name_of_a_library():
    """pytest imports such a folder by its bare name: `import cuda` found tests/cuda, and tests skipped."""
    libraries = set(packages_distributions())
    packages = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert "rdma" in packages and "numpy" in libraries
    assert not packages & libraries
