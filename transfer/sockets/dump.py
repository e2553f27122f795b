"""The state of a context as plain data: what a bug report needs to name sockets, endpoints and peers."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transfer.sockets.context import Context
    from transfer.sockets.peer import PeerInfo
    from transfer.sockets.socket import Socket


def dump_context(context: Context) -> dict[str, Any]:
    """What `json.dumps` takes: see `Context.dump`."""
    core = context.core
    offer = context._transfer_offer  # not `offer`, which would look at the hardware
    return {
        "process": os.getpid(),
        "core": getattr(
            core, "IMPLEMENTATION", core.__name__.rpartition(".")[2]
        ),  # tests give one of both cores
        "terminated": context.closed,
        "protocol": context.transport_config.protocol,
        "policy": context.transport_config.policy,
        "transports": None if offer is None else list(offer.transports),
        "sockets": [_dump_socket(socket) for socket in context.sockets],
    }


def _dump_socket(socket: Socket) -> dict[str, Any]:
    links = socket._links
    defaults = socket.context.option_values
    return {
        "type": socket._pattern.socket_type.name,
        "endpoints": [
            {
                "endpoint": str(one.address),
                "direction": "connect" if one.outgoing else "bind",
                "error": None if one.error is None else str(one.error),
            }
            for one in tuple(links.state.endpoints)
        ],
        "options": {
            name: _plain(value) for name, value in socket._values.items() if value != defaults.get(name)
        },
        "waiting_for_a_peer": len(links.orphans.messages),
        "peers": [_dump_peer(peer) for peer in links.infos()],
    }


def _dump_peer(peer: PeerInfo) -> dict[str, Any]:
    return {name: _plain(value) for name, value in asdict(peer).items()} | {
        "socket_type": peer.socket_type.name
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("ascii", "backslashreplace")
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
