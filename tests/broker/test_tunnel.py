"""abtp's tunnel by itself; what goes through it is in test_secure_fronts.py."""

from __future__ import annotations

import gc
import socket
import threading

from tests.broker.secure_peers import Identities
from tests.ports import free_port
from transfer.broker.clients.tunnel import Tunnel


def test_it_ends_whole_while_connections_come_in(tmp_path) -> None:
    """Whoever was accepted at the last moment is closed too: a socket that is left warns, and fails here."""
    identities = Identities(tmp_path)
    security = identities.shown_by(identities.client)
    for _ in range(15):
        tunnel = Tunnel(f"tcp://127.0.0.1:{free_port()}", security)
        path, over = tunnel.endpoint.removeprefix("ipc://"), threading.Event()

        def call(path=path, over=over) -> None:
            while not over.is_set():
                with socket.socket(socket.AF_UNIX) as caller:
                    try:
                        caller.connect(path)
                    except OSError:
                        continue

        callers = [threading.Thread(target=call) for _ in range(2)]
        for caller in callers:
            caller.start()
        over.wait(0.01)
        tunnel.close()
        over.set()
        for caller in callers:
            caller.join()
    gc.collect()
