"""Two processes whose drivers differ, and UCX once in a process whoever loaded it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import transfer
from tests.ucx.ucxx_driver import there
from transfer.transports.ucx import driver
from transfer.transports.ucx.probe import report

pytestmark = pytest.mark.keeps("UCX's own descriptors")

PEER = """
import sys, transfer
from tests.ucx.ucxx_driver import use
from transfer.transports.ucx import driver
use()
with transfer.Context() as context, context.socket(transfer.REP) as rep:
    rep.rcvtimeo = rep.sndtimeo = 20_000
    rep.connect(sys.argv[1])
    rep.wait_for_peers(1)
    for _ in range(int(sys.argv[2])):
        rep.send_tensor(rep.recv_tensor() + 1)
    print(driver.fabric().driver, rep.peers()[0].transport)
"""
SHAPES = ((1,), (100, 100), (300, 300), (1500, 1500))


@pytest.mark.parametrize("theirs", ["libucp", "ucxx"] if there() else ["libucp"])
def test_a_peer_with_another_driver(theirs):
    environ = {**os.environ, "TRANSFER_TEST_UCX": theirs}
    with transfer.Context() as context, context.socket(transfer.REQ) as req:
        req.rcvtimeo = req.sndtimeo = 20_000
        req.bind("ucx://127.0.0.1:0")
        endpoint = req.last_endpoint
        peer = subprocess.Popen(
            [sys.executable, "-c", PEER, endpoint, str(3 * len(SHAPES))],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3], env=environ,
        )  # fmt: skip
        try:
            req.wait_for_peers(1)
            for turn in range(3):
                for shape in SHAPES:
                    tensor = np.full(shape, turn, dtype=np.float64)
                    req.send_tensor(tensor)
                    assert np.array_equal(req.recv_tensor(), tensor + 1)
            output, _ = peer.communicate(timeout=30)
        finally:
            peer.kill()
            peer.wait(20)
            peer.stdout.close()
    assert output.split() == [theirs, "ucx"]
    assert driver.fabric().driver == os.environ["TRANSFER_TEST_UCX"]


def test_one_copy_of_ucx_which_the_report_names():
    seen = report()
    assert seen.version == driver.fabric().version and seen.driver == driver.fabric().driver
    assert len(seen.copies) == 1 and not seen.warnings


def test_with_other_users_of_ucx_in_the_process():
    """They load what we have, or we what they have: the process has one UCX, and all go on."""
    for module in ("ucp", "ucxx"):
        if importlib.util.find_spec(module):
            importlib.import_module(module)
    assert len(report().copies) == 1
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.rcvtimeo = 20_000
        pull.bind("ucx://127.0.0.1:0")
        with context.socket(transfer.PUSH) as push:
            push.connect(pull.last_endpoint)
            push.wait_for_peers(1)
            push.send(b"still here" * 10_000)
            assert pull.recv() == b"still here" * 10_000
