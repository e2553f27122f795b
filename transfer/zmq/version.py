"""The versions whose behaviour this package follows.

Programs compare them to decide what they may call, so the numbers are those of the pyzmq and libzmq that were
the model, not those of this project.
"""

from __future__ import annotations

__all__ = [
    "__revision__",
    "__version__",
    "pyzmq_version",
    "pyzmq_version_info",
    "zmq_version",
    "zmq_version_info",
]

VERSION_MAJOR, VERSION_MINOR, VERSION_PATCH = 27, 3, 0
VERSION_EXTRA = ""
version_info = (VERSION_MAJOR, VERSION_MINOR, VERSION_PATCH)
__version__ = "27.3.0"
__revision__ = ""


def pyzmq_version() -> str:
    """Returns the version of pyzmq that was the model."""
    return __version__


def pyzmq_version_info() -> tuple[int, int, int]:
    """Returns the version of pyzmq as three numbers."""
    return version_info


def zmq_version() -> str:
    """Returns the version of libzmq that was the model."""
    return "4.3.5"


def zmq_version_info() -> tuple[int, int, int]:
    """Returns the version of libzmq as three numbers."""
    return (4, 3, 5)
