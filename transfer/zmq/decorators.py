"""Decorators that make a context or a socket for each call, and close it afterwards.

@context()
@socket(zmq.PUSH)
def work(ctx, push): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from transfer.zmq.context import Context

__all__ = ["context", "socket"]

T = TypeVar("T")


def context(*args: Any, **kwargs: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Passes a new Context to the function: as a keyword argument, if `name` or the first argument names one,
    or after the other arguments."""
    name, args = _named(args, kwargs)

    def make(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return Context(*args, **kwargs)

    return _decorator(name, make)


def socket(
    *args: Any, context_name: str = "context", **kwargs: Any
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Passes a new socket to the function, made by the Context among its arguments or by `instance()`.

    With a name as the first argument or `name`, the socket is a keyword argument.
    """
    name, args = _named(args, kwargs)

    def make(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        found = named.get(context_name)
        if not isinstance(found, Context):
            found = next((each for each in given if isinstance(each, Context)), None)
        return (found or Context.instance()).socket(*args, **kwargs)

    return _decorator(name, make)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, tuple[Any, ...]]:
    """Returns (the name, the other arguments); removes the name from the keyword arguments."""
    if isinstance(kwargs.get("name"), str):
        return kwargs.pop("name"), args
    if args and isinstance(args[0], str):
        return args[0], args[1:]
    return None, args


def _decorator(
    name: str | None, make: Callable[[tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> T:
            if name is not None and name in kwargs:
                raise TypeError(f"{function.__name__}() got two values for {name!r}")
            with make(args, kwargs) as made:
                if name is None:
                    return function(*args, made, **kwargs)
                return function(*args, **{**kwargs, name: made})

        return call

    return decorate
