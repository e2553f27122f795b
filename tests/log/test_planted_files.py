"""What another user of the host put into the place of a folder, or into it, is not taken for ours."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker.in_process_broker import running
from transfer.log import Log
from transfer.log.private import claim
from transfer.log.quarantine import save_tail
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import SecurityError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")
#: the service's user, and the one who plants
OURS, OTHER = 4001, 4002


@pytest.fixture
def place():
    """A folder that every user reaches, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="transfer-planted-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory):
    """All that is imported late, which the other user may not be able to read."""
    for begin in (begin_log, begin_spool, begin_broker):
        begin(tmp_path_factory.mktemp("data"))


@contextmanager
def as_user(user: int, *groups: int):
    """This process as another user, who is not root."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def folder_of(user: int, path: Path, mode: int = 0o700, group: int | None = None) -> Path:
    path.mkdir(parents=True)
    os.chown(path, user, user if group is None else group)
    path.chmod(mode)
    return path


def file_of(user: int, path: Path, mode: int = 0o666) -> Path:
    path.touch()
    os.chown(path, user, user)
    path.chmod(mode)
    return path


def link_of(user: int, path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.lchown(path, user, user)
    return path


def begin_log(folder: Path) -> None:
    with Log(folder) as log:
        log.commit(log.append("topic", b"data", blob=bytes(1 << 20))[0])


def begin_spool(folder: Path) -> None:
    SpoolStore(folder).close()


def begin_broker(folder: Path) -> None:
    with running(folder):
        pass


every_program = pytest.mark.parametrize("begin", [begin_log, begin_spool, begin_broker])


@every_program
@pytest.mark.parametrize("user", [OURS, 0])
def test_a_folder_of_another_user_is_refused(place, begin, user):
    folder = folder_of(OTHER, place / "data", 0o777)
    with as_user(user), pytest.raises(SecurityError) as refused:
        begin(folder)
    assert f"{folder} belongs to user {OTHER}" in str(refused.value)
    assert f"chown -hR {user} {folder}" in refused.value.hint
    assert not os.listdir(folder), "nothing was written there"


@pytest.mark.parametrize(
    "name",
    ["state.db", "state.db-wal", "state.db-journal", "audit", "audit/HEAD", "letters", "letters/one.payload"],
)
def test_a_part_of_a_brokers_folder(place, name):
    folder = folder_of(OURS, place / "data", 0o777)
    made = folder / name
    if made.parent != folder:
        folder_of(OURS, made.parent)
    folder_of(OTHER, made, 0o777) if name in ("audit", "letters") else file_of(OTHER, made)
    with as_user(OURS), pytest.raises(SecurityError, match=f"{made} belongs to user {OTHER}"):
        begin_broker(folder)


@pytest.mark.parametrize("name", ["LOCK", "FORMAT.new", f"{1:020d}.blobs", "quarantine"])
def test_a_file_in_a_log(place, name):
    folder = folder_of(OURS, place / "log", 0o777)
    made = folder_of(OTHER, folder / name) if name == "quarantine" else file_of(OTHER, folder / name)
    with as_user(OURS), pytest.raises(SecurityError, match=f"{made} belongs to user {OTHER}"):
        begin_log(folder)


@pytest.mark.parametrize("name", ["log", "state.db", "audit", "letters"])
def test_links_of_another_user(place, name):
    folder = folder_of(OURS, place / "data", 0o777)
    evil = folder_of(OTHER, place / "evil", 0o777)
    target = file_of(OTHER, evil / name) if name == "state.db" else folder_of(OTHER, evil / name, 0o777)
    link_of(OTHER, folder / name, target)
    with as_user(OURS), pytest.raises(SecurityError, match=f"{folder / name} belongs to user {OTHER}"):
        begin_broker(folder)


def test_a_link_in_a_log_overwrites_nothing(place):
    folder = folder_of(OURS, place / "log", 0o777)
    private = file_of(OURS, place / "private", 0o600)
    private.write_text("precious")
    link = link_of(OTHER, folder / "FORMAT.new", private)
    with as_user(OURS):
        with pytest.raises(SecurityError, match=str(link)):
            begin_log(folder)
        link.unlink()
        link.symlink_to(private)  # of this user's own: it is not followed either
        begin_log(folder)
    assert private.read_text() == "precious"
    assert not link.is_symlink()


@pytest.mark.parametrize("name", ["LOCK", "FORMAT", "*.log", "*.blobs"])
def test_a_file_that_is_a_link_of_ours_is_not_followed(place, name):
    folder = folder_of(OURS, place / "log")
    with as_user(OURS):
        begin_log(folder)
        (path,) = folder.glob(name)
        path.rename(folder / "kept")
        path.symlink_to("kept")
        with pytest.raises(SecurityError, match="is a symbolic link"):
            begin_log(folder)


def test_quarantined_data_overwrites_nothing(place):
    private = place / "private"
    private.write_text("precious")
    log = folder_of(0, place / "log")
    folder_of(0, log / "quarantine")
    (log / "quarantine" / "segment.from-7").symlink_to(private)
    save_tail(log, log / "segment", 7, b"torn")
    assert private.read_text() == "precious"


def test_parts_on_another_disk_by_a_link_of_ours(place):
    """`log` is a link to a folder of this user's: its owner chose it."""
    disk = folder_of(OURS, place / "disk")
    folder = folder_of(OURS, place / "data")
    link_of(OURS, folder / "log", disk)
    with as_user(OURS):
        begin_broker(folder)
    assert list(disk.glob("*.log"))
    link_of(OURS, place / "way", folder)
    with as_user(OURS):
        begin_broker(place / "way")


