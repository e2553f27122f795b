"""The checks of a finished image: of its files, and of its behaviour when it runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.docker.container import Container, ProofFailed
from deploy.docker.image import Settings

#: bytes of the tcp image in addition to its base, at most
TCP_LIMIT = 200 * 10**6
_TOOLS = ("gcc", "cc", "c++", "g++", "ld", "as", "make", "cython", "pip", "pip3", "curl", "wget", "git")
#: beginnings of paths that only the rdma image has
_RDMA = ("libibverbs", "librdmacm", "libucp", "libuct", "libmlx5", "ucx")
_CUDA = ("cuda", "libcuda", "nvidia", "ucxx", "torch", "pyspark", "pyarrow")
_OWN = re.compile(r"opt/transfer/lib/python3\.\d+/site-packages/(transfer|tensor_transfer|pyspark_transfer)")
#: folders that only the build writes to
_PASSING = ("var/lib/apt/lists/", "var/cache/apt/archives/", "root/", "tmp/", "source", "wheels", "tools")
_PYTHON = "/opt/transfer/bin/python3"
_HERE = "tcp://127.0.0.1:7001"

_RECEIVE = f"""
import numpy, transfer
with transfer.Context() as context, context.socket(transfer.PULL) as pull:
    pull.rcvtimeo = 30_000
    pull.bind({_HERE!r})
    array = pull.recv_tensor()
    print(array.dtype, array.shape, int(array.sum()))
"""
_SEND = f"""
import numpy, transfer
with transfer.Context() as context, context.socket(transfer.PUSH) as push:
    push.sndtimeo, push.linger = 30_000, 30_000
    push.connect({_HERE!r})
    push.wait_for_peers(1, timeout=30)
    print(push.peers()[0].transport, flush=True)
    push.send_tensor(numpy.arange(3 << 20, dtype="int32").reshape(3, -1))
"""
_TENSOR = f"int32 (3, {1 << 20}) {sum(range(3 << 20))}"
_PUBLISH = """
from transfer.broker.clients.native import BrokerClient
with BrokerClient("tcp://127.0.0.1:5580") as client:
    client.publish("orders", b"kept")
"""
_CONSUME = """
from transfer.broker.clients.native import BrokerClient
with BrokerClient("tcp://127.0.0.1:5580") as client:
    orders = client.consume("orders", "billing", begin="old")
    message = orders.recv()
    orders.ack(message, wait=True)
    print(bytes(message.data).decode())
