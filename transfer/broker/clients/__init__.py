"""Small clients for the protocols that the broker speaks; they need the standard library only.

abtp                 clients for abtp/1, over pyzmq
abtp_connection      the base of the clients for abtp/1: one ZeroMQ socket, and TLS in front of it
connection           a TCP connection of a client
native               the client of the broker's native front
native_batch         collects requests of one thread that go to the broker in one message
native_consumer      a consumer of a group; `BrokerClient.consume` makes it
native_errors        converts the broker's refusals to exceptions
native_fetch         fetches large messages from the broker into one block of memory
native_socket        connects a BrokerClient: each connection gets a new socket
native_upload        sends large messages from a program to the broker in pieces
native_window        limits how far a program publishes ahead of the broker's answers
pybroker             a client for PyBroker's protocol
registry             registers endpoints of programs with a broker, and looks them up by name
registry_connection  a connection to a broker's registry, by the broker's native protocol
rqueue               a client for rqueue's protocol
tls                  TLS for the clients of the broker's fronts
ttp                  a small client for TTP v2
ttp_connection       the connection of a TTP client: sends frames and heartbeats, receives frames and answers
ttp_reader           the receiving half of the TTP client: reads frames from a socket, and assembles streams
tunnel               TLS for ZeroMQ sockets: forwards the bytes of a private Unix socket to a broker over TLS
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
    from transfer.broker.clients.native import BrokerClient
    from transfer.broker.clients.pybroker import PyBrokerClient
    from transfer.broker.clients.registry import RegisteredName, look_up
    from transfer.broker.clients.rqueue import RqueueClient
    from transfer.broker.clients.ttp import TtpClient

__all__ = [
    "AbtpConsumer",
    "AbtpProducer",
    "BrokerClient",
    "PyBrokerClient",
    "RegisteredName",
    "RqueueClient",
    "TtpClient",
    "look_up",
]

exports(
    __name__,
    {
        "abtp": "AbtpConsumer AbtpProducer",
        "native": "BrokerClient",
        "pybroker": "PyBrokerClient",
        "registry": "RegisteredName look_up",
        "rqueue": "RqueueClient",
        "ttp": "TtpClient",
    },
)
