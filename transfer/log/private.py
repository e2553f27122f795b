"""Makes and checks files and folders that other users of the host can neither access nor have made."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from transfer.transports.errors import SecurityError

_log = logging.getLogger("transfer.log")

#: modes of new files and folders
_FILE_MODE, FOLDER_MODE = 0o600, 0o700
_OTHERS = 0o077
#: paths with a logged warning
_warned: set[Path] = set()


def open_file(path: Path, flags: int) -> int:
    """Opens a file, without following a link; only this user can access a new file.
    Raises SecurityError, OSError."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
    except PermissionError as error:
        raise SecurityError(
            f"{path} cannot be opened: {error.strerror}",
            hint=f"it must belong to user {os.geteuid()}, who runs this program",
        ) from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _link(path) from error


def write_private(path: Path, data: bytes) -> None:
    """Writes a file, in the place of an existing one. Raises OSError."""
    path.unlink(missing_ok=True)
    with open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)


def claim(folder: Path, inside: Sequence[str] | None = None) -> None:
    """Checks that a folder and its content belong to this user, and removes other users' permissions.

    inside: checks only this content. Folders may also belong to root, or to the owner of the volume; a link
    to a folder may belong to this user or root. Raises SecurityError, OSError.
    """
    _check_parents(folder)
    if inside is None:
        changed = _claim_all(folder)
    else:
        found = _check_folder(folder)
        changed = int(_close(str(folder), found))  # from now on no other user can add files
        for path in (folder / name for name in inside):
            with suppress(FileNotFoundError):
                changed += _claim_all(path) if path.is_dir() else _claim_file(path, _owners(found))
    if changed:
        _log.warning("%s: removed other users' permissions from %d files and folders", folder, changed)


def check_private(folder: Path, names: Iterable[str]) -> None:
    """Checks that a folder and its existing files of these names belong to this user or root.
    Other users must not be able to write them. Changes nothing. Raises SecurityError, OSError."""
    _check_parents(folder)
    for path in (folder, *(folder / name for name in names)):
        with suppress(FileNotFoundError):
            for found in (stat_of() for stat_of in (path.lstat, path.stat)):
                if found.st_uid not in (os.geteuid(), 0):
                    raise _of_another(path, found, folder)
            if found.st_mode & stat.S_IWOTH:
                raise SecurityError(
                    f"every user of this host can write {path}",
                    hint=f"name another folder; or, if its content is still yours: chmod o-w {path}",
                )


def _claim_all(folder: Path) -> int:
    """Claims a folder and its content; returns how many files and folders it changed."""
    found = _check_folder(folder)
    return _close(str(folder), found) + _claim_in(str(folder), _owners(found))


def _owners(folder: os.stat_result) -> Collection[int]:
    """Returns the users whose files may be in a folder; only root can have put root's files there."""
    return {os.geteuid(), 0, folder.st_uid}


def _claim_in(folder: str, owners: Collection[int]) -> int:
    """Claims a folder's content. Links are neither followed here nor opened later."""
    changed, us = 0, os.geteuid()
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # an open log removed it
                continue
            if found.st_uid not in owners:
                raise _of_another(entry.path, found, folder)
            changed += _close(entry.path, found)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == us:  # lost+found is root's
                changed += _claim_in(entry.path, owners)
    return changed


def _claim_file(path: Path, owners: Collection[int]) -> int:
    found = path.lstat()
    if found.st_uid not in owners:
        raise _of_another(path, found, path.parent)
    if stat.S_ISLNK(found.st_mode):
        raise _link(path)
    return _close(str(path), found)


def _close(path: str, found: os.stat_result) -> bool:
    """Removes other users' permissions; returns whether there were any."""
    ours = found.st_uid == os.geteuid() and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
    if not ours or not found.st_mode & _OTHERS or _is_for_all(found):
        return False
    os.chmod(path, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return True


def _is_for_all(found: os.stat_result) -> bool:
    """Whether it is a shared folder of root, such as /tmp."""
    return found.st_uid == 0 and bool(found.st_mode & stat.S_ISVTX)


def _check_folder(folder: Path) -> os.stat_result:
    """Returns the status of a folder, or of the folder that a link names.
    Raises SecurityError if another user controls it."""
    us = os.geteuid()
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        if found.st_uid not in (us, 0):
            raise _of_another(folder, found, folder)
        found = folder.stat()
    if found.st_uid not in (us, 0):
        if _volume(folder).stat().st_uid != found.st_uid:
            raise _of_another(folder, found, folder)
        _warn(folder, f"{folder} belongs to user {found.st_uid}, who can read and change its files")
    elif found.st_mode & stat.S_IWOTH and (found.st_uid != us or _is_for_all(found)):
        if _volume(folder) != folder.resolve():
            raise SecurityError(
                f"every user of this host can put files into {folder}, a folder of root's",
                hint="name a folder in it that belongs to you",
            )
        _warn(folder, f"{folder} is a volume into which every user of this host can put files")
    return found


def _check_parents(folder: Path) -> None:
    """Warns if another user can put another folder in the place of this one."""
    us = os.geteuid()
    for path in dict.fromkeys((*folder.absolute().parents, *folder.resolve().parents)):
        found = path.lstat()
        shared = found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
        for_all = shared and stat.S_ISDIR(found.st_mode)  # a link's own bits mean nothing
        if found.st_uid not in (us, 0) or for_all:
            who = "every user of this host" if for_all else f"user {found.st_uid}"
            _warn(
                path, f"{who} can put another folder in the place of {folder}, by the permissions of {path}"
            )


def _volume(folder: Path) -> Path:
    """Returns the mount point of a folder's volume."""
    path = folder.resolve()
    mount = _mount_of(path)
    while path != path.parent and _mount_of(path.parent) == mount:
        path = path.parent
    return path


def _mount_of(folder: Path) -> bytes:
    fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_bytes().splitlines()
    finally:
        os.close(fd)
    return next(line for line in lines if line.startswith(b"mnt_id:"))


def _warn(path: Path, text: str) -> None:
    if path not in _warned:
        _warned.add(path)
        _log.warning(text)


def _of_another(path: str | Path, found: os.stat_result, folder: str | Path) -> SecurityError:
    us = os.geteuid()
    return SecurityError(
        f"{path} belongs to user {found.st_uid}, and this is user {us}: another user may have put it there",
        hint=f"name another folder; or, if you trust the content of this one: chown -hR {us} {folder}",
    )


def _link(path: Path) -> SecurityError:
    return SecurityError(f"{path} is a symbolic link", hint="put the file itself in its place")
