"""The outputs of `transfer doctor` that docs/doctor.md shows have the lines of the real one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.docs.examples import ROOT, examples
from transfer import doctor
from transfer.cli.tools import _MARKS

PAGE = ROOT / "docs/doctor.md"
STATUS = {mark: status for status, (mark, _) in _MARKS.items()}
SOURCES = "".join(
    re.sub(r"\"\s+f?\"", "", path.read_text())  # a text over several lines
    for folder in ("transfer/doctor", "transports/rdma", "transports/ucx")
    for path in sorted((ROOT / folder).glob("*.py"))
)
#: what RDMA's probe finds on machines with a device, as `devices()` names it
OF_RDMA = [f"rdma {name.replace('_', ' ')}" for name in re.findall(r'details\["(\w+)"\]', SOURCES)]


def samples() -> Iterator[list[tuple[str, str, str, str, str]]]:
    """(group, name, status, detail, hint) of each line, by sample."""
    for fence in (one.code for one in examples() if one.document == PAGE and not one.language):
        group, rows = "", []
        for line, hint in re.findall(r"^(.*)\n(?:      → (.*)\n)?", fence, re.MULTILINE):
            if re.fullmatch(r"[a-z]+", line):
                group = line
            elif found := re.fullmatch(r"  (\S) (.{18})(.+)", line):
                rows.append((group, found[2].rstrip(), STATUS[found[1]], found[3], hint))
        yield rows


def test_the_samples_have_the_lines_of_the_real_output() -> None:
    """Texts had changed, and the page had not."""
    real = {(check.group, check.name): check for check in doctor.examine()}
    order = list(real)
    machine, virtual = samples()
    assert len(machine) > 12 and len(virtual) > 7
    for rows in (machine, virtual):
        there = [order.index(row[:2]) for row in rows if row[:2] in real]
        assert there == sorted(there)
        for group, name, status, detail, hint in rows:
            of_rdma = group == "devices" and name in ("rdma devices", "rdma link rxe0/1", *OF_RDMA)
            known = (group, name) in real or of_rdma or f'"{group}", "{name}"' in SOURCES
            assert known, f"{group}: {name} is no line of the doctor"
            assert hint[:20] in SOURCES, f"{name}: {hint}"
            check = real.get((group, name))
            if group == "transports" and check is not None and check.status == status and "(" not in detail:
                assert (check.detail, check.hint) == (detail, hint), name
