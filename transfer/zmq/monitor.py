"""Converts monitor events to the messages that libzmq's monitors send through a PAIR socket."""

from __future__ import annotations

import struct
import threading
from typing import Any

from transfer.sockets.monitor import Event as OurEvent, EventKind
from transfer.transports.errors import Again, Closed
from transfer.transports.handshake.hello import DENIED
from transfer.zmq.constants import Event

#: 16 bits of the event, 32 of its value, without padding
EVENT = struct.Struct("=hi")

_EVENTS = {
    EventKind.LISTENING: Event.LISTENING,
    EventKind.BIND_FAILED: Event.BIND_FAILED,
    EventKind.CONNECT_DELAYED: Event.CONNECT_DELAYED,
    EventKind.CONNECT_RETRIED: Event.CONNECT_RETRIED,
    EventKind.ACCEPT_FAILED: Event.ACCEPT_FAILED,
    EventKind.HANDSHAKE_FAILED: Event.HANDSHAKE_FAILED_PROTOCOL,
    EventKind.REFUSED: Event.HANDSHAKE_FAILED_PROTOCOL,
    EventKind.DISCONNECTED: Event.DISCONNECTED,
    EventKind.CLOSED: Event.CLOSED,
}
#: ms that a message may wait for a monitor that is not read
_PATIENCE = 1000


def _translate(event: OurEvent, bound: bool) -> list[Event]:
    """Returns the events of libzmq for one of `transfer`. `bound`: its endpoint is a bound one.

    CONNECTED here means that the handshake is complete; libzmq reports two events then.
    """
    if event.kind is EventKind.CONNECTED:
        return [Event.ACCEPTED if bound else Event.CONNECTED, Event.HANDSHAKE_SUCCEEDED]
    if event.reason in DENIED and event.kind is EventKind.HANDSHAKE_FAILED:
        return [Event.HANDSHAKE_FAILED_AUTH]
    known = _EVENTS.get(event.kind)
    return [] if known is None else [known]


class MonitorPump:
    """Sends the events of one socket to an inproc endpoint, in a separate thread.

    pair: a new PAIR, which the pump binds to `addr` and owns from now on. wanted: the bits of the events to
    send. `close` sends MONITOR_STOPPED and ends the thread.
    """

    def __init__(self, sock: Any, pair: Any, addr: str, wanted: int) -> None:
        self._links = sock._links
        self._wanted = wanted
        self._pair = pair
        self._pair.linger = 0
        self._pair.sndtimeo = _PATIENCE
        self._pair.bind(addr)
        self._monitor = sock.get_monitor()
        self._thread = threading.Thread(target=self._run, name="zmq-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after it has sent all earlier events. Idempotent."""
        self._monitor.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            for event in self._monitor:
                bound = self._is_bound(event.endpoint)
                for bit in _translate(event, bound):
                    # A status of the authenticator; other events have no value here.
                    value = DENIED[event.reason] if bit == Event.HANDSHAKE_FAILED_AUTH else 0
                    self._carry(bit, event.endpoint, value)
            self._carry(Event.MONITOR_STOPPED, "")
        except Closed:
            return  # the context was terminated
        finally:
            self._pair.close()

    def _is_bound(self, endpoint: str) -> bool:
        return any(
            record.acceptor is not None and str(record.address) == endpoint
            for record in list(self._links.state.endpoints)
        )

    def _carry(self, event: Event, endpoint: str, value: int = 0) -> None:
        if not self._wanted & event:
            return
        try:
            self._pair.send_multipart([EVENT.pack(event, value), endpoint.encode()])
        except Again:
            return  # this monitor is not read: the event is dropped, as in libzmq
