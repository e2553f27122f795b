"""The compared programs, one file each, found by name. No foreign library is imported here."""

from __future__ import annotations

from importlib import import_module

from bench.peers.base import Channel, Peer, Role

#: name -> (module, class, arguments)
PEERS: dict[str, tuple[str, str, dict[str, object]]] = {
    "transfer": ("ours", "Transfer", {}),
    "transfer-native": ("ours", "Transfer", {}),
    "transfer-spin": ("ours", "Transfer", {"spin_us": 200}),
    "transfer-pure": ("ours", "Transfer", {"pure": True}),
    "pyzmq": ("pyzmq", "Pyzmq", {}),
    "pynng": ("nng", "Nng", {}),
    "mooncake": ("mooncake", "Mooncake", {}),
    "gloo": ("gloo", "Gloo", {}),
    "raw": ("raw", "Raw", {}),
    "raw-tls": ("raw_tls", "RawTls", {}),
    "transfer-tls": ("ours", "Transfer", {"secure": True}),
    "transfer-local": ("ours", "Transfer", {"transport": "local"}),
    "transfer-ucx": ("ours", "Transfer", {"transport": "ucx"}),
    "transfer-rdma": ("ours", "Transfer", {"transport": "rdma"}),
    "interface": ("interface", "Interface", {}),
    "interface-batch": ("interface", "Interface", {"batch": True}),
    "ucxx-low": ("ucxx", "Low", {}),
    "shared_memory": ("shared", "Shared", {}),
}

#: transports for `transfer` in every case that has it, in addition to tcp
TRANSPORTS = ("local", "ucx", "rdma")

#: the name of `transfer` in the tables; ratios divide it by the others
OURS = "transfer"


def peer_named(name: str) -> Peer:
    """Returns the peer of that name. Raises ImportError when its library is missing."""
    module, kind, arguments = PEERS[name]
    peer: Peer = getattr(import_module(f"bench.peers.{module}"), kind)(**arguments)
    return peer


__all__ = ["OURS", "PEERS", "TRANSPORTS", "Channel", "Peer", "Role", "peer_named"]
