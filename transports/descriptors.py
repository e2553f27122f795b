"""The limit of file descriptors of this process, and the errors when it is reached."""

from __future__ import annotations

import errno
import resource

from transfer.transports.errors import InternalError, OutOfDescriptors, TransferError

#: the system, the process or the machine's memory cannot give one more descriptor now
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: descriptors that no connection may take: files of a log and its database need them
RESERVE = 128


def share_of_descriptors(part: int = 4) -> int:
    """A quarter of the descriptors of this process: the limit of pending connections. part: 2 is half of
    them: the limit of addresses that one name may have."""
    return max(1, _limit() // part)


def is_reserved(fd: int) -> bool:
    """Whether a connection's descriptor is one of the last of this process. The system gives the lowest free
    number, so all below it are in use."""
    limit = _limit()
    return fd >= limit - min(RESERVE, limit // 8)


def descriptor_hint() -> str:
    """The hint where the process has no more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = f"now {_limit_text(soft)}, hard limit {_limit_text(hard)}"
    return f"raise the limit (ulimit -n, {limits}), or close sockets that are not needed"


def raise_descriptor_limit() -> tuple[int, int] | None:
    """Raises the soft limit of descriptors to the hard limit: the usual soft limit exists for programs that
    call select(). Returns (before, now), or None where nothing changed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # the system's limit for a process is lower
        return None
    return soft, hard


def _limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 31 if soft == resource.RLIM_INFINITY else soft


def _limit_text(limit: int) -> str:
    return "none" if limit == resource.RLIM_INFINITY else str(limit)


def refuse_exhausted(error: Exception, doing: str) -> None:
    """Raises OutOfDescriptors if the error means that."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise descriptor_error(error, doing) from error


def descriptor_error(error: OSError, doing: str) -> TransferError:
    """Translates an error of the system: to OutOfDescriptors, or InternalError."""
    if error.errno in _EXHAUSTED:
        return OutOfDescriptors(
            f"{doing}: {error.strerror}",
            hint=descriptor_hint(),
            errno=error.errno,
        )
    return InternalError(f"{doing}: {error}", errno=error.errno)
