"""Executes a Dockerfile's stages in folders: each is the root of a file system, copied from its base.

Each RUN has a mount and a process namespace of its own: what it mounted and started ends with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.docker.context import Context
from deploy.docker.dockerfile import Instruction, Stage, State
from deploy.docker.machine import KEYRING, RELEASE, Given, Unable, sources

Report = Callable[[str], None]

#: seconds for one RUN
_LIMIT = 1200
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: what Debian's slim image leaves out of every package
_SLIM = ("doc", "groff", "info", "linda", "lintian", "locale", "man")


class StepFailed(Exception):
    """A step of the build failed. Its text ends with what the step said last."""


def base_root(cache: Path, report: Report) -> Path:
    """Debian as its slim image has it: the smallest debootstrap, without documents. Made once, then kept.

    Raises Unable, StepFailed.
    """
    root = cache / f"debian-{RELEASE}-{os.uname().machine}"
    if (root / ".whole").exists():
        return root
    mirror, _ = sources()
    if shutil.which("debootstrap") is None:
        raise Unable("debootstrap is not installed here: apt-get install debootstrap")
    if not KEYRING.exists():
        raise Unable(f"{KEYRING} is not here: apt-get install debian-archive-keyring")
    report(f"base: debootstrap of {RELEASE} (once, then kept in {cache})")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    command = ["debootstrap", "--variant=minbase", f"--keyring={KEYRING}", RELEASE, str(root), mirror]
    _run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", *command],
        dict(os.environ),
        cache / "base.log",
    )
    _slim(root)
    # What it took over from this machine.
    for name in ("etc/resolv.conf", "etc/hostname", "etc/apt/sources.list"):
        (root / name).unlink(missing_ok=True)
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
        for file in (root / folder).rglob("*"):
            if file.is_file():
                file.unlink()
    (root / ".whole").touch()
    return root


def copied(base: Path, target: Path) -> Path:
    """A root like another."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(target)], check=True, timeout=_LIMIT)
    (target / ".whole").unlink(missing_ok=True)
    return target


class Builder:
    """Builds stages below `place`, from `context`. given: build arguments. Raises StepFailed."""

    def __init__(
        self,
        place: Path,
        base: Path,
        context: Context,
        machine: Given,
        given: Mapping[str, str],
        report: Report,
    ) -> None:
        self._place, self._base, self._context, self._machine = place, base, context, machine
        self._given, self._report = given, report
        self.states: dict[str, State] = {}

    def root(self, name: str) -> Path:
        """Where a stage's root lies."""
        return self._place / name

    def build(self, stage: Stage) -> None:
        """All of a stage's instructions, one behind the other. Its base has to be built."""
        known = stage.base in self.states
        root = copied(self.root(stage.base) if known else self._base, self.root(stage.name))
        state = self.states[stage.base].begun_as_base() if known else State()
        for one in stage.instructions:
            begun = time.monotonic()
            if one.name == "RUN":
                self._execute(stage, root, state, one)
            elif one.name == "COPY":
                self._copy(root, state, one)
            elif one.name == "WORKDIR":
                inside(root, state.expanded(one.text)).mkdir(parents=True, exist_ok=True)
            state = state.after(one, self._given)
            if one.name in ("RUN", "COPY"):
                took = time.monotonic() - begun
                self._report(f"{stage.name}: {one.name} {' '.join(one.text.split())[:88]} ({took:.1f} s)")
        self.states[stage.name] = state

    def _execute(self, stage: Stage, root: Path, state: State, one: Instruction) -> None:
        log = self._place / f"{stage.name}-{one.line}.log"
        env = {"HOME": "/root", **self._machine.env, **state.arguments, **state.env}
        with _lent(root, self._machine) as binds:
            try:
                shell = ["/bin/sh", "-c", one.text]
                _run(entering(root, shell, binds=binds, user=state.user, folder=state.workdir), env, log)
            except StepFailed as error:
                raise StepFailed(f"Dockerfile:{one.line}: RUN {one.text[:60]} ... {error}") from error

    def _copy(self, root: Path, state: State, one: Instruction) -> None:
        *names, target = (state.expanded(word) for word in one.words())
        folder = target.endswith(("/", ".")) or len(names) > 1
        into = inside(root, os.path.join(state.workdir, target))
        if "from" not in one.flags:
            try:
                self._context.copy(names, into, folder=folder)
            except FileNotFoundError as error:
                raise StepFailed(f"Dockerfile:{one.line}: COPY {error}") from error
            return
        for name in names:
            source = inside(self.root(one.flags["from"]), name)
            if not source.is_dir():
                raise StepFailed(f"Dockerfile:{one.line}: COPY --from knows folders only: {name}")
            into.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", f"{source}/.", str(into)], check=True, timeout=_LIMIT)


