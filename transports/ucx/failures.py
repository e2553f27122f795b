"""Translates UCX's errors. They have the names that ucxx gives them."""

from __future__ import annotations

from transfer.transports.errors import Broken, InternalError, TransferError

#: ucs_status_t, as far as the names matter here; the numbers are UCX's ABI
_NAMES = {
    -2: "UCXNoResourceError",
    -4: "UCXNoMemoryError",
    -6: "UCXUnreachableError",
    -7: "UCXInvalidAddrError",
    -14: "UCXNoDeviceError",
    -16: "UCXCanceledError",
    -21: "UCXExceedsLimitError",
}
_NO_WAY = ("UCXUnreachableError", "UCXInvalidAddrError", "UCXNoDeviceError")
_NO_MEMORY = ("UCXNoMemoryError", "UCXNoResourceError", "UCXExceedsLimitError", "MemoryError")


class StatusError(Exception):
    """An error of libucp: status is a ucs_status_t, text UCX's description."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.name = _NAMES.get(status, "UCXError")


def translated(error: BaseException, what: str) -> TransferError:
    """Translates UCX's error; the caller chains it."""
    name = error.name if isinstance(error, StatusError) else type(error).__name__
    text = f"UCX cannot {what}: {error or name}"
    if "Cancel" in name:
        return Broken(f"UCX cancelled it: cannot {what}")
    if name in _NO_WAY:
        return Broken(text, hint="do both sides have a UCX transport in common (UCX_TLS, UCX_NET_DEVICES)?")
    if name in _NO_MEMORY:
        return InternalError(
            text, hint="is the limit of locked memory (ulimit -l) high enough, and is there room on the GPU?"
        )
    return Broken(text) if name.startswith("UCX") else InternalError(text)
