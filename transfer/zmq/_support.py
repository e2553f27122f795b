"""Every public name of pyzmq 27.3, and its support here: the table behind docs/zmq-compat.md.

`options.RULES` has the socket options, `constants` the constants; this file has all other names. Tests
compare the names with an installed pyzmq, and the verdicts with this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SupportVerdict(Enum):
    """How a name is supported."""

    WORKS = "works"
    DIFFERS = "works, with a difference"
    REFUSED = "refuses, with the reason"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class SupportGroup:
    """Names with the same verdict for the same reason. `where`: their module or class."""

    where: str
    verdict: SupportVerdict
    reason: str
    names: tuple[str, ...]


def _group(where: str, verdict: SupportVerdict, reason: str, names: str) -> SupportGroup:
    return SupportGroup(where, verdict, reason, tuple(names.split()))


_NO_LIBZMQ = "there is no libzmq behind this, so there is no address to hand out"
_PYZMQS = "pyzmq's module: it runs over these sockets by `as_zmq` where pyzmq is installed"
_DRAFT = "for libzmq's draft socket types, which do not exist here"
_OBJECTS = (
    "by msgspec instead of pickle: plain types, arrays, tensors, and classes of TRANSFER_PICKLE_ALLOW; "
    "pickle with MOONCAKE_ALLOW_PICKLE=1"
)
_THREAD = "`proxy` in a thread or process of the program does the same"

GROUPS: tuple[SupportGroup, ...] = (
    _group(
        "zmq",
        SupportVerdict.WORKS,
        "as in pyzmq",
        """SyncSocket SyncContext Frame Message MessageTracker Poller select proxy proxy_steerable device
        zmq_poll strerror Stopwatch ZMQError ZMQBaseError ZMQBindError Again ContextTerminated NotDone
        COPY_THRESHOLD IPC_PATH_MAX_LEN _FINISHED_TRACKER""",
    ),
    _group(
        "zmq",
        SupportVerdict.DIFFERS,
        "eleven socket types; `term` closes sockets that are still open, where libzmq waits for ever",
        "Context Socket",
    ),
    _group(
        "zmq",
        SupportVerdict.DIFFERS,
        "the version of the pyzmq and libzmq that were the model",
        """__version__ __revision__ pyzmq_version pyzmq_version_info zmq_version zmq_version_info""",
    ),
    _group(
        "zmq",
        SupportVerdict.DIFFERS,
        "exists to be caught or filtered; nothing here raises it",
        "InterruptedSystemCall ZMQVersionError DraftFDWarning",
    ),
    _group("zmq", SupportVerdict.DIFFERS, "False: there are no draft sockets", "DRAFT_API PYZMQ_DRAFT_API"),
    _group(
        "zmq",
        SupportVerdict.DIFFERS,
        'True for "ipc", and for "curve" with the compiled core and an OpenSSL with PSK',
        "has",
    ),
    _group(
        "zmq", SupportVerdict.DIFFERS, "always 0: errors are exceptions, and carry their number", "zmq_errno"
    ),
    _group("zmq", SupportVerdict.WORKS, "as in pyzmq", "curve_keypair curve_public"),
    _group("zmq", SupportVerdict.REFUSED, _NO_LIBZMQ, "get_includes get_library_dirs"),
    _group("zmq", SupportVerdict.WORKS, "modules", "asyncio constants error utils decorators"),
    _group("zmq", SupportVerdict.ABSENT, _PYZMQS, "auth curve_keygen"),
    _group("zmq", SupportVerdict.ABSENT, _THREAD, "devices"),
    _group("zmq", SupportVerdict.ABSENT, "needs Tornado; use `asyncio`", "eventloop"),
    _group("zmq", SupportVerdict.ABSENT, "needs gevent; use `asyncio`", "green"),
    _group("zmq", SupportVerdict.ABSENT, "a few lines over a PUB do the same", "log"),
    _group("zmq", SupportVerdict.ABSENT, "tunnels are better made outside of the program", "ssh"),
    _group("zmq", SupportVerdict.ABSENT, "pyzmq's own structure", "backend sugar tests"),
    _group(
        "Context",
        SupportVerdict.WORKS,
        "as in pyzmq",
        "closed destroy get getsockopt instance set setsockopt socket term",
    ),
    _group("Context", SupportVerdict.DIFFERS, "contexts of this package only", "shadow"),
    _group("Context", SupportVerdict.DIFFERS, _NO_LIBZMQ + ": a number that `shadow` takes", "underlying"),
    _group("Context", SupportVerdict.ABSENT, _NO_LIBZMQ, "shadow_pyczmq"),
    _group(
        "Socket",
        SupportVerdict.WORKS,
        "as in pyzmq",
        """bind bind_to_random_port close closed connect context copy_threshold disable_monitor disconnect
        fileno get get_hwm get_monitor_socket get_string getsockopt getsockopt_string getsockopt_unicode
        hwm poll recv recv_into recv_json recv_multipart recv_serialized recv_string recv_unicode
        send_json send_multipart send_serialized send_string send_unicode set set_hwm set_string
        setsockopt setsockopt_string setsockopt_unicode subscribe unbind unsubscribe""",
    ),
    _group(
        "Socket", SupportVerdict.DIFFERS, "without `routing_id=` and `group=`, which are " + _DRAFT, "send"
    ),
    _group("Socket", SupportVerdict.DIFFERS, _OBJECTS, "send_pyobj recv_pyobj"),
    _group(
        "Socket",
        SupportVerdict.DIFFERS,
        "the value of an event is 0, but for an authenticator's status",
        "monitor",
    ),
    _group("Socket", SupportVerdict.WORKS, "deprecated, as in pyzmq", "socket_type"),
    _group("Socket", SupportVerdict.DIFFERS, "sockets of this package only", "shadow"),
    _group("Socket", SupportVerdict.DIFFERS, _NO_LIBZMQ + ": a number that `shadow` takes", "underlying"),
    _group("Socket", SupportVerdict.REFUSED, _DRAFT, "join leave"),
    _group("Frame", SupportVerdict.WORKS, "as in pyzmq", "buffer bytes more tracker"),
    _group(
        "Frame",
        SupportVerdict.DIFFERS,
        "properties of a peer at sockets that ask an authenticator only; no SRCFD",
        "get",
    ),
    _group("Frame", SupportVerdict.DIFFERS, "always None", "tracker_event"),
    _group("Frame", SupportVerdict.REFUSED, _DRAFT, "set group routing_id"),
    _group("Poller", SupportVerdict.WORKS, "as in pyzmq", "modify poll register unregister"),
    _group("MessageTracker", SupportVerdict.WORKS, "as in pyzmq", "done wait"),
    _group("asyncio", SupportVerdict.WORKS, "as in pyzmq", "Context Poller Socket"),
    _group("asyncio", SupportVerdict.WORKS, "deprecated, as in pyzmq", "ZMQEventLoop install"),
    _group("decorators", SupportVerdict.WORKS, "as in pyzmq", "context socket"),
    _group("utils.jsonapi", SupportVerdict.WORKS, "as in pyzmq", "dumps loads"),
    _group(
        "utils.monitor", SupportVerdict.WORKS, "as in pyzmq", "parse_monitor_message recv_monitor_message"
    ),
    _group(
        "utils.strtypes",
        SupportVerdict.WORKS,
        "deprecated, as in pyzmq",
        "asbytes b basestring bytes cast_bytes cast_unicode u unicode",
    ),
    _group("utils.z85", SupportVerdict.WORKS, "as in pyzmq", "Z85CHARS Z85MAP decode encode"),
    _group("utils", SupportVerdict.ABSENT, "for the inside of pyzmq", "garbage interop"),
    _group("utils", SupportVerdict.ABSENT, "for Windows", "win32"),
)

#: socket types by their support
SOCKET_TYPES = (
    _group(
        "SocketType",
        SupportVerdict.WORKS,
        "either side binds or connects, several times",
        "REQ REP PUB SUB PUSH PULL PAIR ROUTER DEALER XPUB XSUB XREQ XREP",
    ),
    _group(
        "SocketType",
        SupportVerdict.REFUSED,
        "raw TCP is not implemented, use `socket`: a STREAM can be made and polled, so that programs start "
        "which make one and may never use it",
        "STREAM",
    ),
    _group(
        "SocketType",
        SupportVerdict.REFUSED,
        "draft in libzmq",
        "SERVER CLIENT RADIO DISH GATHER SCATTER DGRAM PEER CHANNEL",
    ),
)
