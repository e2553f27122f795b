"""UCX's C interface: which library is taken, and what is said of one that does not fit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

from transfer.transports.errors import Broken, InternalError, NotSupported
from transfer.transports.ucx import libucp
from transfer.transports.ucx.failures import StatusError, translated


def test_no_library_at_all():
    with pytest.raises(NotSupported, match=r"nowhere.*elsewhere"):
        libucp.load(["/nowhere/libucp.so.0", "/elsewhere/libucp.so.0"])


def test_a_library_that_is_not_ucx():
    with pytest.raises(NotSupported, match="ucp_"):
        libucp.load(["libc.so.6"])


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("version", "taken"), [((1, 9, 0), False), ((1, 10, 0), True), ((1, 99, 7), True), ((2, 0, 0), False)]
)
def test_versions(tmp_path, version, taken):
    """A library made up here, which answers with its version only."""
    names = [
        name
        for name in (*libucp._QUICK, *libucp._SLOW)
        if name not in ("ucp_get_version", "ucs_status_string")
    ]
    major, minor, release = version
    source = "".join(f"int {name}(void) {{ return 0; }}\n" for name in names)
    source += (
        "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c)"
        f"{{ *a = {major}; *b = {minor}; *c = {release}; }}\n"
        'const char *ucs_status_string(int status) { return "said"; }\n'
    )
    (tmp_path / "made_up.c").write_text(source)
    path = str(tmp_path / "libucp.so.0")
    command = ["cc", "-shared", "-fPIC", "-w", "-o", path, str(tmp_path / "made_up.c")]
    subprocess.run(command, check=True, timeout=50)
    if not taken:
        with pytest.raises(NotSupported, match=r"1\.10"):
            libucp.load([path])
        return
    functions = libucp.load(["/nowhere/libucp.so.0", path])
    assert functions.path == path and functions.version == f"{major}.{minor}.{release}"
    assert functions.interface == (1, min(minor, 21))
    assert functions.pointer(None) == 0 and functions.pointer(4096) == 4096
    with pytest.raises(StatusError, match="said") as cancelled:
        functions.pointer((1 << 64) - 16)
    assert isinstance(translated(cancelled.value, "send"), Broken)
    functions.check(libucp.OK)
    functions.check(libucp.IN_PROGRESS)


@pytest.mark.parametrize(
    ("status", "kind", "word"),
    [
        (-16, Broken, "cancelled"),
        (-6, Broken, "UCX_TLS"),
        (-4, InternalError, "ulimit"),
        (-25, Broken, "reset"),
        (-80, Broken, "timeout"),
    ],
)
def test_errors(status, kind, word):
    said = {-16: "", -6: "unreachable", -4: "no memory", -25: "connection reset", -80: "endpoint timeout"}
    found = translated(StatusError(status, said[status]), "send")
    assert type(found) is kind and word in f"{found} {found.hint}"


def test_the_layouts_are_those_of_the_header():
    """Offsets as ucp.h has them, for 64 bits."""
    offsets = {
        (libucp.ContextParams, "mt_workers_shared"): 48,
        (libucp.ContextAttributes, "memory_types"): 24,
        (libucp.WorkerParams, "thread_mode"): 8,
        (libucp.WorkerAttributes, "address"): 16,
        (libucp.WorkerAttributes, "address_length"): 24,
        (libucp.EndpointParams, "address"): 8,
        (libucp.EndpointParams, "error_mode"): 16,
        (libucp.EndpointParams, "error_handler"): 24,
        (libucp.UcpRequestParams, "flags"): 4,
        (libucp.UcpRequestParams, "memory_type"): 48,
        (libucp.TagInfo, "length"): 8,
    }
    assert {key: getattr(*key).offset for key in offsets} == offsets
    assert ctypes.sizeof(libucp.Status) == 1
