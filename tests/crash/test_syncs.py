"""Each call of a sync matters: without it there are states in which something acknowledged is lost."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.crash import explore, programs
from tests.crash.test_states import library  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[2]
#: syncs whose loss loses nothing, and why
UNNEEDED = {
    "segment.Segment._sync_blobs<segment.Segment.sync_blobs_unlocked<blob_writer.BlobWriter.sync": (
        "it only takes work from the commit, which syncs the same file again"
    ),
    "disk.sync_folder<segment_files.finish_removals<segment.remove": (
        "it orders the removal of a segment's other files before that of the file that tells of it: a crash "
        "that turns them round leaves files that are set apart, and no message goes"
    ),
}
#: syncs that do the same, so that they are left out together, by a program that shows it
TOGETHER = {
    "log_killed": (
        "disk.sync_folder<journal.Journal._begin<journal.Journal.__init__",
        "disk.sync_folder<format.write<log.Log.__init__",
    ),
    "broker_groups": (
        "disk.sync_folder<disk.make_folder<server.Broker._open",
        "disk.sync_folder<disk.make_folder<disk.make_folder",
    ),
}
FAST = ("log_killed",)


def left_out(library, *names, states=300):  # noqa: F811
    """(syncs that matter, syncs that no state finds) of recorded programs; a broker takes long to start."""
    found: dict[str, bool] = {}
    for name in names:
        words = [
            name,
            "--states",
            str(states // 5 if name.startswith("broker") else states),
            "--without",
            "each",
        ]
        for site, by_program in explore.start(words, library, timeout=900)["without"].items():
            found[site] = found.get(site, False) or any(by_program.values())
    return sorted(site for site in found if found[site]), sorted(site for site in found if not found[site])


@pytest.mark.timeout(120)
def test_syncs_that_are_left_out_are_found(library) -> None:  # noqa: F811
    found, missed = left_out(library, *FAST, states=60)
    assert len(found) >= 5 and not any("_flush_unlocked" in site for site in missed), missed


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_each_sync_that_is_left_out_is_found(library, capsys) -> None:  # noqa: F811
    found, missed = left_out(library, *programs.ALL)
    together = {site for sites in TOGETHER.values() for site in sites}
    assert not [site for site in missed if site not in together | UNNEEDED.keys()]
    for name, sites in TOGETHER.items():
        words = [name, "--states", "300", "--without", explore.AND.join(sites)]
        [without] = explore.start(words, library, timeout=900)["without"].values()
        assert any(without.values()), f"nothing is lost without {sites}"
    with capsys.disabled():
        print(f"{len(found)} of {len(found)} syncs that matter are found when they are left out")


def test_each_place_that_syncs_is_known() -> None:
    """A module that syncs files belongs to a recorded program, or stands here with a reason."""
    recorded = {
        "log/segment.py", "log/disk.py", "log/format.py", "log/quarantine.py",
        "broker/storage/dead_letter_payloads.py", "broker/storage/audit.py",
    }  # fmt: skip
    others = {"cli/audit.py": "what a person exports by hand"}
    found = set()
    for path in (ROOT / "transfer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("fsync", "fdatasync"):
                found.add(str(path.relative_to(ROOT / "transfer")))
    assert found <= recorded | set(others), found - recorded - set(others)
