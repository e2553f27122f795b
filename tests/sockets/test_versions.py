"""This version talks to the one before the last change of the wire: from history, and by kept hellos."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import transfer
from tests.broker.in_process_broker import running
from transfer.transports.core.wire import HEADER, HEADER_SIZE, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.hello import APPROVAL, PROVES_FIRST, decode_body, negotiate
from transfer.transports.handshake.identity import make_hello

from . import version_peer

ROOT = Path(__file__).parents[2]
#: the version whose accepting side proved the token first
BEFORE = "9f27d23653cc5cd564edbe167d70b4f55eb3bb49"
#: the version whose positions in a broker's log had no epoch
WITHOUT_EPOCHS = "1aa00f480674f7b3e1dccbb07a916f7d7e9e164e"
TOKEN = "4f1c09d7b2e64a3885d0c7f9e1a2b356"
KINDS = [
    *version_peer.PAIRS,
    *(kind for kind in version_peer.PAIRS.values() if kind not in version_peer.PAIRS),
]
OTHER = version_peer.PAIRS | {other: kind for kind, other in version_peer.PAIRS.items()}


class Older:
    """A process of that version, which takes part in exchanges."""

    def __init__(self, tree: Path) -> None:
        environment = {name: text for name, text in os.environ.items() if not name.startswith("TRANSFER")}
        environment |= {"PYTHONPATH": str(tree), "TRANSFER_CORE": "twin"}
        self.tree = tree
        self._process = subprocess.Popen(
            [sys.executable, "-P", version_peer.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        place, _ = json.loads(self.line())
        assert Path(place) == tree, "it is the older one"

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def begin(self, **task: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait(60)
            self._process.stdout.close()


def checked_out(commit: str, tree: Path) -> Path:
    packages = ("transfer", "transports", "patterns")
    made = subprocess.run(
        ["git", "archive", commit, *packages], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    if made.returncode:
        pytest.skip(f"no history with {commit} here")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return tree


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    one = Older(checked_out(BEFORE, tmp_path_factory.mktemp("older")))
    yield one
    one.close()


def exchange(older: Older, kind: str, *, older_binds: bool, protocol: str, token: str = "") -> list[str]:
    """[what the older one says, what this one says]. kind: of the older one."""
    common = {"protocol": protocol, "token": token, "endpoint": "tcp://127.0.0.1:0"}
    theirs = common | {"kind": kind, "speaks": kind in version_peer.PAIRS, "bind": older_binds}
    ours = common | {"kind": OTHER[kind], "speaks": not theirs["speaks"], "bind": not older_binds}
    if older_binds:
        older.begin(**theirs)
        endpoint = older.line().strip()
        said = version_peer.take_part(ours | {"endpoint": endpoint}, lambda _: None)
    else:
        said = version_peer.take_part(ours, lambda endpoint: older.begin(**theirs | {"endpoint": endpoint}))
    return [json.loads(older.line()), said]


@pytest.mark.parametrize("protocol", ["auto", "tcp"])
@pytest.mark.parametrize("older_binds", [True, False], ids=["it binds", "it connects"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_patterns_with_the_version_before(older, kind, older_binds, protocol):
    assert exchange(older, kind, older_binds=older_binds, protocol=protocol) == ["good", "good"]


# -- with a token, whose proofs have another order now --------------------------------------------------


@pytest.mark.parametrize("older_binds", [True, False], ids=["it binds", "it connects"])
def test_with_a_token_both_say_at_once_why_they_do_not_talk(older, older_binds):
    theirs, ours = exchange(older, "PULL", older_binds=older_binds, protocol="tcp", token=TOKEN)
    assert ours.startswith("token: the peer is an older version")
    if not older_binds:
        assert theirs.startswith("token: the peer refused: this side is an older version")
    assert "within" not in theirs, "no time had to pass"


# -- SUBs that read a log, whose positions have an epoch now ----------------------------------------------

OLDER_SUB = """
import sys, transfer
with transfer.Context() as context, context.socket(transfer.SUB) as sub, sub.get_monitor() as monitor:
    sub.connect(sys.argv[1])
    while (event := monitor.recv(20)).kind != "handshake_failed":
        pass
    print(event.reason)
"""
OLDER_BROKER = """
import sys, pathlib
from transfer.broker.fronts.own import OwnSettings
from transfer.broker.server import Broker
from transfer.broker.settings import Settings
own = OwnSettings(*3 * ["tcp://127.0.0.1:0"])
settings = Settings(own=own, ttp=None, pybroker=None, rqueue=None, http=None, spool=None, abtp=None)
with Broker(pathlib.Path(sys.argv[1]), settings) as broker:
    print(broker.endpoints["subscriptions"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def without_epochs(tmp_path_factory):
    return checked_out(WITHOUT_EPOCHS, tmp_path_factory.mktemp("without"))


def older_program(tree: Path, program: str, argument: str) -> subprocess.Popen[str]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TRANSFER")}
    environment |= {"PYTHONPATH": str(tree), "TRANSFER_CORE": "twin"}
    command = [sys.executable, "-P", "-W", "ignore", "-c", program, argument]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def test_an_older_sub_is_not_sent_positions_that_it_would_misread(without_epochs, tmp_path):
    with running(tmp_path / "data") as broker:
        endpoint = f"{broker.endpoints['subscriptions']}?begin=old"
        with older_program(without_epochs, OLDER_SUB, endpoint) as sub:
            assert sub.communicate(timeout=60)[0] == "keeps\n"


def test_an_older_broker_is_refused(without_epochs, tmp_path):
    with older_program(without_epochs, OLDER_BROKER, str(tmp_path / "data")) as broker:
        try:
            with transfer.Context() as context, context.socket(transfer.SUB) as sub:
                monitor = sub.get_monitor()
                sub.connect(f"{broker.stdout.readline().strip()}?begin=old")
                while (event := monitor.recv(20)).kind != "handshake_failed":
                    pass
                assert event.reason == "no_log"
                monitor.close()
        finally:
            broker.communicate(timeout=60)


# -- without history -------------------------------------------------------------------------------------

KEPT = json.loads((Path(__file__).parent / "older_hellos.json").read_text())


@pytest.mark.parametrize("name", KEPT)
def test_hellos_that_were_kept(name):
    """Whole frames, as that version sent them."""
    frame = bytes.fromhex(KEPT[name])
    kind = SocketType(HEADER.unpack(frame[:HEADER_SIZE])[2])
    remote = decode_body(frame[HEADER_SIZE:], kind)
    proves = name.endswith("with a token")
    ours = make_hello(SocketType[OTHER[kind.name]], proves=proves)
    if not proves:
        agreement = negotiate(ours, remote)
        assert agreement.features == remote.features < ours.features
        assert ours.features - remote.features == {APPROVAL, PROVES_FIRST}
        return
    with pytest.raises(HandshakeError, match="the peer is an older version") as caught:
        negotiate(ours, remote)
    assert caught.value.reason == "token"


def test_they_are_what_that_version_says(older):
    program = (
        "from transports.identity import make_hello; from transports.hello import encode; "
        "from transports.wire import SocketType as S; print(encode(make_hello(S.PUSH, proves=True)).hex())"
    )
    environment = os.environ | {"PYTHONPATH": str(older.tree)}
    said = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    now, kept = (
        json.loads(bytes.fromhex(text)[HEADER_SIZE + 1 :])
        for text in (said.stdout, KEPT["PUSH with a token"])
    )
    assert now.keys() - {"lacking"} == kept.keys() and now["features"] == kept["features"]
    assert len(KEPT) == 2 * len(KINDS)
