"""The structures that the core declares of libibverbs lie as the installed header says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

DECLARED = Path(__file__).parents[2] / "transports/core/native/verbs.pxd"
HEADER = Path("/usr/include/infiniband/verbs.h")
#: fields of ours whose names the header has elsewhere
INNER = {
    "ibv_send_wr": {"remote_addr": "wr.rdma.remote_addr", "rkey": "wr.rdma.rkey", "remote_srqn": "qp_type.xrc.remote_srqn"},
    "ibv_ah_attr": {
        "dgid": "grh.dgid",
        "flow_label": "grh.flow_label",
        "sgid_index": "grh.sgid_index",
        "hop_limit": "grh.hop_limit",
        "traffic_class": "grh.traffic_class",
    },
    "ibv_send_wr_tail": {},
}
#: made by the caller, or filled into memory of the caller: their size counts, too
WHOLE = {
    *("ibv_context_ops", "ibv_device_attr", "ibv_port_attr", "ibv_ah_attr", "ibv_qp_cap", "ibv_qp_init_attr"),
    *("ibv_qp_attr", "ibv_srq_attr", "ibv_srq_init_attr", "ibv_sge", "ibv_send_wr", "ibv_recv_wr", "ibv_wc"),
    "ibv_async_event",
}
#: padding of ours
PADDING = re.compile(r"unused_|rest_of_wr|bind_mw")


def declared():
    """{structure: its declarations in C} of the .pxd."""
    found = {}
    for name, body in re.findall(r"cdef struct (ibv_\w+):\n((?:    .*\n)+)", DECLARED.read_text()):
        lines = [line.split("#")[0].strip() for line in body.splitlines()]
        found[name] = [re.sub(r".*\(\*(\w+)\)\(.*", r"void* \1", line) for line in lines]
    return found


def field(declaration):
    return re.sub(r"\[\d+\]$", "", declaration).split()[-1]


def program():
    """C that compiles if all offsets and sizes agree."""
    ours = declared()
    names = "|".join(ours)
    lines = ["#include <stddef.h>", "#include <infiniband/verbs.h>"]
    for name, fields in ours.items():
        text = "; ".join(re.sub(rf"\b({names})\b", r"struct own_\1", one) for one in fields)
        lines.append(f"struct own_{name} {{ {text}; }};")
    for name, fields in ours.items():
        for one in map(field, fields):
            if not PADDING.match(one):
                theirs = INNER.get(name, {}).get(one, one)
                same = f"offsetof(struct own_{name}, {one}) == offsetof(struct {name}, {theirs})"
                lines.append(f'_Static_assert({same}, "{name}.{one}");')
        if name in WHOLE:
            lines.append(f'_Static_assert(sizeof(struct own_{name}) == sizeof(struct {name}), "{name}");')
    for name, value in re.findall(r"^    (IBV_\w+) = (.+)$", DECLARED.read_text(), re.MULTILINE):
        lines.append(f'_Static_assert({name} == {value}, "{name}");')
    return "\n".join(lines) + "\n"


def test_it_lies_as_in_the_header(tmp_path):
    if not HEADER.exists():
        pytest.skip("no header of libibverbs: apt-get install libibverbs-dev")
    source = tmp_path / "layout.c"
    source.write_text(program())
    made = subprocess.run(
        ["gcc", "-std=c11", "-fsyntax-only", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert not made.returncode, made.stderr
    assert program().count("_Static_assert") > 200


def test_a_wrong_offset_is_found(tmp_path):
    if not HEADER.exists():
        pytest.skip("no header of libibverbs: apt-get install libibverbs-dev")
    source = tmp_path / "layout.c"
    source.write_text(program().replace("uint32_t vendor_err;", "uint64_t vendor_err;"))
    made = subprocess.run(["gcc", "-fsyntax-only", source], capture_output=True, text=True, timeout=60, check=False)
    assert "ibv_wc.byte_len" in made.stderr
