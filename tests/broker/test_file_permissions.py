"""Other users of the host read nothing of a broker's or spool's folder, and reach no socket of a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import transfer
from tests.broker.in_process_broker import FREE, running
from transfer.broker.clients.native import BrokerClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.server import Broker
from transfer.broker.storage.dead_letter_payloads import LetterPayloads
from transfer.log import Log
from transfer.log.quarantine import save_tail
from transfer.transports import ipc


@pytest.fixture
def careless():
    """A umask that leaves everything open."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """What in a folder, and the folder itself, group or others may do something with."""
    paths = [folder, *folder.rglob("*")]
    modes = {str(path.relative_to(folder)): path.lstat().st_mode for path in paths if not path.is_symlink()}
    assert len(modes) > 1
    return {name: stat.filemode(mode) for name, mode in modes.items() if mode & 0o077}


def fill(broker: Broker) -> None:
    """Messages, small and large, and a dead letter with a payload in a file."""
    with BrokerClient(broker.endpoints["requests"]) as client:
        for data in (b"small", bytes(3 << 20)):
            client.publish("orders", data)
        orders = client.consume("orders", "billing", begin="old")
        for _ in range(2):
            orders.ack(orders.recv(), wait=True)


def test_a_brokers_folder(tmp_path, careless):
    folder = tmp_path / "above" / "data"
    own = NativeSettings(f"ipc://{folder}.requests", FREE, FREE)
    with running(folder, native=own, spool=FREE, http=0) as broker:
        fill(broker)
        assert {"log", "state.db", "state.db-wal", "audit"} <= set(os.listdir(folder))
        assert not open_to_others(folder)
        assert stat.S_IMODE(os.stat(f"{folder}.requests").st_mode) == 0o600
    assert not open_to_others(folder)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700, "a folder that was made on the way"


def test_large_dead_letters_and_quarantined_data(tmp_path, careless):
    LetterPayloads(tmp_path / "letters").write(lambda: iter([bytes(100)]), 100)
    (tmp_path / "log").mkdir(0o700)
    save_tail(tmp_path / "log", tmp_path / "log" / "segment", 7, b"torn")
    for part in ("letters", "log"):
        assert not open_to_others(tmp_path / part)


def test_a_folder_of_an_older_version_is_closed_at_the_start(tmp_path, caplog):
    folder = tmp_path / "data"
    with running(folder) as broker:
        fill(broker)
    (folder / "notes").write_text("not the broker's")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with running(folder):
        assert set(open_to_others(folder)) == {"notes"}, "what is not the broker's stays as it is"
    told = [line for line in caplog.messages if "removed other users' permissions" in line]
    assert len(told) == 2 and str(folder) in told[0]
    caplog.clear()
    with running(folder):
        assert not any("removed other users' permissions" in line for line in caplog.messages)


def test_a_log_alone(tmp_path, careless):
    folder = tmp_path / "log"
    with Log(folder) as log:
        log.commit(log.append("topic", b"data", blob=bytes(1 << 20))[0])
    assert not open_to_others(folder)


@pytest.mark.parametrize("folder", ["", "named"])
def test_ipc_sockets_of_any_program(tmp_path, careless, folder):
    endpoint = f"ipc://{tmp_path / 'socket'}" if folder else "ipc://*"
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.bind(endpoint)
        path = pull.last_endpoint.removeprefix("ipc://")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with context.socket(transfer.PUSH) as push:
            push.connect(f"ipc://{path}")
            push.send(b"this user may")
            pull.rcvtimeo = 30_000
            assert pull.recv() == b"this user may"


def test_abtps_ipc_sockets(tmp_path, careless, monkeypatch):
    """From the first moment: another user who watches the folder connects as soon as a socket listens."""
    zmq = pytest.importorskip("zmq")
    bind, modes = ipc._bind, {}

    def bind_and_look(listener, address):
        bind(listener, address)
        modes[str(address)] = stat.S_IMODE(os.stat(address.path).st_mode)

    monkeypatch.setattr(ipc, "_bind", bind_and_look)
    paths = [tmp_path / name for name in ("router", "pub")]
    places = AbtpEndpoints(*(f"ipc://{path}" for path in paths))
    with running(tmp_path / "data", native=None, ttp=None, pybroker=None, rqueue=None, abtp=places):
        assert [modes[f"ipc://{path}"] for path in paths] == [0o600, 0o600]
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(places.router)
            dealer.send_multipart([b"", b"no topic"])
            assert dealer.poll(10_000), "the front answers"
    assert not any(path.exists() for path in paths)
