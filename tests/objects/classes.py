"""Classes that tests allow or do not allow, and names of a module that no list may reach."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from subprocess import Popen  # noqa: F401 - a class, but of another module
from typing import Any, NamedTuple

from transfer.transports.errors import Again

alias_of_another = OrderedDict


@dataclass
class Message:
    kind: str
    body: Any = None
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    left: Any
    right: Any


class Slotted:
    __slots__ = ("a", "b")

    def __eq__(self, other):
        return type(other) is Slotted and (self.a, self.b) == (other.a, other.b)


class Colour(Enum):
    RED = 1
    BLUE = "blue"


class Bare(Enum):
    """No members: a call with two arguments makes a class."""


class Access(Flag):
    READ = auto()
    WRITE = auto()


class Point(NamedTuple):
    x: int
    y: int


class Names(dict):
    """A dict with an attribute."""

    note = ""


class Stateful:
    def __init__(self, value):
        self.value = value

    def __getstate__(self):
        return (self.value,)

    def __setstate__(self, state):
        (self.value,) = state

    def __eq__(self, other):
        return self.value == other.value


class Half:
    """Its objects have neither hash nor repr before their state is set."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return hash(self.value)

    def __repr__(self):
        return f"Half({self.value})"


class Raising:
    """Raises an error of this package, or that there is no memory, or what shows its argument."""

    def __init__(self, what):
        if what == "Again":
            raise Again("later")
        if what == "MemoryError":
            raise MemoryError
        raise KeyError(what)


class Outer:
    class Inner:
        def __eq__(self, other):
            return type(other) is type(self)


class Guarded:
    """Its setter must not be called by what arrives."""

    calls: list[Any] = []  # noqa: RUF012 - shared on purpose

    @property
    def level(self):
        return 0

    @level.setter
    def level(self, value):
        Guarded.calls.append(value)


class Meta(type):
    pass


class ByFunction:
    def __reduce__(self):
        return make, ()


def make():
    return ByFunction()


class Bomb:
    """Unpickled, it would make a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)