def entering(
    root: Path,
    command: Sequence[str],
    *,
    binds: Mapping[str, Path] | None = None,
    user: str = "0:0",
    folder: str = "/",
    only_read: bool = False,
    writable: Mapping[str, Path | None] | None = None,
    network: bool = True,
) -> list[str]:
    """The command line that runs a command in a root, as process 1 of namespaces of its own.

    binds: what it sees of this machine, read-only, by the path inside. only_read: the root is; writable:
    folders that are not even so, with what lies there (None: memory). network: this machine's; else one
    of its own that leads nowhere. The environment is the caller's: nothing is added.
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
    lines.append(
        f"{tool('mkdir')} {at['/dev']}/shm; {mount} -t tmpfs -o mode=1777,size=64m shm {at['/dev']}/shm"
    )
    lines.append(f"{mount} -t proc -o nosuid,nodev,noexec proc {at['/proc']}")
    if not network:
        lines.append(f"{mount} -t sysfs -o ro,nosuid,nodev,noexec sysfs {at['/sys']}")
        # An interface beside the loopback, as a pod has one; it leads nowhere.
        address = tool("ip")
        lines.append(f"{address} link set lo up; {address} link add eth0 type veth peer name nowhere")
        lines.append(f"{address} address add 192.0.2.1/24 dev eth0; {address} link set eth0 up")
        lines.append(f"{address} link set nowhere up")
    for name, path in (binds or {}).items():
        target = quoted(str(inside(root, name)))
        lines.append(f"{mount} --bind {quoted(str(path))} {target}; {mount} -o remount,ro,bind {target}")
    if only_read:
        lines.append(f"{mount} -o remount,ro,bind {quoted(str(root))}")
    for name, lies in (writable or {}).items():
        target = quoted(str(inside(root, name)))
        lines.append(
            f"{mount} -t tmpfs -o mode=1777,size=256m,nosuid,nodev writable {target}"
            if lies is None
            else f"{mount} --bind {quoted(str(lies))} {target}"
        )
    lines.append("exec " + shlex.join(_entry(root, command, user, folder, privileged=network)))
    spaces = ["--mount", "--pid", "--ipc", "--uts", *([] if network else ["--net"])]
    return [tool("unshare"), *spaces, "--propagation", "private", "--fork", "--kill-child", "/bin/sh", "-c",
            "\n".join(lines)]  # fmt: skip


def joining(process: int, root: Path, command: Sequence[str], *, user: str, folder: str) -> list[str]:
    """The command line that runs a command beside process 1 of an `entering`, as an exec in a container."""
    spaces = ["--mount", "--pid", "--ipc", "--uts", "--net"]
    entry = _entry(root, command, user, folder, privileged=False)
    return [_tool("nsenter"), "--target", str(process), *spaces, "--", *entry]


def inside(root: Path, path: str) -> Path:
    """The place in this machine's files of a path in a root."""
    return root / os.path.normpath(path).lstrip("/")


def _entry(root: Path, command: Sequence[str], user: str, folder: str, *, privileged: bool) -> list[str]:
    change = [_tool("chroot"), f"--userspec={user}", "--groups=", str(root)]
    change += ["/usr/bin/env", "-C", folder, *command]
    return change if privileged else [_tool("setpriv"), "--no-new-privs", *change]


def _tool(name: str) -> str:
    """A program of this machine by its whole path: PATH is the image's."""
    found = shutil.which(name)
    if found is None:
        raise Unable(f"{name} is not installed here")
    return found


@contextmanager
def _lent(root: Path, machine: Given) -> Iterator[Mapping[str, Path]]:
    """What a step is given of the machine, and the places for it, which are gone afterwards."""
    lent = root.with_name(f"{root.name}.lent")
    lent.mkdir()
    binds = dict(machine.binds)
    for number, (name, text) in enumerate(machine.files.items()):
        (lent / str(number)).write_text(text)
        binds[name] = lent / str(number)
    made: list[Path] = []
    try:
        for name, path in binds.items():
            target = inside(root, name)
            made += _made_folders(root, target if path.is_dir() else target.parent)
            if not path.is_dir() and not target.exists():
                target.touch()
                made.append(target)
        yield binds
    finally:
        for place in reversed(made):
            if place.is_dir():
                # What the step itself put there stays.
                if not any(place.iterdir()):
                    place.rmdir()
            elif place.exists() and not place.stat().st_size:
                place.unlink()
        shutil.rmtree(lent)


def _made_folders(root: Path, folder: Path) -> Iterable[Path]:
    missing = [place for place in (folder, *folder.parents) if root in place.parents and not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return reversed(missing)


def _slim(root: Path) -> None:
    """As the slim image is: dpkg leaves documents out, and those that came are gone."""
    rules = [f"path-exclude /usr/share/{name}/*" for name in _SLIM]
    rules.insert(1, "path-include /usr/share/doc/*/copyright")
    (root / "etc/dpkg/dpkg.cfg.d/docker").write_text("\n".join(rules) + "\n")
    for name in _SLIM:
        for file in sorted((root / "usr/share" / name).rglob("*"), reverse=True):
            if file.is_symlink() or (file.is_file() and file.name != "copyright"):
                file.unlink()
            elif file.is_dir() and not any(file.iterdir()):
                file.rmdir()


def _run(command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """Raises StepFailed with the last lines of what it said."""
    with log.open("wb") as output:
        try:
            subprocess.run(
                command, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                check=True, timeout=_LIMIT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"took more than {_LIMIT} s; {log}") from error
        except subprocess.CalledProcessError as error:
            last = log.read_text(errors="replace").splitlines()[-30:]
            raise StepFailed("\n".join([f"failed ({error.returncode}); {log} ends with:", *last])) from error
