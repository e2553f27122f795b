"""What a build may copy: a folder, without what its `.dockerignore` leaves out."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules of a `.dockerignore`: of those that fit a path or a folder around it, the last one counts."""

    rules: tuple[tuple[re.Pattern[str], bool], ...]

    @classmethod
    def read(cls, text: str) -> Ignored:
        """From the file's text."""
        lines = [line.strip() for line in text.splitlines()]
        rules = []
        for line in lines:
            if line and not line.startswith("#"):
                kept = line.startswith("!")
                rules.append((_pattern(line.removeprefix("!").strip("/")), not kept))
        return cls(tuple(rules))

    def leaves_out(self, path: str) -> bool:
        """Whether this path, relative to the folder, does not go to the build."""
        out = False
        parts = path.split("/")
        around = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        for pattern, ignored in self.rules:
            if any(pattern.fullmatch(one) for one in around):
                out = ignored
        return out


@dataclass(frozen=True, slots=True)
class Context:
    """A folder to build from."""

    folder: Path
    ignored: Ignored

    @classmethod
    def of(cls, folder: Path) -> Context:
        """With the folder's own `.dockerignore`, if it has one."""
        file = folder / ".dockerignore"
        return cls(folder, Ignored.read(file.read_text() if file.is_file() else ""))

    def files(self, source: str) -> Iterator[tuple[Path, str]]:
        """(file, its path below `source`) of each file; "" if `source` is a file. Raises FileNotFoundError
        if nothing is there, or all of it is left out."""
        source = source.strip("/").removeprefix("./")
        found = False
        for file in self._below(source):
            path = file.relative_to(self.folder).as_posix()
            if not self.ignored.leaves_out(path):
                found = True
                yield file, path.removeprefix(source).lstrip("/")
        if not found:
            raise FileNotFoundError(f"{source}: nothing there for the build")

    def copy(self, sources: list[str], into: Path, *, folder: bool) -> None:
        """Copies files and what folders have. folder: `into` is one, else the name of the one file."""
        for source in sources:
            for file, below in self.files(source):
                target = into / (below or file.name) if folder or below else into
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)
                os.chown(target, 0, 0)

    def _below(self, source: str) -> Iterator[Path]:
        start = self.folder / source
        if start.is_file():
            yield start
        for place, folders, names in os.walk(start):
            folders.sort()
            yield from (Path(place) / name for name in sorted(names))


def _pattern(text: str) -> re.Pattern[str]:
    """A rule: `*` and `?` stay within a name, `**` does not, `[...]` is one of these characters."""
    parts = []
    for piece in re.findall(r"\*\*/?|\*|\?|\[[^\]]*\]|[^*?\[]+", text):
        if piece.startswith("**"):
            parts.append("(?:.*/)?" if piece.endswith("/") else ".*")
        elif piece.startswith("["):
            parts.append(piece)
        else:
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(piece) or re.escape(piece))
    return re.compile("".join(parts))
