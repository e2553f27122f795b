"""The platforms that wheels are made for, and what each is to the compiler, to Python and to installers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Platform:
    """One platform.

    name: as `make wheels PLATFORMS=` takes it. target: zig's name, with the oldest C library that is linked
    with. tag: the one that auditwheel has to grant. machine: the processor.
    """

    name: str
    target: str
    tag: str
    machine: str

    @property
    def multiarch(self) -> str:
        """The middle of a module's file name: `cpython-312-<this>.so`, where an interpreter of it looks."""
        return f"{self.machine}-linux-{'musl' if self.is_musl else 'gnu'}"

    @property
    def is_musl(self) -> bool:
        return self.tag.startswith("musllinux")


# glibc 2.17 is that of manylinux2014, the oldest that pip still knows for both processors.
PLATFORMS = {
    one.name: one
    for one in (
        Platform("manylinux-x86_64", "x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64", "x86_64"),
        Platform("manylinux-aarch64", "aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", "aarch64"),
        Platform("musllinux-x86_64", "x86_64-linux-musl", "musllinux_1_2_x86_64", "x86_64"),
        Platform("musllinux-aarch64", "aarch64-linux-musl", "musllinux_1_2_aarch64", "aarch64"),
    )
}
