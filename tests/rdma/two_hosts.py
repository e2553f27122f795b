"""Two virtual machines as two hosts: tensors between them over rdma, by PUSH/PULL and REQ/REP, and the
hellos before by TLS with certificates of both sides and a token.

    python -m tests.rdma.two_hosts

Each machine has a kernel, a network card and a Soft-RoCE device of its own; a socket of QEMU's is the wire
between the cards. What runs in them is `tests/rdma/in_vm/host.py`; both must end with status 0.
"""

from __future__ import annotations

import shlex
import signal
import socket
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.rdma import vm
from tests.rdma.in_vm.host import ADDRESS
from transfer.certificates import Authority

TIMEOUT = 400
#: by the machine's number; the card is the only interface that is no loopback
_NETWORK = """\
modprobe virtio_net
card=$(ls /sys/class/net | grep -v lo | head -1)
ip link set "$card" mtu 4200
ip addr add 10.78.0.{number}/24 dev "$card"
ip link set "$card" up
rdma link add rxe0 type rxe netdev "$card" || exit 97
"""
_MEMORY = "1G"


def run(timeout: float = TIMEOUT, tools: vm.Tools | None = None) -> dict[str, vm.Ran]:
    """Both hosts' results, by role: serve, visit. Raises vm.Missing."""
    tools = tools or vm.find_tools()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        variables = _identity(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transfer-"))))
        machines = {}
        for number, (role, wire) in enumerate((("serve", "listen"), ("visit", "connect")), 1):
            machines[role] = stack.enter_context(
                vm.Machine(
                    f"{variables} python -m tests.rdma.in_vm.host {role}",
                    memory=_MEMORY,
                    tools=tools,
                    network=_NETWORK.format(number=number),
                    options=_card(number, f"{wire}=127.0.0.1:{port}"),
                )
            )
        return {role: machine.wait(timeout) for role, machine in machines.items()}


def _identity(folder: Path) -> str:
    """Variables for a shell; the machines see the files of this one."""
    authority = Authority(folder)
    peer = authority.issue(hosts=(ADDRESS,))
    (folder / "token").write_text("93b1e7d05c2f4a68bd70f2c8416e9a5d\n")
    return shlex.join(
        (
            f"TRANSFER_TLS_CA={authority.path}",
            f"TRANSFER_TLS_CERT={peer.certificate}",
            f"TRANSFER_TLS_KEY={peer.key}",
            f"TRANSFER_TOKEN_FILE={folder / 'token'}",
        )
    )


def _card(number: int, wire: str) -> list[str]:
    device = f"virtio-net-pci,netdev=wire,mac=52:54:00:78:00:0{number}"
    return ["--disable-microvm", f"--qemu-opts=-netdev socket,id=wire,{wire} -device {device}"]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        ran = run()
    except vm.Missing as error:
        print(f"two hosts cannot run here: {error}", file=sys.stderr)
        return 3
    for role, one in ran.items():
        print(f"--- {role}: status {one.status}\n{one.output}", end="")
        if one.status is None:
            print(one.console[-3000:])
    return 0 if all(one.status == 0 for one in ran.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
