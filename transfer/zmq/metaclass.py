"""The metaclass of `zmq.Socket`: classes that a program derives have another base. `derived` says why."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any


class SocketMetaclass(type):
    """Puts `derived_base` above classes that a program derives from Socket (`plain`), in its place."""

    plain: Any = ()
    derived_base: Any = ()

    if not TYPE_CHECKING:  # a type checker would not know what it returns

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
            if SocketMetaclass.derived_base:
                bases = tuple(
                    SocketMetaclass.derived_base if base is SocketMetaclass.plain else base for base in bases
                )
            return super().__new__(cls, name, bases, namespace, **kwargs)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("shadow") or (args[0] if args else None)
            if cls is SocketMetaclass.plain and (kwargs.get("shadow") or isinstance(given, cls)):
                return cls.shadow(given)
            return super().__call__(*args, **kwargs)

        def __getattribute__(cls, name: str) -> Any:
            """Makes `zmq.Socket.send(self)` work in a derived class."""
            if (
                (name[:1] != "_" or name in ("__init__", "__setattr__"))
                and SocketMetaclass.derived_base
                and cls is SocketMetaclass.plain
            ):
                found = SocketMetaclass.derived_base.__dict__.get(name)
                if isinstance(found, FunctionType):
                    return found
            return super().__getattribute__(name)

    def __instancecheck__(cls, instance: object) -> bool:
        derived = cls is SocketMetaclass.plain and isinstance(instance, SocketMetaclass.derived_base)
        return derived or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        derived = cls is SocketMetaclass.plain and issubclass(subclass, SocketMetaclass.derived_base)
        return derived or super().__subclasscheck__(subclass)
