"""What a disk may hold after a crash: a model of a file system that keeps less than it was given.

A sync of a file keeps what was written to it before the sync began, and its size; not its name. A sync of a
folder keeps the names in it. Of all else the model keeps any part, as `Choice` says:

- each page (4 KiB) of a file as it was after any of the writes to it since the last sync, or in sectors
  (512 bytes) of different ages if the page is torn;
- sizes, reserved room and holes of a file up to any of their changes, in order;
- creates, renames and removals of names up to any of them in order (as the journals of ext4 and XFS do), or
  any subset of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.recorder import Kind, Operation, Trace

PAGE, SECTOR = 4096, 512
_ZERO = bytes(PAGE)
_SIZES = (Kind.TRUNCATE, Kind.ALLOCATE, Kind.PUNCH)


@dataclass
class Content:
    """The bytes of a file; pages that are not there are zeros."""

    size: int = 0
    pages: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> Content:
        return Content(self.size, dict(self.pages))

    def store(self, position: int, data: bytes) -> None:
        """Writes into pages; the size stays."""
        while data:
            number, at = divmod(position, PAGE)
            part = data[: PAGE - at]
            page = self.pages.get(number, _ZERO)
            self.pages[number] = page[:at] + part + page[at + len(part) :]
            position, data = position + len(part), data[len(part) :]

    def apply(self, one: Operation) -> None:
        """All of an operation."""
        if one.kind == Kind.WRITE:
            self.store(one.a, one.data)
            self.size = max(self.size, one.a + len(one.data))
        elif one.kind == Kind.ALLOCATE:
            self.size = max(self.size, one.a + one.b)
        elif one.kind == Kind.PUNCH:
            self._zero(one.a, min(one.a + one.b, self.size))
        elif one.kind == Kind.TRUNCATE:
            if one.a < self.size:
                self._zero(one.a, self.size)
            self.size = one.a

    def _zero(self, begin: int, end: int) -> None:
        for number in [one for one in self.pages if begin < (one + 1) * PAGE and one * PAGE < end]:
            low, high = max(begin - number * PAGE, 0), min(end - number * PAGE, PAGE)
            page = self.pages[number]
            self.pages[number] = page[:low] + bytes(high - low) + page[high:]

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(self.size)
            for number, page in self.pages.items():
                left = self.size - number * PAGE
                if left > 0 and page != _ZERO:
                    file.seek(number * PAGE)
                    file.write(page[:left])


class File:
    """A file. kept: what the disk has of it. pending: what came since, with its number in the trace."""

    def __init__(self, kept: Content | None = None) -> None:
        self.kept = kept or Content()
        self.pending: list[tuple[int, Operation]] = []

    def sync(self, begun: int) -> None:
        """A sync ended that began with this operation."""
        while self.pending and self.pending[0][0] < begun:
            self.kept.apply(self.pending.pop(0)[1])


class Folder:
    """A folder; its names are the disk's."""


Node = File | Folder


@dataclass(frozen=True)
class Naming:
    """A change of names in a folder. node: what gets the name `added`; None: a name is removed."""

    number: int
    added: str = ""
    node: Node | None = None
    removed: str = ""


@dataclass(frozen=True)
class Choice:
    """What survives of that which was not synced. data, sizes, names: "all", "none" or "some". torn: pages in
    parts. journaled: names up to one of them, not any subset. share: of "some". last: the last operation is
    "lost" or "kept", whatever the rest says.
    """

    name: str
    data: str = "some"
    sizes: str = "some"
    names: str = "some"
    torn: bool = False
    journaled: bool = True
    share: float = 0.5
    last: str = ""


#: the extreme ones
EXTREMES = (
    Choice("all kept", "all", "all", "all"),
    Choice("all lost", "none", "none", "none"),
    Choice("only metadata", "none", "all", "all"),
    Choice("only names", "none", "none", "all"),
    Choice("only data", "all", "all", "none"),
    Choice("only the last lost", "all", "all", "all", last="lost"),
    Choice("only the last kept", "none", "none", "none", last="kept"),
)
#: seeded ones
RANDOM = (
    Choice("pages", sizes="all", names="all"),
    Choice("sectors", sizes="all", names="all", torn=True),
    Choice("anything in order", torn=True),
    Choice("names in any order", "all", "all", journaled=False),
    Choice("anything in any order", torn=True, journaled=False),
    Choice("little", torn=True, journaled=False, share=0.1),
    Choice("most", torn=True, journaled=False, share=0.9),
)
CHOICES = EXTREMES + RANDOM


