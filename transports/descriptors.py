"""The descriptors that this process may have, and what is said when there are no more."""

from __future__ import annotations

import errno
import resource

from transfer.transports.errors import InternalError, OutOfDescriptors, TransferError

#: the system, the process or the machine's memory cannot give one more descriptor just now
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: descriptors that no connection takes: files of a log and its database need them
RESERVE = 128


def share_of_descriptors(part: int = 4) -> int:
    """A quarter of the descriptors that this process may have: so many connections may be pending. part: 2 is
    half of them: so many addresses of one name are followed."""
    return max(1, _limit() // part)


def is_reserved(fd: int) -> bool:
    """Whether a connection's descriptor is one of the last that this process may have. The system gives the
    lowest free number, so all below it are in use."""
    limit = _limit()
    return fd >= limit - min(RESERVE, limit // 8)


def descriptor_hint() -> str:
    """What to do where there are no more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = f"now {_said(soft)}, hard limit {_said(hard)}"
    return f"raise the limit (ulimit -n, {limits}), or close sockets that are not needed"


def raise_descriptor_limit() -> tuple[int, int] | None:
    """This process may have as many descriptors as the hard limit says: the usual soft one is for programs
    that call select(). (before, now), or None where nothing changed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # the system allows no process as many
        return None
    return soft, hard


def _limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 31 if soft == resource.RLIM_INFINITY else soft


def _said(limit: int) -> str:
    return "none" if limit == resource.RLIM_INFINITY else str(limit)


def refuse_exhausted(error: Exception, doing: str) -> None:
    """Raises OutOfDescriptors if that is what the error says."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise descriptor_error(error, doing) from error


def descriptor_error(error: OSError, doing: str) -> TransferError:
    """What an error of the system is called here: OutOfDescriptors, or InternalError."""
    if error.errno in _EXHAUSTED:
        return OutOfDescriptors(
            f"{doing}: {error.strerror}",
            hint=descriptor_hint(),
            errno=error.errno,
        )
    return InternalError(f"{doing}: {error}", errno=error.errno)
