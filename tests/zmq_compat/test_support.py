"""The table of what is supported says the truth, about all of pyzmq, and the page is its print."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import types
from enum import Enum
from pathlib import Path

import pytest

import transfer.zmq as ours
from transfer.transports.errors import NotSupported
from transfer.zmq import support
from transfer.zmq._support import GROUPS, SOCKET_TYPES, SupportVerdict
from transfer.zmq.constants import ContextOption, SocketOption, SocketType
from transfer.zmq.options import RULES, WIDE, Effect

pyzmq = pytest.importorskip("zmq")
pytestmark = pytest.mark.timeout(30)

ATTRIBUTES = Path(ours.__file__).with_name("option_attributes.pyi")
PAGE = Path(__file__).parents[2] / "docs" / "zmq-compat.md"
CLASSES = ("Context", "Socket", "Frame", "Poller", "MessageTracker")
MODULES = ("asyncio", "decorators", "utils.jsonapi", "utils.monitor", "utils.strtypes", "utils.z85")
#: what the module has by accident: its own imports
ACCIDENTS = {"annotations", "os", "sys", "contextmanager", "ssl"}


def place(root, where):
    if where == "zmq":
        return root
    if where in CLASSES:
        return getattr(root, where)
    return importlib.import_module(f"{root.__name__}.{where}")


def public(thing):
    """The public names of a module (without its submodules' and constants) or of a class."""
    names = {name for name in dir(thing) if not name.startswith("_")}
    if isinstance(thing, type):
        return names
    if thing is not pyzmq:
        return set(getattr(thing, "__all__", None) or names - {"struct", "Final", "Union", "annotations"})
    names |= set(thing.__all__)
    constants = set(importlib.import_module("zmq.constants").__all__)
    # Some modules are attributes only once somebody imported them.
    modules = {module.name for module in pkgutil.iter_modules(thing.__path__)}
    return (names | modules) - constants - ACCIDENTS - {name for name in modules if name.startswith("_")}


def names_in_table(where):
    return [name for group in GROUPS if group.where == where for name in group.names]


@pytest.mark.parametrize("where", ["zmq", *CLASSES, *MODULES])
def test_every_public_name_is_in_the_table_once(where):
    listed = names_in_table(where)
    assert len(listed) == len(set(listed))
    assert set(listed) == public(place(pyzmq, where))


def test_every_utility_is_in_the_table():
    utils = importlib.import_module("zmq.utils")
    modules = {module.name for module in pkgutil.iter_modules(utils.__path__)}
    of_their_own = {where.removeprefix("utils.") for where in MODULES if where.startswith("utils.")}
    assert modules == of_their_own | set(names_in_table("utils"))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.where}-{group.names[0]}")
def test_the_verdicts_are_true(group):
    thing = place(ours, group.where) if group.where != "utils" else ours.utils
    for name in group.names:
        there = hasattr(thing, name) or _is_module(thing, name) or name in _made_in_init(group.where)
        assert there == (group.verdict is not SupportVerdict.ABSENT), name
    assert group.reason


def _is_module(thing, name):
    return isinstance(thing, types.ModuleType) and any(
        module.name == name for module in pkgutil.iter_modules(getattr(thing, "__path__", []))
    )


def _made_in_init(where):
    """Attributes that an object has and its class does not show."""
    attributes = {"Context": "closed", "Socket": "context closed copy_threshold", "Frame": "tracker"}
    return attributes.get(where, "").split()


def test_every_option_has_a_rule():
    assert set(RULES) == set(SocketOption)
    for option, rule in RULES.items():
        assert rule.reason or rule.effect is Effect.FORWARDED, option
        kind = pyzmq.SocketOption(option)._opt_type.name
        assert rule.kind is (bytes if kind == "bytes" else int), option
        assert (option in WIDE) == (kind == "int64"), option


