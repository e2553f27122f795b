"""Objects of allowed classes: their parts by `__reduce_ex__`, and objects of these parts.

A class needs nothing for this but what pickle needs. Yet no pickle is made: a pickle is a program, which can
call what it made and change classes. Here each object is a class by name and values, and is made once.
"""

from __future__ import annotations

import copyreg
from enum import Enum
from types import MemberDescriptorType
from typing import Any, Final

from transfer.objects.allow_list import AllowList, module_of
from transfer.objects.format import caused, malformed, quoted
from transfer.transports.errors import MissingLibrary, PickleRefused, ProtocolError

#: protocol 5 would add nothing but buffers out of band
_PROTOCOL: Final = 4
#: how an object is made: of `cls.__new__(cls, *args, **kwargs)`, or of `cls(*args)`
_NEW, _CALL = 0, 1
_PARTS: Final = 8

_new: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_new_with_names: Any = copyreg.__newobj_ex__  # type: ignore[attr-defined]


def parts_of(value: Any, allowed: AllowList) -> list[Any]:
    """Returns [module, qualified name, how, args, kwargs, state, items of a list, pairs of a dict].

    Raises PickleRefused unless the allow list has its class, and what makes it is an allowed class.
    """
    kind = type(value)
    allowed.check(kind)
    reduce = copyreg.dispatch_table.get(kind)
    try:
        reduced = value.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(value)
    except TypeError as error:
        raise PickleRefused(
            f"{error}", hint="such objects belong to their process; send what they hold"
        ) from error
    if not isinstance(reduced, tuple) or len(reduced) > 5:
        raise _by_function(kind, "a global name" if isinstance(reduced, str) else "a function for its state")
    maker, args, state, items, pairs = (*reduced, None, None, None)[:5]
    how, names = _NEW, None
    if maker is _new:
        maker, *args = args
    elif maker is _new_with_names:
        maker, args, names = args
    else:
        how = _CALL
    if not isinstance(maker, type):
        raise _by_function(kind, getattr(maker, "__qualname__", repr(maker)))
    allowed.verify(maker)
    return [
        module_of(maker),
        maker.__qualname__,
        how,
        list(args),
        dict(names) if names else None,
        state,
        None if items is None else list(items),
        None if pairs is None else [part for pair in pairs for part in pair],
    ]


def _by_function(kind: type, what: str) -> PickleRefused:
    return PickleRefused(
        f"objects of {kind.__module__}.{kind.__qualname__} are made by {what}; only classes are allowed",
        hint="give the class __getnewargs__ or __reduce__ that names a class, or send its fields",
    )


def class_name(kind: type, allowed: AllowList) -> list[str]:
    """Returns [module, qualified name] of a class that is a value. Raises PickleRefused."""
    allowed.verify(kind)
    return [module_of(kind), kind.__qualname__]


def find_class(parts: list[Any], allowed: AllowList) -> type:
    """Returns the class of `class_name`. Raises PickleRefused, ProtocolError."""
    if [type(part) for part in parts] != [str, str]:
        raise malformed("a class without a name")
    return allowed.find(*parts)


def made_of(parts: list[Any], allowed: AllowList) -> Any:
    """Makes the object of these parts. Raises PickleRefused, and ProtocolError for parts of another form, and
    with the cause if its class raises."""
    if len(parts) != _PARTS:
        raise malformed("an object of other parts")
    kind = find_class(parts[:2], allowed)
    how, args, names, state, items, pairs = parts[2:]
    _check_arguments(kind, how, args, names)
    if issubclass(kind, Enum) and (
        how != _CALL or len(args) != 1 or any(part is not None for part in parts[4:])
    ):
        # more arguments make a new class, and a state would change the member that all share
        raise malformed(f"a member of {kind.__qualname__} by more than its value")
    try:
        made = kind.__new__(kind, *args, **names or {}) if how == _NEW else kind(*args)
        if items is not None:
            made.extend(_list(items))
        if pairs is not None:
            pairs = _list(pairs)
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                made[key] = value
        if state is not None:
            _set_state(made, state)
    except (ProtocolError, MissingLibrary, MemoryError):
        raise
    except Exception as error:
        raise malformed(f"{kind.__qualname__} accepts other values: {caused(error)}") from error
    return made


def _check_arguments(kind: type, how: Any, args: Any, names: Any) -> None:
    """Raises ProtocolError unless `parts_of` writes such ones: names only for `__new__`."""
    named = type(names) is dict and how == _NEW
    if (
        type(how) is not int
        or how not in (_NEW, _CALL)
        or type(args) is not list
        or not (named or names is None)
    ):
        raise malformed(f"an object of {kind.__qualname__} with other arguments")


def _list(given: Any) -> list[Any]:
    if type(given) is not list:
        raise malformed("items that are no list")
    return given


def _set_state(made: Any, state: Any) -> None:
    """As pickle does; but no attribute with a setter, and none of the interpreter's own, can be set so."""
    kind = type(made)
    if hasattr(kind, "__setstate__"):
        made.__setstate__(state)
        return
    attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
    for given in (attributes, slots):
        if type(given) not in (dict, type(None)) or any(_is_special(name) for name in given or ()):
            raise malformed(f"the state of {kind.__qualname__} has other attributes")
    if attributes:
        vars(made).update(attributes)
    for name, value in (slots or {}).items():
        slot = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        if not isinstance(slot, MemberDescriptorType):
            raise malformed(f"{kind.__qualname__} has no slot {quoted(name)}")
        slot.__set__(made, value)


def _is_special(name: Any) -> bool:
    return type(name) is not str or (name.startswith("__") and name.endswith("__"))
