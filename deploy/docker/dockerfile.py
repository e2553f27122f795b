"""Reads a Dockerfile: the instructions and forms that ours uses, and no others. Pure.

`parse` gives stages of instructions; `State.after` says what an instruction makes of the image's settings.
What runs and copies is for `roots.py`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

#: what docker gives a container without a PATH of its own
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FLAGS: Mapping[str, frozenset[str]] = {
    "COPY": frozenset({"from"}),
    "HEALTHCHECK": frozenset({"interval", "timeout", "start-period", "retries"}),
}
_KNOWN = frozenset(
    {"ARG", "FROM", "RUN", "COPY", "ENV", "LABEL", "WORKDIR", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"}
    | {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
)
_VARIABLE = re.compile(r"\\\$|\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")


class DockerfileError(ValueError):
    """Something that is wrong, or not understood here. Its text begins with the line's number."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction as it stands there, on lines from `line` on; flags are its `--name=value`."""

    name: str
    text: str
    line: int
    flags: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Its arguments, from JSON or as a shell would part them."""
        listed = _listed(self)
        return shlex.split(self.text) if listed is None else listed


@dataclass(frozen=True, slots=True)
class Stage:
    """base: the name of an earlier stage, or of an image from elsewhere."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def sources(self) -> list[str]:
        """The stages that it copies from."""
        return [one.flags["from"] for one in self.instructions if "from" in one.flags]


