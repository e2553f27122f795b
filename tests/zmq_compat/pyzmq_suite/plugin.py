"""A plugin for pytest that runs pyzmq's tests with `transfer.zmq` named `zmq`, and writes their outcomes.

RESULTS names the file, which gets a line of JSON for each test: its name, its outcome and the reason.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from transfer.zmq import as_zmq

as_zmq.install()

RESULTS = Path(os.environ["RESULTS"])
#: seconds; the tests have an alarm of their own, which replaces that of pytest-timeout
PATIENCE = 10

_bad = {}


def pytest_collection_modifyitems():
    if "zmq_test_utils" in sys.modules:
        sys.modules["zmq_test_utils"].BaseZMQTestCase.test_timeout_seconds = PATIENCE


def pytest_collectreport(report):
    if report.failed:
        _write(report.nodeid, "failed", str(report.longrepr))


def pytest_runtest_logreport(report):
    if report.outcome != "passed":
        _bad.setdefault(report.nodeid, (report.outcome, str(report.longrepr)))
    if report.when == "teardown":
        _write(report.nodeid, *_bad.get(report.nodeid, ("passed", "")))


def _write(name, outcome, reason):
    with RESULTS.open("a") as out:
        out.write(json.dumps([name, outcome, reason[-2000:]]) + "\n")