class Disk:
    """Takes the operations of a trace one by one; `crash` writes what a crash may leave into a folder.

    start: what the disk had before. ignored: the sites of syncs that are left out. sites: of all syncs that
    were taken, and how many. Raises ValueError for what the recorder cannot follow.
    """

    def __init__(self, trace: Trace, start: dict[str, Node], ignored: frozenset[str] = frozenset()) -> None:
        self._root = trace.root
        self._ignored = ignored
        self._now = {path: _copied(node) for path, node in start.items()}
        self._names = dict(self._now)  # as the disk has them
        self._pending: list[Naming] = []
        self._nodes = {inode: self._now[path] for path, inode in trace.before.items()}
        self._paths = {inode: path for path, inode in trace.before.items()}
        self._begun: dict[tuple[int, int], tuple[int, bool]] = {}
        self._number = 0
        self.sites: dict[str, int] = {}

    def take(self, one: Operation) -> None:
        number, self._number = self._number, self._number + 1
        if one.kind == Kind.WRITE or one.kind in _SIZES:
            node = self._nodes[one.inode]
            assert isinstance(node, File)
            node.pending.append((number, one))
        elif one.kind == Kind.SYNC_BEGIN:
            self._begun[one.thread, one.inode] = number, one.site in self._ignored
            self.sites[one.site] = self.sites.get(one.site, 0) + 1
        elif one.kind == Kind.SYNC_END:
            begun, ignored = self._begun.pop((one.thread, one.inode))
            if not ignored:
                self._sync(one.inode, begun)
        elif one.kind in (Kind.CREATE, Kind.MKDIR):
            node = Folder() if one.kind == Kind.MKDIR else File()
            path = one.data.decode()
            self._nodes[one.inode], self._paths[one.inode] = node, path
            self._name(Naming(number, path, node))
        elif one.kind == Kind.RENAME:
            old, new = one.data.decode().split("\0")
            self._name(Naming(number, new, self._now[old], old))
        elif one.kind == Kind.UNLINK:
            self._name(Naming(number, removed=one.data.decode()))
        elif one.kind == Kind.REFUSED and not self._is_shared_memory(one):
            raise ValueError(f"{one.data.decode()} of {self._paths[one.inode]} cannot be followed")

    def _is_shared_memory(self, one: Operation) -> bool:
        """SQLite makes its index of the write-ahead log new when it opens the database."""
        return one.data == b"mmap" and self._paths[one.inode].endswith("-shm")

    def _name(self, naming: Naming) -> None:
        _rename(self._now, naming)
        self._pending.append(naming)

    def _sync(self, inode: int, begun: int) -> None:
        node = self._nodes[inode]
        if isinstance(node, File):
            node.sync(begun)
            return
        folder = self._paths[inode]
        kept = [one for one in self._pending if one.number < begun and _folder_of(one) == folder]
        for one in kept:
            _rename(self._names, one)
            self._pending.remove(one)

    # -- crashes -----------------------------------------------------------------------------------------

    def crash(self, choice: Choice, chance: random.Random) -> dict[str, Node]:
        """What may be there after a crash now, by path."""
        files = {id(node): node for node in self._nodes.values() if isinstance(node, File)}
        last = max(
            [number for file in files.values() for number, _ in file.pending[-1:]]
            + [one.number for one in self._pending[-1:]],
            default=-1,
        )
        names = dict(self._names)
        limit = chance.randint(0, len(self._pending))
        for at, one in enumerate(self._pending):
            kept = at < limit if choice.journaled else chance.random() < choice.share
            if _is_kept(choice, choice.names, one.number == last, kept):
                _rename(names, one)
        made: dict[int, Node] = {}
        found: dict[str, Node] = {}
        for path, node in sorted(names.items()):
            if path != self._root and path.rpartition("/")[0] not in found:
                continue  # the folder was lost, with all in it
            if isinstance(node, File) and id(node) not in made:
                made[id(node)] = File(_survivor(node, choice, chance, last))
            found[path] = made.get(id(node), node)
        return found