def test_type_checkers_know_every_option():
    classes = [one for one in ast.parse(ATTRIBUTES.read_text()).body if isinstance(one, ast.ClassDef)]
    plain, of_socket, of_context = (
        {line.target.id: ast.unparse(line.annotation) for line in one.body if isinstance(line, ast.AnnAssign)}
        for one in classes
    )
    methods = {"subscribe", "unsubscribe", "hwm", "rcvmore", "fd", "events", "type", "last_endpoint"}
    options = {
        spelling: RULES[option]
        for name, option in SocketOption.__members__.items()
        for spelling in (name, name.lower())
    }
    kinds = {name: rule.kind.__name__ for name, rule in options.items()}
    kinds |= dict.fromkeys(("SUBSCRIBE", "UNSUBSCRIBE"), "bytes | str")
    assert plain == {name: kinds[name] for name in options if options[name].writable and name not in methods}
    assert of_socket == {
        name: f"Final[{kinds[name]}]"
        for name in options
        if not options[name].writable and name not in methods
    }
    of_contexts = [spelling for name in ContextOption.__members__ for spelling in (name, name.lower())]
    assert of_context == dict.fromkeys(of_contexts, "int") | {
        name: kinds[name] for name in methods if options[name].writable
    }


def test_every_socket_type_is_in_the_table():
    listed = [name for group in SOCKET_TYPES for name in group.names]
    assert sorted(listed) == sorted(SocketType.__members__)


@pytest.mark.parametrize("group", SOCKET_TYPES, ids=lambda group: group.names[0])
def test_socket_types_do_what_the_table_says(group):
    with ours.Context() as context:
        for name in group.names:
            if group.verdict is SupportVerdict.WORKS:
                with context.socket(getattr(ours, name)) as sock:
                    assert sock.type.name in (name, {"XREQ": "DEALER", "XREP": "ROUTER"}.get(name))
            else:
                with pytest.raises(NotSupported, match="zmq-compat") as caught:
                    with context.socket(getattr(ours, name)) as sock:  # a STREAM can be made
                        sock.bind("tcp://127.0.0.1:*")
                assert caught.value.errno == ours.ENOTSUP


@pytest.mark.parametrize("effect", [Effect.IGNORED, Effect.REFUSED])
def test_options_do_what_the_table_says(effect):
    with ours.Context() as context, context.socket(ours.DEALER) as sock:
        for option, rule in RULES.items():
            if rule.effect is not effect or option in (SocketOption.RCVMORE,):
                continue
            other = b"something" if rule.kind is bytes else 77
            if effect is Effect.IGNORED and "IPV" in option.name:
                other = int(not rule.default)
            if rule.default is not None:
                assert sock.get(option) == rule.default
                sock.set(option, rule.default)
            if effect is Effect.IGNORED:
                sock.set(option, other)
                if rule.readable:
                    assert sock.get(option) == other
            else:
                with pytest.raises(NotSupported, match=option.name):
                    sock.set(option, other)


def test_constants_are_the_same():
    theirs = importlib.import_module("zmq.constants")
    assert set(theirs.__all__) == set(ours.constants.__all__)
    for name in theirs.__all__:
        value = getattr(theirs, name)
        if isinstance(value, Enum):
            mine = getattr(ours, name)
            assert (mine.value, mine.name) == (value.value, value.name)
            assert type(mine).__name__ == type(value).__name__


def test_missing_functions_say_why():
    for call in (ours.get_includes, ours.get_library_dirs):
        with pytest.raises(NotSupported):
            call()
    frame = ours.Frame(b"x")
    for call in (lambda: frame.set("group", "g"), lambda: frame.group, lambda: frame.routing_id):
        with pytest.raises(NotSupported):
            call()
    with ours.Context() as context, context.socket(ours.PUSH) as push:
        for method in (push.join, push.leave):
            with pytest.raises(NotSupported):
                method("group")


def test_the_page_is_current():
    assert PAGE.read_text() == support.document(), "run: python -m transfer.zmq.support > docs/zmq-compat.md"
