"""Runs commands in the root of a file system as a container engine does: in new namespaces."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.docker.machine import Unable

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def entering(
    root: Path, command: Sequence[str], *, user: str, folder: str, writable: Mapping[str, Path | None]
) -> list[str]:
    """Returns the command line that runs a command in a root, as process 1 of new namespaces.

    The root is read-only. writable: folders that are writable, with the folder of this machine for each
    (None: memory). The network has no route. The environment is the caller's, unchanged.
    """
    quoted, tool = shlex.quote, _tool
    lines = ["set -e", f"{tool('mount')} --rbind {quoted(str(root))} {quoted(str(root))}"]
    mount = tool("mount")
    at = {name: quoted(str(inside(root, name))) for name in ("/dev", "/proc", "/sys")}
    lines.append(f"{mount} -t tmpfs -o mode=755,size=64k devices {at['/dev']}")
    for name in _DEVICES:
        lines.append(f": > {at['/dev']}/{name}; {mount} --bind /dev/{name} {at['/dev']}/{name}")
    for name, place in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        lines.append(f"{tool('ln')} -s /proc/self/fd{place} {at['/dev']}/{name}")
    shm = f"{at['/dev']}/shm"
    lines.append(f"{tool('mkdir')} {shm}; {mount} -t tmpfs -o mode=1777,size=64m shm {shm}")
    lines.append(f"{mount} -t proc -o nosuid,nodev,noexec proc {at['/proc']}")
    lines.append(f"{mount} -t sysfs -o ro,nosuid,nodev,noexec sysfs {at['/sys']}")
    # An interface in addition to the loopback, as in a pod; it has no route.
    address = tool("ip")
    lines.append(f"{address} link set lo up; {address} link add eth0 type veth peer name nowhere")
    lines.append(f"{address} address add 192.0.2.1/24 dev eth0; {address} link set eth0 up")
    lines.append(f"{address} link set nowhere up")
    lines.append(f"{mount} -o remount,ro,bind {quoted(str(root))}")
    for name, source in writable.items():
        target = quoted(str(inside(root, name)))
        lines.append(
            f"{mount} -t tmpfs -o mode=1777,size=256m,nosuid,nodev writable {target}"
            if source is None
            else f"{mount} --bind {quoted(str(source))} {target}"
        )
    lines.append("exec " + shlex.join(_entry(root, command, user, folder)))
    return [tool("unshare"), "--mount", "--pid", "--ipc", "--uts", "--net", "--propagation", "private",
            "--fork", "--kill-child", "/bin/sh", "-c", "\n".join(lines)]  # fmt: skip


def joining(process: int, root: Path, command: Sequence[str], *, user: str, folder: str) -> list[str]:
    """Returns the command line that runs a command in the namespaces of process 1 of an `entering`, as an
    engine's exec does."""
    spaces = ["--mount", "--pid", "--ipc", "--uts", "--net"]
    entry = _entry(root, command, user, folder)
    return [_tool("nsenter"), "--target", str(process), *spaces, "--", *entry]


def inside(root: Path, path: str) -> Path:
    """Returns the path in this machine's files of a path in a root."""
    return root / os.path.normpath(path).lstrip("/")


def _entry(root: Path, command: Sequence[str], user: str, folder: str) -> list[str]:
    change = [_tool("chroot"), f"--userspec={user}", "--groups=", str(root)]
    return [_tool("setpriv"), "--no-new-privs", *change, "/usr/bin/env", "-C", folder, *command]


def _tool(name: str) -> str:
    """Returns the full path of a program of this machine: PATH is the image's."""
    found = shutil.which(name)
    if found is None:
        raise Unable(f"{name} is not installed here")
    return found
