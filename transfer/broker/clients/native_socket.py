"""Connects a BrokerClient: each connection gets a new socket."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import transfer
from transfer.sockets.connections.no_peer import Warned
from transfer.transports.arguments import wrong
from transfer.transports.errors import Again
from transfer.transports.handshake.identity import one_time_identity

#: the socket does not reconnect: requests of the lost connection would be lost without an error
_NEVER_MS = 86_400_000
#: seconds for the first try to connect, and for the longest one
_FIRST_TRY, _LONGEST_TRY = 0.25, 4.0


def context_of(given: transfer.Context | None) -> transfer.Context:
    """Returns the given context, or a new one. Raises ArgumentError."""
    if not (given is None or isinstance(given, transfer.Context)):
        raise wrong("context", given, "a transfer.Context, or None")
    return given or transfer.Context()


def connected_socket(
    context: transfer.Context, endpoint: str, deadline: float, given_up: Callable[[], object]
) -> Any:
    """Returns a connected DEALER socket. Raises Again at the deadline, or if `given_up` returns true."""
    began, seconds, warned = time.monotonic(), _FIRST_TRY, Warned()
    while True:
        left = max(0.0, deadline - time.monotonic())
        socket = context.socket(transfer.DEALER)
        try:
            # A new identity each time shows the broker that the earlier connection has gone.
            socket.identity = one_time_identity()
            socket._links.no_peer.warned = warned  # one warning for all tries
            socket.rcvhwm = 0
            socket.reconnect_ivl = socket.reconnect_ivl_max = _NEVER_MS
            socket.connect(endpoint)
            socket.wait_for_peers(1, min(seconds, left))
        except Again as error:
            socket.close(0)
            if seconds >= left or given_up():
                # The error knows of the last try alone.
                problem, tried = str(error).partition("\n")[0], time.monotonic() - began
                text = f"no broker has answered at {endpoint} in {tried:.1f} s; the last try: {problem}"
                raise Again(text, hint=error.hint) from error
            seconds = min(2 * seconds, _LONGEST_TRY)
        except BaseException:
            socket.close(0)
            raise
        else:
            return socket