def _copied(node: Node) -> Node:
    return File(node.kept.copy()) if isinstance(node, File) else node


def _folder_of(naming: Naming) -> str:
    return (naming.added or naming.removed).rpartition("/")[0]


def _rename(names: dict[str, Node], naming: Naming) -> None:
    if naming.removed:
        names.pop(naming.removed, None)
    if naming.node is not None:
        names[naming.added] = naming.node


def _is_kept(choice: Choice, rule: str, is_last: bool, drawn: bool) -> bool:
    if is_last and choice.last:
        return choice.last == "kept"
    return drawn if rule == "some" else rule == "all"


def _survivor(file: File, choice: Choice, chance: random.Random, last: int) -> Content:
    content = file.kept.copy()
    pending = file.pending
    sizes = [at for at, (_, one) in enumerate(pending) if _changes_size(one)]
    limit = chance.choice([*sizes, len(pending)]) if sizes else 0
    versions: dict[tuple[int, int], int] = {}
    now = content.size  # as programs see it
    for at, (number, one) in enumerate(pending):
        sized = _is_kept(choice, choice.sizes, number == last, at < limit)
        if one.kind != Kind.WRITE:
            now = (
                one.a
                if one.kind == Kind.TRUNCATE
                else max(now, one.a + one.b if one.kind == Kind.ALLOCATE else 0)
            )
            if sized:
                content.apply(one)
            continue
        grows, now = one.a + len(one.data) > now, max(now, one.a + len(one.data))
        size = one.a + len(one.data) if sized else 0
        for position, part in _pieces(one, SECTOR if choice.torn else PAGE):
            kept = _is_kept(
                choice,
                choice.data,
                number == last,
                at < _version(pending, position, choice, chance, versions),
            )
            # What was written into room that was reserved is not there without that room.
            if kept and (grows or position + len(part) <= content.size):
                content.store(position, part)
                size = max(size, position + len(part))
        content.size = max(content.size, size)
    return content


def _changes_size(one: Operation) -> bool:
    return one.kind in _SIZES or one.kind == Kind.WRITE


def _version(
    pending: list[tuple[int, Operation]],
    position: int,
    choice: Choice,
    chance: random.Random,
    versions: dict[tuple[int, int], int],
) -> int:
    """Writes before this number are in the page, or in the sector of a torn one."""
    page = position // PAGE
    if (page, -1) not in versions:
        versions[page, -1] = (
            len(pending) if chance.random() < choice.share else chance.randint(0, len(pending))
        )
        versions[page, -2] = int(choice.torn and chance.random() < 0.5)
    if not versions[page, -2]:
        return versions[page, -1]
    sector = position // SECTOR
    if (page, sector) not in versions:
        older = chance.randint(0, versions[page, -1])
        versions[page, sector] = versions[page, -1] if chance.random() < 0.5 else older
    return versions[page, sector]


def _pieces(one: Operation, unit: int) -> Iterator[tuple[int, bytes]]:
    position, data = one.a, one.data
    while data:
        size = unit - position % unit
        yield position, data[:size]
        position, data = position + size, data[size:]


# -- folders -------------------------------------------------------------------------------------------------


def write(root: str, nodes: dict[str, Node], target: Path) -> None:
    """Makes a folder of what a disk has under `root`."""
    target.mkdir()
    for path, node in nodes.items():
        its = target / path[len(root) :].lstrip("/")
        if isinstance(node, Folder):
            its.mkdir(exist_ok=True)
        else:
            node.kept.write(its)


def read(root: Path) -> dict[str, Node]:
    """What a folder has, as if all of it were on the disk."""
    found: dict[str, Node] = {str(root): Folder()}
    for path in sorted(root.rglob("*")):
        if path.is_dir():
            found[str(path)] = Folder()
            continue
        content = Content(path.stat().st_size)
        data = path.read_bytes()
        for at in range(0, len(data), PAGE):
            if (page := data[at : at + PAGE]).strip(b"\0"):
                content.pages[at // PAGE] = page.ljust(PAGE, b"\0")
        found[str(path)] = File(content)
    return found
