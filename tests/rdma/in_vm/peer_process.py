"""The other process of a pair: it connects, does as it is told, and may be killed at any time."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable
from typing import Any

from tests.rdma.ends import World, agreement
from transfer.transports.core.wire import SocketType
from transfer.transports.handshake.upgrade import Dialogue, Surroundings
from transfer.transports.rdma.upgrade import VerbsUpgrade
from transfer.transports.testing.ends import plain

#: not forked from a process with verbs in it, and quicker than spawn
CONTEXT = multiprocessing.get_context("forkserver")


def upgrade_over(connection: socket.socket, made: World, around: Surroundings, connecting: bool) -> Any:
    """The dialogue over a real connection; the stream at our end."""
    upgrade = VerbsUpgrade(around, agreement(around), connecting=connecting)
    try:
        dialogue = Dialogue(upgrade, SocketType.PAIR)
        dialogue.begin()
        connection.settimeout(60)
        while dialogue.outcome is None:
            connection.sendall(dialogue.output)
            dialogue.output.clear()
            data = connection.recv(dialogue.wants)
            assert data, "the other end closed in the dialogue"
            dialogue.feed(data)
        connection.sendall(dialogue.output)
        if isinstance(dialogue.outcome, BaseException):
            raise dialogue.outcome
    except BaseException:
        upgrade.close()
        connection.close()
        raise
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return made.adopt(upgrade, connection)


class PeerProcess:
    """A process that connects to us. `do` is what it does then: see `main`. prepare: called there first."""

    def __init__(
        self,
        made: World,
        around: Surroundings,
        do: str,
        size: int,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        CONTEXT.set_forkserver_preload([__name__])
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.settimeout(120)
            self.link, theirs = CONTEXT.Pipe()
            self.process = CONTEXT.Process(
                target=main, args=(listener.getsockname(), theirs, do, size, prepare)
            )
            self.process.start()
            theirs.close()
            connection, _ = listener.accept()
        self.stream = upgrade_over(connection, made, around, False)

    def expect(self, word: str) -> None:
        assert self.link.poll(60), f"waited in vain for {word}"
        assert self.link.recv() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)
        self.process.close()
        self.link.close()


def main(address: tuple[str, int], link: Any, do: str, size: int, prepare: Callable[[], None] | None) -> None:
    """send: announces one message and waits. receive: reads whatever comes. idle: nothing."""
    if prepare is not None:
        prepare()
    made = World()
    stream = upgrade_over(socket.create_connection(address), made, made.socket(), True)
    if do == "send":
        stream.send(plain(bytes(size)))
    link.send("ready")
    while True:
        if do == "receive":
            stream.receive()
        time.sleep(0.001)
