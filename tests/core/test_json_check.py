"""`check_json` of both cores against a decoder: it refuses what cannot be read, and nothing else."""

from __future__ import annotations

import json
import math
import time
from threading import Thread

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from tests.sockets.conftest import core_module
from transfer.transports.core.native import check_json as native_check

DEEPEST = 20
BOTH = ("pure", "native")
#: where doubles end: the largest, the last decimal number that is rounded to it, and the next one
LARGEST = "17976931348623157" + "0" * 292
LAST, FIRST = str(2**1024 - 2**970 - 1), str(2**1024 - 2**970)


def refuses(check, text):
    try:
        check(text, DEEPEST)
    except ValueError:
        return True
    return False


def is_unreadable(text):
    """By a decoder: of JSON alone."""
    bad = []
    depth = 0

    def number(said):
        bad.append(math.isinf(float(said)))
        return 0.0

    def integer(said):
        bad.append(len(said) > 4300)
        return 0

    value = json.loads(text, parse_float=number, parse_int=integer)
    level = [value]
    while level := [one for one in level if isinstance(one, list | dict)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return any(bad) or depth > DEEPEST


@st.composite
def numbers(draw):
    """Most are near the end of the doubles, with zeros and points anywhere."""
    digits = draw(st.sampled_from([LARGEST, LAST, FIRST, "1", "0", "9", "1" + "0" * 308, LAST + "9" * 50]))
    digits = digits[: draw(st.integers(1, len(digits)))] if draw(st.booleans()) else digits
    zeros = draw(st.integers(0, 400)) if draw(st.booleans()) else 0
    point = draw(st.integers(0, len(digits)))
    whole, part = digits[:point] or "0", "0" * zeros + digits[point:]
    said = whole.lstrip("0") or "0"
    if part and draw(st.booleans()):
        said += "." + part
    if draw(st.booleans()):
        power = draw(st.one_of(st.integers(-800, 800), st.integers(300, 312), st.integers(-(10**30), 10**30)))
        plus = draw(st.sampled_from(["", "+"])) if power >= 0 else ""
        said += draw(st.sampled_from("eE")) + plus + str(power)
    return draw(st.sampled_from(["", "-"])) + said


def texts():
    value = st.one_of(
        numbers(),
        st.text().map(json.dumps),
        st.text('\\"[{]}123e', max_size=20).map(lambda text: json.dumps(text, ensure_ascii=False)),
        st.sampled_from(["null", "true", "[]", "{}", '"' + "1" * 5000 + 'e999"']),
        st.tuples(st.sampled_from(["", "-"]), st.integers(4298, 4301)).map(
            lambda pair: pair[0] + "1" * pair[1]
        ),
    )
    return st.recursive(
        value,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4).map(lambda parts: "[" + " , ".join(parts) + "]"),
            st.lists(inner, max_size=4).map(
                lambda parts: "{" + ",".join(f'"a{at}\\"":{part}' for at, part in enumerate(parts)) + "}"
            ),
            st.tuples(inner, st.integers(DEEPEST - 5, DEEPEST + 5)).map(
                lambda pair: "[" * pair[1] + pair[0] + "]" * pair[1]
            ),
        ),
        max_leaves=8,
    ).map(str.encode)


@pytest.mark.parametrize("core", BOTH)
@settings(deadline=None)
@given(text=texts())
@example(text=f"{LAST}.0".encode())
@example(text=f"{FIRST}.0".encode())
@example(text=f"0.{'0' * 308}{FIRST}e617".encode())
@example(text=b"[" * DEEPEST + b"]" * DEEPEST)
@example(text=b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1))
@example(text=b'["' + b"[" * 30 + b'\\\\",[]]')
def test_it_refuses_what_no_decoder_reads(core, text):
    refused = refuses(core_module(core).check_json, text)
    assert refused == is_unreadable(text)
    if not refused:
        msgspec.json.decode(text)  # the decoder of abtp's clients


@pytest.mark.parametrize("core", BOTH)
@given(text=st.one_of(st.binary(max_size=60), st.text('\\"[{]}1.e-+', max_size=60).map(str.encode)))
def test_text_that_is_no_json_raises_nothing_else(core, text):
    refuses(core_module(core).check_json, text)


@pytest.mark.parametrize("end", [b'"', b'"\\', b'"\\"', b"1", b"1.", b"1e", b"1e+", b"-", b"[", b"1e999"])
def test_it_ends_with_its_text(end):
    """The byte behind the text is none of it: a memory view has no NUL there."""
    whole = end + b'1"9e999'
    assert refuses(native_check, memoryview(whole)[: len(end)]) == (end == b"1e999")


def test_it_lets_others_run():
    """48 MiB that cost a decoder seconds: another thread has its turns meanwhile."""
    text = b"[" + b"1e300," * ((48 << 20) // 6) + b"1]"
    thread = Thread(target=native_check, args=(text, DEEPEST))
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0)
    assert turns > 4
