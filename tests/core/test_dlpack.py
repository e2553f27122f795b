"""Capsules of DLPack, against the readers and writers of numpy and torch, in memory of the host."""

from __future__ import annotations

import gc
import weakref

import pytest

numpy = pytest.importorskip("numpy")
dlpack = pytest.importorskip(
    "transfer.transports.core.native.dlpack", reason="the native core is not built", exc_type=ImportError
)


class Given:
    """An array as another library would give it."""

    def __init__(self, array, versioned):
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        strides = tuple(stride // self.array.itemsize for stride in self.array.strides)
        address = self.array.ctypes.data
        return dlpack.capsule(self, address, 1, 0, 2, 32, self.array.shape, strides, self.versioned)


def readers():
    yield numpy.from_dlpack
    torch = pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    yield torch.from_dlpack


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (), (7,), (2, 3, 4, 5), (0, 3)])
def test_others_read_what_is_given(versioned, shape):
    array = numpy.arange(numpy.prod(shape, dtype=int), dtype="f4").reshape(shape)
    for turned in (array, array.T):
        for read in readers():
            given = Given(turned, versioned)
            alive = weakref.ref(given)
            seen = read(given)
            del given
            assert tuple(seen.shape) == turned.shape and (numpy.asarray(seen) == turned).all()
            assert alive() is not None
            del seen
            gc.collect()
            assert alive() is None


@pytest.mark.parametrize("versioned", [False, True])
def test_an_unread_one_ends(versioned):
    given = Given(numpy.ones(5, "f4"), versioned)
    alive, capsule = weakref.ref(given), given.__dlpack__()
    del given
    assert alive() is not None
    assert dlpack.read(capsule)[1:] == (1, 0, 2, 32, (5,), (1,))
    del capsule
    assert alive() is None


def test_what_others_give_is_read():
    array = numpy.ones((2, 3), "i2")
    for options in ({}, {"max_version": (1, 0)}):
        address, *rest = dlpack.read(array.__dlpack__(**options))
        assert address == array.ctypes.data and rest == [1, 0, 0, 16, (2, 3), (3, 1)]
    torch = pytest.importorskip("torch", reason="pip install 'tensor-transfer[torch]'")
    tensor = torch.ones(4, 5, dtype=torch.bfloat16)[1:]
    address, *rest = dlpack.read(tensor.__dlpack__())
    assert address == tensor.data_ptr() and rest == [1, 0, 4, 16, (3, 5), (5, 1)]


def test_what_is_no_unread_capsule():
    capsule = Given(numpy.ones(5, "f4"), False).__dlpack__()

    class Once:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            return capsule

    numpy.from_dlpack(Once())
    with pytest.raises(ValueError, match="used_dltensor"):
        dlpack.read(capsule)
    with pytest.raises(ValueError):
        dlpack.read(5)
    with pytest.raises(ValueError, match="65 dimensions"):
        dlpack.capsule(None, 1, 1, 0, 2, 32, (1,) * 65, (1,) * 65, False)
