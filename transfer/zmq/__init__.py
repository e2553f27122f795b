"""pyzmq's API over `transfer`: with `import transfer.zmq as zmq` a program runs unchanged.

For sockets of the types REQ, REP, PUB, SUB, PUSH, PULL, PAIR, ROUTER, DEALER, XPUB and XSUB. Numbers, names,
defaults (linger -1, high-water mark 1000, lazy connect) and errors are those of pyzmq 27.3. Peers must use
this project, too: the wire protocol is a different one. Missing functions raise `NotSupported` with the
reason; `docs/zmq-compat.md` lists every public name that differs.

_support         every public name of pyzmq 27.3, and its support here: the table behind docs/zmq-compat.md
as_zmq           gives programs that import `zmq` this package instead, with pyzmq's pure modules over it
asyncio          zmq.asyncio over `transfer`: blocking methods return futures of the running loop
byte_limit       the option `sndhwm_bytes` of pyzmq's sockets: only SNDHWM makes them drop messages
constants        pyzmq's constants: every member of an enumeration of `enums`
context          pyzmq's Context over `transfer`
decorators       decorators that make a context or a socket for each call, and close it afterwards
derived          classes that a program derives from `zmq.Socket`: objects in front of a plain socket
endpoints        endpoints and monitors of a socket, with pyzmq's errors
enums            pyzmq's enumerations, with its names and numbers, whether their function is supported or not
error            pyzmq's exceptions
frame            one part of a message, received without a copy or made to be sent
linger           sends the queued messages of a closed socket in the background
mechanisms       the options of ZeroMQ's mechanisms, NULL, PLAIN and CURVE, and the keys of CURVE
metaclass        the metaclass of `zmq.Socket`: classes that a program derives have another base
missing          functions of pyzmq that cannot work here: each raises the reason
monitor          converts monitor events to the messages that libzmq's monitors send through a PAIR socket
options          the support of each socket option of pyzmq: forwarded, stored without effect, or refused
patterns         REQ and ROUTER as libzmq's: lost peers and malformed messages raise no errors
payload          what a program gives to send or to receive into, checked as pyzmq does
pending_futures  the futures of one socket, which are tried again when the socket may be ready
poll             Poller, select and zmq_poll: waiting for several sockets and descriptors
proxy            proxies: send the messages that one socket receives with the other
serial           messages of texts, JSON and objects, for blocking and asyncio sockets
socket           pyzmq's Socket over `transfer`: its names, numbers, defaults and errors
sockopts         options of a socket by pyzmq's numbers, and as attributes in lower and upper case
startup          a folder for PYTHONPATH, with which `transfer as-zmq` starts programs
support          writes docs/zmq-compat.md: `python -m transfer.zmq.support > docs/zmq-compat.md`
tracker          MessageTracker: reports when the memory of a message may be reused
utils            pyzmq's utilities, as far as they make sense here: jsonapi, monitor, strtypes, z85
version          the versions whose behaviour this package follows
zap              asks the authenticator of a context: the program's socket at inproc://zeromq.zap.01
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from transfer.transports.errors import describe
from transfer.zmq import (
    constants as constants,
    error as error,
    mechanisms,
    utils as utils,
    version as version,
)
from transfer.zmq.constants import *
from transfer.zmq.context import *
from transfer.zmq.error import *
from transfer.zmq.frame import *
from transfer.zmq.mechanisms import *
from transfer.zmq.missing import *
from transfer.zmq.poll import *
from transfer.zmq.proxy import *
from transfer.zmq.socket import *
from transfer.zmq.tracker import *
from transfer.zmq.utils import jsonapi as jsonapi, strtypes as strtypes, z85 as z85
from transfer.zmq.version import *

DRAFT_API = False
PYZMQ_DRAFT_API = False
IPC_PATH_MAX_LEN = 107

if TYPE_CHECKING:  # what is imported above, and this
    from transfer.zmq import asyncio as asyncio
else:
    __all__ = [
        *constants.__all__,
        "COPY_THRESHOLD",
        "DRAFT_API",
        "IPC_PATH_MAX_LEN",
        "PYZMQ_DRAFT_API",
        "Again",
        "Context",
        "ContextTerminated",
        "DraftFDWarning",
        "Frame",
        "InterruptedSystemCall",
        "Message",
        "MessageTracker",
        "NotDone",
        "Poller",
        "Socket",
        "Stopwatch",
        "SyncContext",
        "SyncSocket",
        "ZMQBaseError",
        "ZMQBindError",
        "ZMQError",
        "ZMQVersionError",
        "_FINISHED_TRACKER",
        "__revision__",
        "__version__",
        "curve_keypair",
        "curve_public",
        "device",
        "get_includes",
        "get_library_dirs",
        "has",
        "proxy",
        "proxy_steerable",
        "pyzmq_version",
        "pyzmq_version_info",
        "select",
        "strerror",
        "zmq_errno",
        "zmq_poll",
        "zmq_version",
        "zmq_version_info",
    ]


def has(capability: str) -> bool:
    """Returns True for "ipc", and for "curve" where the core is compiled; others of libzmq are missing."""
    return capability == "ipc" or (capability == "curve" and mechanisms.has_curve())


def strerror(errno: int) -> str:
    """Returns the text of an error number, including ZeroMQ's."""
    return describe(errno)


def zmq_errno() -> int:
    """Returns 0: errors are exceptions here, and each has its number in `errno`."""
    return 0
