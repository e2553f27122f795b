"""Writes archives whose bytes depend on their content alone: no times, users or orders of this machine."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

#: a zip file knows no earlier time
_ZIP_EPOCH = 315532800


def rewrite_sdist(path: Path, epoch: int) -> None:
    """Writes a source distribution again. epoch: the time of all files, in seconds since 1970."""
    with tarfile.open(path) as archive:
        entries = sorted(archive.getmembers(), key=lambda entry: entry.name)
        contents = [(entry, archive.extractfile(entry)) for entry in entries]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
            for entry, content in contents:
                entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
                entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
                entry.pax_headers = {}
                made.addfile(entry, content)
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(packed.getvalue())


def rewrite_wheel(path: Path, epoch: int, added: Mapping[str, bytes]) -> None:
    """Writes a wheel again, with more files below its `.dist-info`, and a RECORD of all."""
    with zipfile.ZipFile(path) as archive:
        contents = {one.filename: archive.read(one) for one in archive.infolist() if not one.is_dir()}
    (record,) = (name for name in contents if name.endswith(".dist-info/RECORD"))
    folder = record.rpartition("/")[0]
    contents |= {f"{folder}/{name}": data for name, data in added.items()}
    # The metadata comes last, near the file's directory: an installer reads both at once over a network.
    names = sorted(contents.keys() - {record}, key=lambda name: (name.startswith(f"{folder}/"), name))
    contents[record] = _record(names, contents, record)
    when = time.gmtime(max(epoch, _ZIP_EPOCH))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for name in [*names, record]:
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3  # Unix, whose modes follow
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            made.writestr(entry, contents[name])


def _record(names: list[str], contents: Mapping[str, bytes], record: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name in names:
        digest = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(contents[name])])
    rows.writerow([record, "", ""])
    return text.getvalue().encode()


def sha256_sums(folder: Path) -> str:
    """Returns the text of SHA256SUMS for the archives in a folder, as `sha256sum --check` reads it."""
    files = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