"""
_UCX = """
from pathlib import Path
from transfer.transports.ucx.installed import available, has_infiniband, mapped, own_maps
from transfer.transports.ucx.libucp import load
from transfer.transports import config
assert available(config.ucx_driver())
functions = load()
assert has_infiniband(mapped(own_maps())), "UCX without InfiniBand"
from transfer.transports.rdma.driver import load as load_verbs
print("UCX", functions.version, "of", next(one.path for one in mapped(own_maps()) if one.name == "libucp"))
print("libibverbs", load_verbs().version)
"""


@dataclass(frozen=True, slots=True)
class Image:
    """A finished root with its settings; base: the root of its base; room: for its volumes."""

    name: str
    root: Path
    settings: Settings
    base: Path
    room: Path


def prove(image: Image, report: Callable[[str], None]) -> None:
    """Runs all checks. Raises ProofFailed with the first one that fails."""
    for check in (_settings, _sizes, _files, _contents):
        for line in check(image):
            report(f"{image.name}: {line}")
    for line in _running(image):
        report(f"{image.name}: {line}")


def size(root: Path) -> int:
    """Returns the bytes of all files; a file with several names counts once."""
    seen: set[int] = set()
    total = 0
    for status in _each(root).values():
        if stat.S_ISREG(status.st_mode) and status.st_ino not in seen:
            seen.add(status.st_ino)
            total += status.st_size
    return total


def _settings(image: Image) -> Iterator[str]:
    settings = image.settings
    _holds(settings.entrypoint == ["transfer"] and settings.command == ["broker"], f"it runs {settings}")
    _holds(settings.health == ["transfer", "health"], f"its health check is {settings.health}")
    _holds(settings.volumes == ["/data"], f"its volumes are {settings.volumes}")
    _holds(settings.env.get("TRANSFER_BROKER__BROKER__DATA") == "/data", "the broker's data is not in /data")
    _holds(settings.stop_signal == "SIGTERM", f"its stop signal is {settings.stop_signal}")
    wanted = {f"org.opencontainers.image.{name}" for name in ("title", "version", "licenses")}
    _holds(wanted <= set(settings.labels), f"its labels are {settings.labels}")
    yield f"runs `transfer broker` as {settings.user}, with {len(settings.ports)} ports"


def _sizes(image: Image) -> Iterator[str]:
    base, whole = size(image.base), size(image.root)
    more = whole - base
    yield f"size: base {base / 1e6:.1f} MB, image {whole / 1e6:.1f} MB, beyond the base {more / 1e6:.1f} MB"
    if image.name == "tcp" and more >= TCP_LIMIT:
        raise ProofFailed(f"that is more than {TCP_LIMIT / 1e6:.0f} MB")


def _files(image: Image) -> Iterator[str]:
    user, _, group = image.settings.user.partition(":")
    _holds(user.isdigit() and int(user) > 0 and int(group) > 0, f"the user is {image.settings.user}")
    before, now = _each(image.base), _each(image.root)
    special = {
        path
        for path, status in now.items()
        if status.st_mode & 0o6000 and stat.S_ISREG(status.st_mode)
        and not (path in before and before[path].st_mode & 0o6000 == status.st_mode & 0o6000)
    }  # fmt: skip
    _holds(not special, f"set-user-id or set-group-id: {sorted(special)}")
    volumes = tuple(image.settings.volumes)
    writable = sorted(
        path
        for path, status in now.items()
        if not stat.S_ISLNK(status.st_mode)
        and (status.st_uid == int(user) or status.st_gid == int(group) or status.st_mode & 0o002)
        and not f"/{path}".startswith(volumes)
        and not status.st_mode & stat.S_ISVTX
        and not stat.S_ISCHR(status.st_mode)
    )
    _holds(not writable, f"the user may write to {writable[:5]}")
    yield f"no file that it adds is set-user-id; none but in {', '.join(volumes)} belongs to user {user}"


def _contents(image: Image) -> Iterator[str]:
    path = image.settings.env["PATH"].split(":")
    before = _each(image.base)
    names = {place: Path(place).name.lower() for place in _each(image.root) if place not in before}
    there = [one for one, name in names.items() if name in _TOOLS and f"/{Path(one).parent}" in path]
    _holds(not there, f"tools of a build: {there}")
    others = {place: name for place, name in names.items() if not _OWN.match(place)}
    _holds(
        not (found := [one for one, name in others.items() if name.startswith(_CUDA)]),
        f"CUDA or so: {found[:5]}",
    )
    rdma = [one for one, name in others.items() if name.startswith(_RDMA)]
    _holds(bool(rdma) == (image.name == "rdma"), f"of RDMA there is {rdma[:5]}")
    left = [one for one in names if one.startswith(_PASSING) and names[one] not in ("lock", "partial")]
    _holds(not left, f"left behind: {left[:5]}")
    # Empty ones are the mount points of a step.
    for place in ("etc/pip.conf", "etc/xdg/pip", "etc/apt/apt.conf.d/99machine", "run/machine"):
        files = [path for path in (image.root / place, *(image.root / place).rglob("*")) if path.is_file()]
        _holds(not any(map(os.path.getsize, files)), f"of the machine that built it: {place}")
    core = "opt/transfer/lib/python3.*/site-packages/transfer/transports/core/native/*.so"
    compiled = list(image.root.glob(core))
    _holds(bool(compiled), "no compiled core")
    if shutil.which("readelf"):
        linked = [name for name in _linked(compiled) if name.startswith("libpython")]
        _holds(not linked, f"the core is linked to {linked}")
    yield f"no compiler, pip, download or cache; {len(compiled)} files of the compiled core"


def _running(image: Image) -> Iterator[str]:
    volume = image.room / image.name
    shutil.rmtree(volume, ignore_errors=True)
    volume.mkdir(parents=True)
    # With the owner of the folder in the image, which an engine copies into a new volume.
    like = (image.root / "data").stat()
    os.chown(volume, like.st_uid, like.st_gid)
    volume.chmod(stat.S_IMODE(like.st_mode))
    volumes = {"/data": volume}
    with Container(image.root, image.settings, volumes) as container:
        took = container.await_health(60)
        user = container.run("/usr/bin/id", "-u").strip()
        yield f"the broker is healthy {took:.1f} s after its start, as user {user}"
        yield from _is_shut(container)
        version = json.loads(container.run("transfer", "version", "--json"))
        _holds("native" in json.dumps(version), f"the core is not the compiled one: {version}")
        label = image.settings.labels["org.opencontainers.image.version"]
        _holds(version["transfer"] == label, f"the package is {version['transfer']}, the label says {label}")
        yield f"transfer version: {json.dumps(version)}"
        yield from _messages(container)
        container.run(_PYTHON, "-c", _PUBLISH)
        if image.name == "rdma":
            yield "; ".join(container.run(_PYTHON, "-c", _UCX).splitlines())
            sent = _tensor(
                container, {"TRANSFER_PROTOCOL": "ucx", "MC_RPC_POLICY": "require", "TRANSFER_LOCAL": "off"}
            )
            yield f"a tensor with TRANSFER_PROTOCOL=ucx, by {sent}"
        code = container.stop(20)
        _holds(code == 0, f"{image.settings.stop_signal}: status {code}; its output:\n{container.output}")
        yield f"{image.settings.stop_signal} ended it with status 0"
    with Container(image.root, image.settings, volumes) as container:
        container.await_health(60)
        _holds(container.run(_PYTHON, "-c", _CONSUME).strip() == "kept", "the message is lost")
        code = container.stop(20)
        _holds(code == 0, f"the second one ended with {code}")
        yield "the next one on its volume had the message"
    with Container(image.root, image.settings, volumes, ["pull", "-b", _HERE]) as container:
        _holds(not container.healthy(), "the check passes without a broker")
        yield "without a broker its check fails"
        code = container.stop(20)
        _holds(code == 130, f"`transfer pull` ended with {code} after {image.settings.stop_signal}")
        yield f"{image.settings.stop_signal} ended `transfer pull` as process 1 with status 130, as Ctrl-C"
    _holds("Traceback" not in container.output, f"its output:\n{container.output}")


def _is_shut(container: Container) -> Iterator[str]:
    """Checks the permissions of a process of the image."""
    for place in ("/", "/opt/transfer", "/etc", "/usr/bin", "/dev"):
        container.run("/bin/sh", "-c", f": > {place}/new", code=2)
    for place in ("/data", "/tmp", "/dev/shm"):
        container.run("/bin/sh", "-c", f": > {place}/new && rm {place}/new")
    status = dict(
        line.split(":\t", 1)
        for line in container.run("/bin/cat", "/proc/1/status").splitlines()
        if ":\t" in line
    )
    _holds(status["CapEff"].strip("0") == "" and status["NoNewPrivs"] == "1", f"privileges: {status}")
    _holds(set(status["Uid"].split()) == {"65532"}, f"users: {status['Uid']}")
    yield "its file system is read-only but for /data, /tmp and /dev/shm; no capabilities, no new privileges"


def _messages(container: Container) -> Iterator[str]:
    pull = container.start("transfer", "pull", "--bind", _HERE, "--count", "3", "--timeout", "30", "--json")
    words = ("one", "two", "three")
    container.run("transfer", "push", "--connect", _HERE, "--confirm", *(f"--data={word}" for word in words))
    output = container.ended(pull, 0, "transfer pull")
    lines = [json.loads(line) for line in output.splitlines()]
    _holds(
        len(lines) == len(words) and all(w in json.dumps(line) for w, line in zip(words, lines, strict=True)),
        output,
    )
    yield "PUSH and PULL by the command line: 3 of 3 messages"
    yield f"a tensor from process to process, by {_tensor(container, {})}"
    yield f"a tensor with TRANSFER_LOCAL=off, by {_tensor(container, {'TRANSFER_LOCAL': 'off'})}"


def _tensor(container: Container, env: dict[str, str]) -> str:
    """Returns the transport that carried it."""
    pull = container.start(_PYTHON, "-c", _RECEIVE, env=env)
    transport = container.run(_PYTHON, "-c", _SEND, env=env).strip()
    output = container.ended(pull, 0, "the receiver").strip()
    _holds(output == _TENSOR, f"the tensor arrived as {output}, and was {_TENSOR}")
    return transport


def _linked(files: list[Path]) -> set[str]:
    found: set[str] = set()
    for file in files:
        dump = subprocess.run(
            ["readelf", "-d", str(file)], capture_output=True, text=True, check=True, timeout=60
        )
        found |= {line.partition("[")[2].rstrip("]") for line in dump.stdout.splitlines() if "NEEDED" in line}
    return found


def _each(root: Path) -> dict[str, os.stat_result]:
    """Returns everything below a root, by its path there."""
    found: dict[str, os.stat_result] = {}
    for place, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = os.path.join(place, name)
            found[os.path.relpath(path, root)] = os.lstat(path)
    return found


def _holds(fact: bool, otherwise: str) -> None:
    if not fact:
        raise ProofFailed(otherwise)
