"""UCX's C interface by ctypes, as far as the driver needs it.

Sources: ucp.h and status.h of UCX 1.21. Its structures have only grown at their ends since 1.10. A mask in
front lists the valid fields, so that older and newer libraries read the ones they know.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_int,
    c_int8,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from transfer.transports.config import ucx_of_the_system
from transfer.transports.errors import NotSupported
from transfer.transports.ucx.failures import StatusError
from transfer.transports.ucx.installed import libraries, own_maps

#: the interface version of this module; an older library gets its own
_MINOR = 21
_OLDEST = (1, 10)

OK, IN_PROGRESS, BUSY = 0, 1, -15
#: pointers from here on are errors: their numbers, as unsigned ones
_FIRST_ERROR = (1 << 64) - 100

FEATURE_TAG, FEATURE_WAKEUP = 1 << 0, 1 << 4
PARAM_FEATURES, PARAM_SHARED = 1 << 0, 1 << 5
WORKER_THREAD_MODE, THREADS_SERIALIZED = 1 << 0, 1
WORKER_ATTR_ADDRESS = 1 << 1
CONTEXT_ATTR_MEMORY_TYPES, MEMORY_CUDA = 1 << 2, 1 << 1
EP_ADDRESS, EP_ERROR_MODE, EP_ERROR_HANDLER = 1 << 0, 1 << 1, 1 << 2
ERRORS_OF_PEER = 1
OP_FLAGS, OP_MEMORY_TYPE, CLOSE_FORCE = 1 << 4, 1 << 6, 1 << 0
#: of ucs_memory_type_t
TYPE_HOST = 0

#: ucs_status_t is a packed enumeration: one byte; the bytes above it in a register are undefined
Status = c_int8
#: void handler(arg, endpoint, status)
ErrorHandler = CFUNCTYPE(None, c_void_p, c_void_p, Status)


class ContextParams(ctypes.Structure):
    _fields_ = [
        ("field_mask", c_uint64),
        ("features", c_uint64),
        ("request_size", c_size_t),
        ("request_init", c_void_p),
        ("request_cleanup", c_void_p),
        ("tag_sender_mask", c_uint64),
        ("mt_workers_shared", c_int),
        ("rest", c_char * 128),
    ]


class ContextAttributes(ctypes.Structure):
    _fields_ = [
        ("field_mask", c_uint64),
        ("request_size", c_size_t),
        ("thread_mode", c_int),
        ("memory_types", c_uint64),
        ("rest", c_char * 128),
    ]


class WorkerParams(ctypes.Structure):
    _fields_ = [("field_mask", c_uint64), ("thread_mode", c_int), ("rest", c_char * 256)]


class WorkerAttributes(ctypes.Structure):
    _fields_ = [
        ("field_mask", c_uint64),
        ("thread_mode", c_int),
        ("address_flags", c_uint32),
        ("address", c_void_p),
        ("address_length", c_size_t),
        ("rest", c_char * 128),
    ]


class EndpointParams(ctypes.Structure):
    _fields_ = [
        ("field_mask", c_uint64),
        ("address", c_char_p),
        ("error_mode", c_int),
        ("error_handler", ErrorHandler),
        ("error_argument", c_void_p),
        ("rest", c_char * 128),
    ]


class UcpRequestParams(ctypes.Structure):
    """Zeros: one contiguous piece of bytes, and no callback."""

    _fields_ = [
        ("op_attr_mask", c_uint32),
        ("flags", c_uint32),
        ("between", c_void_p * 5),
        ("memory_type", c_int),
        ("rest", c_char * 128),
    ]


class TagInfo(ctypes.Structure):
    _fields_ = [("sender_tag", c_uint64), ("length", c_size_t)]


#: functions that return at once: the interpreter lock stays
_QUICK: dict[str, tuple[Any, list[Any]]] = {
    "ucp_tag_probe_nb": (c_void_p, [c_void_p, c_uint64, c_uint64, c_int, c_void_p]),
    "ucp_request_check_status": (Status, [c_void_p]),
    "ucp_request_free": (None, [c_void_p]),
    "ucp_worker_arm": (Status, [c_void_p]),
    "ucs_status_string": (c_char_p, [Status]),
    "ucp_get_version": (None, [POINTER(c_uint)] * 3),
}
#: functions that may copy, or call the system
_SLOW: dict[str, tuple[Any, list[Any]]] = {
    "ucp_config_read": (Status, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "ucp_config_modify": (Status, [c_void_p, c_char_p, c_char_p]),
    "ucp_config_release": (None, [c_void_p]),
    "ucp_init_version": (Status, [c_uint, c_uint, POINTER(ContextParams), c_void_p, POINTER(c_void_p)]),
    "ucp_context_query": (Status, [c_void_p, POINTER(ContextAttributes)]),
    "ucp_worker_create": (Status, [c_void_p, POINTER(WorkerParams), POINTER(c_void_p)]),
    "ucp_worker_query": (Status, [c_void_p, POINTER(WorkerAttributes)]),
    "ucp_worker_release_address": (None, [c_void_p, c_void_p]),
    "ucp_worker_get_efd": (Status, [c_void_p, POINTER(c_int)]),
    "ucp_worker_progress": (c_uint, [c_void_p]),
    "ucp_ep_create": (Status, [c_void_p, POINTER(EndpointParams), POINTER(c_void_p)]),
    "ucp_ep_close_nbx": (c_void_p, [c_void_p, POINTER(UcpRequestParams)]),
    "ucp_tag_send_nbx": (c_void_p, [c_void_p, c_void_p, c_size_t, c_uint64, c_void_p]),
    "ucp_tag_msg_recv_nbx": (c_void_p, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]),
}


class Functions:
    """The functions of one loaded library, by their names without `ucp_`, and its version."""

    def __init__(self, path: str) -> None:
        slow, quick = ctypes.CDLL(path), ctypes.PyDLL(path)
        self.path = path
        for library, table in ((quick, _QUICK), (slow, _SLOW)):
            for name, (result, arguments) in table.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("ucp_"), function)
        major, minor, release = c_uint(), c_uint(), c_uint()
        self.get_version(major, minor, release)
        self.numbers = (major.value, minor.value, release.value)
        if self.numbers < _OLDEST or major.value != _OLDEST[0]:
            raise NotSupported(f"UCX {self.version} in {path}: 1.10 or a later 1.x is needed")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"libucp has no {name}")

    @property
    def version(self) -> str:
        return ".".join(map(str, self.numbers))

    @property
    def interface(self) -> tuple[int, int]:
        """(major, minor) for ucp_init."""
        return self.numbers[0], min(self.numbers[1], _MINOR)

    def check(self, status: int) -> None:
        """Raises StatusError unless the operation is complete or in progress."""
        if status < 0:
            text = self.ucs_status_string(status) or b""  # of libucs, which libucp loads
            raise StatusError(status, text.decode("utf-8", "replace"))

    def pointer(self, answer: int | None) -> int:
        """The request of an operation, 0 if it is complete. Raises StatusError."""
        if not answer:
            return 0
        if answer >= _FIRST_ERROR:
            self.check(answer - (1 << 64))
        return answer


def load(paths: Iterable[str] | None = None) -> Functions:
    """Loads the first library of `paths`, or of the default ones. Raises NotSupported."""
    if paths is None:
        paths = libraries(own_maps(), sys.prefix, prefer_system=ucx_of_the_system())
    reasons = []
    for path in paths:
        try:
            return Functions(path)
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
    raise NotSupported("libucp cannot be loaded: " + "; ".join(reasons))