@dataclass(frozen=True, slots=True)
class State:
    """An image's settings. arguments: ARGs, which RUN sees and the finished image does not."""

    env: Mapping[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    stop_signal: str = "SIGTERM"

    def expanded(self, text: str) -> str:
        """With variables in the place of their names. One that nobody set is empty, as docker has it."""
        return expand(text, {**self.arguments, **self.env})

    def after(self, one: Instruction, given: Mapping[str, str]) -> State:
        """The settings behind an instruction; given: build arguments. RUN and COPY change none."""
        match one.name:
            case "ARG":
                name, default = _argument(one)
                if name not in given and default is None:
                    raise DockerfileError(f"{one.line}: the argument {name} has no value")
                value = given.get(name, self.expanded(default or ""))
                return replace(self, arguments={**self.arguments, name: value})
            case "ENV":
                return replace(self, env={**self.env, **self._pairs(one)})
            case "LABEL":
                return replace(self, labels={**self.labels, **self._pairs(one)})
            case "WORKDIR":
                return replace(self, workdir=self.expanded(one.text))
            case "USER":
                return replace(self, user=self.expanded(one.text))
            case "VOLUME":
                return replace(self, volumes=(*self.volumes, *one.words()))
            case "EXPOSE":
                return replace(self, ports=(*self.ports, *map(int, one.words())))
            case "STOPSIGNAL":
                return replace(self, stop_signal=one.text)
            case "ENTRYPOINT":
                return replace(self, entrypoint=_array(one), command=())
            case "CMD":
                return replace(self, command=_array(one))
            case "HEALTHCHECK":
                return replace(self, health=_array(_checked(one)))
        return self

    def begun_as_base(self) -> State:
        """What a stage that is built on this one begins with: all but its arguments."""
        return replace(self, arguments={})

    def _pairs(self, one: Instruction) -> dict[str, str]:
        pairs = [word.partition("=") for word in shlex.split(one.text)]
        if not pairs or not all(sign for _, sign, _ in pairs):
            raise DockerfileError(f"{one.line}: {one.name} has to be NAME=VALUE")
        return {name: self.expanded(value) for name, _, value in pairs}


def parse(text: str, given: Mapping[str, str] | None = None) -> list[Stage]:
    """The stages, in their order. given: build arguments. Raises DockerfileError."""
    before = State(env={})
    found: list[tuple[str, str, list[Instruction]]] = []
    for one in _instructions(text):
        if one.name == "FROM":
            words = one.text.split()
            if len(words) != 3 or words[1].upper() != "AS":
                raise DockerfileError(f"{one.line}: FROM has to be FROM BASE AS NAME")
            name, base = words[2], before.expanded(words[0])
            if not base or any(name == other for other, _, _ in found):
                raise DockerfileError(f"{one.line}: no base, or a second stage {name}")
            found.append((name, base, []))
        elif found:
            found[-1][2].append(one)
        elif one.name == "ARG":
            before = before.after(one, given or {})
        else:
            raise DockerfileError(f"{one.line}: {one.name} stands before the first FROM")
    stages = [Stage(name, base, tuple(steps)) for name, base, steps in found]
    for place, stage in enumerate(stages):
        earlier = {one.name for one in stages[:place]}
        if wrong := set(stage.sources()) - earlier:
            raise DockerfileError(
                f"stage {stage.name} copies from {', '.join(sorted(wrong))}: no earlier stage"
            )
    return stages


def needed(stages: Sequence[Stage], targets: Sequence[str]) -> list[Stage]:
    """Those stages that the targets are made of, in their order. Raises DockerfileError."""
    by_name = {stage.name: stage for stage in stages}
    if unknown := set(targets) - set(by_name):
        raise DockerfileError(f"there is no stage {', '.join(sorted(unknown))}")
    wanted: set[str] = set()
    waiting = list(targets)
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in wanted:
            wanted.add(name)
            waiting += [by_name[name].base, *by_name[name].sources()]
    return [stage for stage in stages if stage.name in wanted]


def states(stages: Sequence[Stage], given: Mapping[str, str] | None = None) -> dict[str, State]:
    """The settings at the end of each stage. Raises DockerfileError."""
    ends: dict[str, State] = {}
    for stage in stages:
        state = ends[stage.base].begun_as_base() if stage.base in ends else State()
        for one in stage.instructions:
            state = state.after(one, given or {})
        ends[stage.name] = state
    return ends


def expand(text: str, values: Mapping[str, str]) -> str:
    """Puts values in the place of `$NAME`, `${NAME}` and `${NAME:-default}`."""

    def value(match: re.Match[str]) -> str:
        if match[0] == r"\$":
            return "$"
        return values.get(match[1] or match[2]) or match[3] or ""

    return _VARIABLE.sub(value, text)


def _instructions(text: str) -> Iterator[Instruction]:
    """Lines joined where they end with a backslash, without comments."""
    gathered, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first if gathered else number
        if line.endswith("\\"):
            gathered += line[:-1].strip() + " "
            continue
        yield _instruction(gathered + line.strip(), first)
        gathered = ""
    if gathered:
        raise DockerfileError(f"{first}: the last line goes on")


def _instruction(text: str, line: int) -> Instruction:
    word, _, rest = text.partition(" ")
    name, rest = word.upper(), rest.strip()
    if name not in _KNOWN:
        raise DockerfileError(f"{line}: {word} is not known here")
    if not rest or "<<" in rest:
        raise DockerfileError(f"{line}: {name} without an argument, or with a document in it")
    flags: dict[str, str] = {}
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        key, _, value = flag[2:].partition("=")
        if key not in _FLAGS.get(name, ()):
            raise DockerfileError(f"{line}: {name} --{key} is not known here")
        flags[key], rest = value, rest.strip()
    return Instruction(name, rest, line, flags)


def _argument(one: Instruction) -> tuple[str, str | None]:
    name, sign, default = one.text.partition("=")
    return name, "".join(shlex.split(default)) if sign else None


def _checked(one: Instruction) -> Instruction:
    """The command of a HEALTHCHECK, as if it were one of its own."""
    word, _, rest = one.text.partition(" ")
    if word != "CMD":
        raise DockerfileError(f"{one.line}: HEALTHCHECK has to be HEALTHCHECK [options] CMD [...]")
    return replace(one, text=rest.strip())


def _array(one: Instruction) -> tuple[str, ...]:
    """A command as JSON: one as text would run in a shell, which does not pass signals on."""
    listed = _listed(one)
    if not listed:
        raise DockerfileError(f'{one.line}: {one.name} has to be ["WORD", ...]')
    return tuple(listed)


def _listed(one: Instruction) -> list[str] | None:
    if not one.text.startswith("["):
        return None
    try:
        words = json.loads(one.text)
    except ValueError as error:
        raise DockerfileError(f"{one.line}: {one.text} is no JSON") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DockerfileError(f"{one.line}: {one.text} is no list of texts")
    return words
