"""What programs ask of a registry, and what it answers. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Member(NamedTuple):
    """A member of a name. endpoint: tcp://host:port. epoch: if two programs announce the same endpoint, the
    larger epoch wins; a restarted program uses a larger one. metadata: further data of the program."""

    endpoint: str
    epoch: int
    metadata: tuple[tuple[str, str], ...] = ()


class Registering(NamedTuple):
    """A request for a name for `lease` seconds."""

    name: str
    lease: float
    member: Member


class LookUp(NamedTuple):
    """A request for the members of a name. watch: notify of changes. revision: what the program knows; -1:
    nothing."""

    name: str
    watch: bool = False
    revision: int = -1


class Listed(NamedTuple):
    """All members of a name, or with CHANGED, those that changed. registry: another id with each start of the
    broker. settled: it has run long enough for all programs to have come back. revision: of this list.
    same: nothing has changed since the request's revision. gone: endpoints."""

    registry: str
    settled: bool
    revision: int
    members: tuple[Member, ...] = ()
    gone: tuple[str, ...] = ()
    same: bool = False