def test_a_link_of_ours_to_a_folder_of_another_user(place):
    folder = folder_of(OURS, place / "data")
    link_of(OURS, folder / "log", folder_of(OTHER, place / "evil", 0o777))
    with as_user(OURS), pytest.raises(SecurityError, match=f"belongs to user {OTHER}"):
        begin_broker(folder)


def test_a_folder_of_ours_that_is_open_to_all_is_closed(place):
    folder = folder_of(OURS, place / "data", 0o1777)
    with as_user(OURS):
        begin_broker(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1700


@every_program
def test_the_folder_of_a_volume_belongs_to_root_and_a_group(place, begin, caplog):
    """As Kubernetes mounts it for `fsGroup`: it stays as it is, and what is in it is closed."""
    folder = folder_of(0, place / "data", 0o2775, group=4003)
    folder_of(0, folder / "lost+found")
    with as_user(OURS, 4003):
        begin(folder)
        made = [path for path in folder.iterdir() if path.name != "lost+found"]
        for path in made:  # as the kubelet leaves them
            path.chmod(0o2770 if path.is_dir() else 0o660)
        begin(folder)
        assert made and not any(path.stat().st_mode & 0o077 for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2775
    assert not any("put" in line or "belongs" in line for line in caplog.messages)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
@every_program
def test_a_folder_of_roots_that_is_for_all_is_refused(place, begin, mode):
    folder = folder_of(0, place / "data", mode)
    with as_user(OURS), pytest.raises(SecurityError, match="every user of this host"):
        begin(folder)
    assert not os.listdir(folder)


def test_root_does_not_close_a_folder_for_all(place):
    """Such as /tmp."""
    folder = folder_of(0, place / "data", 0o1777)
    with pytest.raises(SecurityError, match="every user of this host"):
        begin_log(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


@pytest.fixture
def volume(place):
    """Mounts at a folder: `volume(options)`."""
    folder = place / "volume"
    folder.mkdir()

    def mount(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size=256m,{options}", "tmpfs", str(folder)],
            capture_output=True,
            timeout=30,
        )
        if done.returncode:
            pytest.skip(f"no mounts here: {done.stderr.decode()}")
        return folder

    if shutil.which("mount") is None:
        pytest.skip("no mount")
    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True, timeout=30)


@every_program
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("mode=0777", "every user of this host can put files"),  # emptyDir
        (
            f"mode=0770,uid={OTHER},gid=0",
            f"belongs to user {OTHER}",
        ),  # of the image, and another user in group 0
    ],
)
def test_a_volume_is_taken_with_a_warning(volume, begin, options, words, caplog):
    folder = volume(options)
    with as_user(OURS, 0):
        begin(folder)
        begin(folder)
    told = [line for line in caplog.messages if str(folder) in line]
    assert len(told) == 1 and words in told[0], told


@every_program
def test_a_volume_whose_files_all_belong_to_one_user(volume, begin):
    """As NFS with all_squash shows them: also those that this user makes."""
    folder = volume(f"mode=0777,uid={OTHER}")
    with as_user(OTHER):
        begin(folder)
    begin(folder)


def test_in_a_volume_that_is_for_all_files_of_others_are_refused(volume):
    folder = volume("mode=0777")
    file_of(OTHER, folder / "state.db")
    with as_user(OURS), pytest.raises(SecurityError, match=r"state\.db belongs to user"):
        begin_broker(folder)


@pytest.mark.parametrize(("user", "mode"), [(OTHER, 0o755), (0, 0o777)])
def test_who_can_put_another_folder_in_its_place_is_warned_of(place, user, mode, caplog):
    above = folder_of(user, place / "above", mode)
    folder = folder_of(0, above / "data")
    claim(folder)
    claim(folder)
    (told,) = [line for line in caplog.messages if "in the place of" in line]
    assert str(above) in told
