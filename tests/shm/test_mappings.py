"""What a peer announces is checked before it is mapped."""

from __future__ import annotations

import fcntl
import os

import pytest

from tests.shm.conftest import mappings
from transfer.transports.errors import ProtocolError
from transfer.transports.shm.mappings import MappedBlock, MappedSegment
from transfer.transports.shm.memory import make_memfd
from transfer.transports.shm.segments import PAGE


@pytest.fixture
def descriptor():
    """Makes descriptors of a kind, closed after the test."""
    made = []

    def make(kind, size=PAGE * 5):
        if kind == "file":
            fd = os.open("/dev/zero", os.O_RDWR)
        elif kind == "pipe":
            fd, other = os.pipe()
            made.append(other)
        elif kind == "sealed":
            fd = make_memfd(size)
        else:
            fd = os.memfd_create("transfer", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            os.ftruncate(fd, size)
            if kind == "only grow":
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
            if kind == "no writing":
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
        made.append(fd)
        return fd

    yield make
    for fd in made:
        os.close(fd)


@pytest.mark.parametrize("kind", ["file", "pipe", "unsealed", "only grow", "no writing"])
@pytest.mark.parametrize("what", ["segment", "block"])
def test_only_sealed_memory_is_mapped(core, descriptor, kind, what):
    mapped = mappings()
    with pytest.raises(ProtocolError) as caught:
        open_as(core, what, descriptor(kind))
    assert caught.value.reason == "descriptor"
    assert mappings() == mapped


@pytest.mark.parametrize("actual", [PAGE * 4, PAGE * 6, PAGE * 5 - 1, 0])
@pytest.mark.parametrize("what", ["segment", "block"])
def test_memory_of_another_length_is_refused(core, descriptor, actual, what):
    with pytest.raises(ProtocolError) as caught:
        open_as(core, what, descriptor("unsealed" if not actual else "sealed", actual))
    assert caught.value.reason == "descriptor"


def open_as(core, what, fd):
    if what == "segment":
        MappedSegment(core, fd, PAGE * 5, PAGE)
    else:
        block = MappedBlock(core, fd, PAGE * 5)  # mapped with the first look at it
        try:
            block.view(0, 1, private=False)
        finally:
            block.close()


@pytest.mark.parametrize(
    ("size", "slot"),
    [(PAGE * 5, 0), (PAGE * 5, 1), (PAGE * 5, PAGE + 1), (PAGE, PAGE), (0, PAGE), (PAGE * 5, PAGE * 3),
     (PAGE * 66, PAGE), ((1 << 64) - 1, PAGE), (PAGE * 5, 1 << 63), (PAGE + 1, PAGE)],
)  # fmt: skip
def test_a_layout_that_makes_no_sense_is_refused(core, descriptor, size, slot):
    with pytest.raises(ProtocolError) as caught:
        MappedSegment(core, descriptor("sealed"), size, slot)
    assert caught.value.reason == "descriptor"


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, 10),
        (PAGE - 1, 10),
        (PAGE + 1, 10),
        (PAGE * 5, 10),
        (PAGE, 0),
        (PAGE, PAGE + 1),
        ((1 << 64) - PAGE, 1),
    ],
)
def test_a_reference_to_no_slot_is_refused(core, descriptor, offset, length):
    segment = MappedSegment(core, descriptor("sealed"), PAGE * 5, PAGE)
    with pytest.raises(ProtocolError) as caught:
        segment.fetch(offset, length)
    assert caught.value.reason == "reference"


def test_a_slot_in_use_is_not_given_twice(core, descriptor):
    segment = MappedSegment(core, descriptor("sealed"), PAGE * 5, PAGE)
    region = segment.fetch(PAGE * 2, 100)
    with pytest.raises(ProtocolError) as caught:
        segment.fetch(PAGE * 2, 100)
    assert caught.value.reason == "reference"
    del region
    assert segment.fetch(PAGE * 2, PAGE).nbytes == PAGE


@pytest.mark.parametrize("private", [False, True])
def test_a_block_is_seen_in_its_bounds_only(core, descriptor, private):
    block = MappedBlock(core, descriptor("sealed"), PAGE * 5)
    for offset, length in [(PAGE * 5, 1), (0, PAGE * 5 + 1), (0, 0), (1 << 63, 1), (1, (1 << 64) - 1)]:
        with pytest.raises(ProtocolError) as caught:
            block.view(offset, length, private)
        assert caught.value.reason == "reference"
    assert len(block.view(PAGE * 5 - 1, 1, private)) == 1
    block.close()
    block.close()


def test_private_views_are_copies_on_write(core, descriptor):
    fd = descriptor("sealed")
    block = MappedBlock(core, fd, PAGE * 5)
    shared, one, other = (block.view(0, 10, private) for private in (False, True, True))
    one[:3] = b"one"
    assert bytes(shared[:3]) == bytes(other[:3]) == os.pread(fd, 3, 0) == bytes(3)
    shared[:3] = b"all"
    assert bytes(other[:3]) == b"all" and bytes(one[:3]) == b"one"
    block.close()
    assert bytes(one[:3]) == b"one"
