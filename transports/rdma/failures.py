"""What an error of libibverbs means: its kind, the hint, and all the numbers, decided in one place.

The same errno has many causes. The rights of the process and the mappings at the address tell them apart.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from transfer.transports.errors import Broken, DeviceError, OutOfDescriptors, RegistrationError, TransferError

_CAP_IPC_LOCK = 1 << 14

#: libibverbs' ibv_wc_status
STATUS = {
    1: "LOC_LEN_ERR", 2: "LOC_QP_OP_ERR", 3: "LOC_EEC_OP_ERR", 4: "LOC_PROT_ERR", 5: "WR_FLUSH_ERR",
    6: "MW_BIND_ERR", 7: "BAD_RESP_ERR", 8: "LOC_ACCESS_ERR", 9: "REM_INV_REQ_ERR", 10: "REM_ACCESS_ERR",
    11: "REM_OP_ERR", 12: "RETRY_EXC_ERR", 13: "RNR_RETRY_EXC_ERR", 21: "GENERAL_ERR",
}  # fmt: skip
ACCESS_REFUSED, NO_ANSWER, NOT_READY = 10, 12, 13

_MEANING = {
    ACCESS_REFUSED: "the peer's device refused to let its memory be read",
    NO_ANSWER: "the peer's device does not answer",
    NOT_READY: "the peer has no receive posted",
}


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The facts that decide between causes. locked: the process may lock any amount of memory (CAP_IPC_LOCK).
    limit: RLIMIT_MEMLOCK in bytes, -1 without one. pinned: bytes that are registered already.
    regions, max_regions: their number, and its limit. mapped, writable: of the address range.
    device_memory: a GPU's, which is in no mapping that counts."""

    locked: bool = False
    limit: int = -1
    pinned: int = 0
    regions: int = 0
    max_regions: int = 0
    mapped: bool = True
    writable: bool = True
    device_memory: bool = False


def registration_cause(number: int, size: int, now: Circumstances) -> tuple[str, str]:
    """(word for counters, hint) for a failed registration. Pure."""
    if now.device_memory and number not in (errno.ENOMEM, errno.EAGAIN, errno.EPERM):
        return "peermem", "GPU memory needs dmabuf support of the driver, or the nvidia-peermem module"
    # ENOMEM: libibverbs marks the pages before it registers them, so that a fork does not move them.
    if number in (errno.EFAULT, errno.EINVAL, errno.ENOMEM) and not now.mapped:
        return "address", "that memory is not mapped (any more)"
    if number in (errno.EFAULT, errno.EACCES) and not now.writable:
        return "read_only", "the memory is a read-only mapping: copy it, or map it privately and writable"
    if now.max_regions and now.regions >= now.max_regions:
        return "keys", f"the device has {now.max_regions} keys; register fewer, larger regions"
    # EAGAIN and EPERM are other drivers' numbers for the same limit.
    short = not now.locked and 0 <= now.limit < now.pinned + size
    if number in (errno.ENOMEM, errno.EAGAIN, errno.EPERM) and short:
        return "memlock", (
            f"the process may lock {_bytes(now.limit)} of memory: raise `ulimit -l` "
            "(LimitMEMLOCK= of a unit, --ulimit memlock=-1 of a container) or give it CAP_IPC_LOCK"
        )
    if number == errno.ENOMEM:
        return (
            "memory",
            "the machine or the device has no memory left for it; the locked-memory limit is not the cause",
        )
    if number in (errno.EPERM, errno.EACCES):
        return "permission", "a container may need the device and CAP_IPC_LOCK"
    if number in (errno.EOPNOTSUPP, errno.ENOSYS):
        return "unsupported", "this device or kernel cannot register this kind of memory"
    return "register", "see the kernel's log (dmesg)"


def registration_failed(
    error: BaseException, number: int, *, device: str, address: int, size: int, now: Circumstances
) -> TransferError:
    """The typed error for a registration that the driver refused; the caller chains `error`."""
    if number in (errno.EMFILE, errno.ENFILE):
        return OutOfDescriptors(f"no descriptor is left to register memory on {device}")
    reason, hint = registration_cause(number, size, now)
    text = f"{_bytes(size)} at {address:#x} could not be registered on {device}: {_name(number)} ({error})"
    return RegistrationError(reason, text, hint=hint, errno=number or None)


def circumstances(
    address: int, size: int, pinned: int, regions: int, max_regions: int, device_memory: bool
) -> Circumstances:
    """Inspects this process after a failed registration."""
    mapped = writable = True
    with suppress(OSError):  # not readable after a change of user
        if not device_memory:
            mapped, writable = mapping_of(Path("/proc/self/maps").read_text(), address, size)
    return Circumstances(
        may_lock(),
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        pinned,
        regions,
        max_regions,
        mapped,
        writable,
        device_memory,
    )


def mapping_of(maps: str, address: int, size: int) -> tuple[bool, bool]:
    """(all of it is mapped, all of it is writable), from the text of /proc/self/maps. Pure."""
    at, writable = address, True
    for line in maps.splitlines():
        span, rights = line.split(" ", 2)[:2]
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= at < end:
            writable = writable and rights[1] == "w"
            at = end
            if at >= address + size:
                return True, writable
    return False, writable


def may_lock() -> bool:
    """Whether CAP_IPC_LOCK is effective, which lifts the limit on locked memory."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    effective = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(effective.split()[1], 16) & _CAP_IPC_LOCK)


def device_failed(number: int, device: str, what: str) -> TransferError:
    """The error for a device that cannot be opened or has no resources left. The caller chains the cause."""
    if number in (errno.EMFILE, errno.ENFILE):
        return OutOfDescriptors(f"no descriptor is left for {what} on {device}")
    text = f"{what} on {device} failed: {_name(number)}"
    if number in (errno.EPERM, errno.EACCES):
        hint = "the process needs /dev/infiniband/uverbs*: pass it to the container, or join its group"
        return DeviceError("permission", text, hint=hint, errno=number)
    if number == errno.ENOMEM:
        hint = (
            "raise `ulimit -l`, or give the process CAP_IPC_LOCK"
            if not may_lock()
            else "the device is used up"
        )
        return DeviceError("memlock" if not may_lock() else "device_full", text, hint=hint, errno=number)
    if number in (errno.ENODEV, errno.ENOENT, errno.ENXIO):
        return DeviceError(
            "no_device", text, hint="is the module loaded, and the device there? (ibv_devices)"
        )
    return DeviceError("device", text, hint="see the kernel's log (dmesg)", errno=number or None)


def completion_failed(status: int, peer: str, doing: str) -> Broken:
    """The error of a connection with a failed completion."""
    word = STATUS.get(status, f"status {status}")
    meaning = _MEANING.get(status, "the connection failed")
    return Broken(f"{doing} {peer}: {meaning} ({word})")


def _name(number: int) -> str:
    return f"{errno.errorcode.get(number, number)}, {os.strerror(number)}" if number else "no errno"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
