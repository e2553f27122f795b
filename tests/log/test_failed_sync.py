"""A sync fails, the log is opened again, and then the power is cut: what was acknowledged is there."""

from __future__ import annotations

import pytest

from tests.log.page_cache import PageCache
from transfer.log import Log
from transfer.log.segment_files import INDEX, SUFFIX
from transfer.transports.errors import InternalError

SMALL = 1 << 16


@pytest.fixture
def cache(monkeypatch):
    return PageCache(monkeypatch)


def messages(folder):
    with Log(folder, segment_bytes=SMALL) as log:
        assert log.verify().whole and not log.damage
        found = []
        while more := log.read("t", len(found)):
            found += [(bytes(one.body), None if one.blob is None else bytes(one.blob)) for one in more]
        return found


@pytest.mark.parametrize("blob", [None, b"blob" * 10_000])
@pytest.mark.parametrize("closed", [False, True])
def test_what_is_acknowledged_behind_a_failed_sync_survives_a_power_cut(tmp_path, cache, blob, closed):
    log = Log(tmp_path, segment_bytes=SMALL)
    expected = []
    for number in range(5):
        expected.append((b"%d" % number * 100, b"%d" % number * 9000))
        log.commit(log.append("t", expected[-1][0], blob=expected[-1][1])[0])
    expected.append((b"doubtful" * 1000, blob))
    log.append("t", expected[-1][0], blob=blob)
    cache.fails = True
    with pytest.raises(InternalError):
        log.commit()
    log.close()
    log = Log(tmp_path, segment_bytes=SMALL)
    assert log.range("t")[1] == 6
    if closed:  # what a clean end calls synced was written again before
        log.close()
        log = Log(tmp_path, segment_bytes=SMALL)
    for number in range(5):
        expected.append((b"later %d" % number, None))
        log.commit(log.append("t", expected[-1][0])[0])
    cache.cut_power(tmp_path)
    log.close()
    cache.cut_power(tmp_path)
    for path in tmp_path.glob(f"*{INDEX}"):
        path.unlink()
    assert messages(tmp_path) == expected


def test_a_segment_that_could_not_be_begun_is_written_again(tmp_path, cache):
    log = Log(tmp_path, segment_bytes=SMALL)
    for number in range(40):
        log.put(b"key %d" % number, b"value" * 50)
    log.commit()
    while log.append("t", b"before" * 100) and len(list(tmp_path.glob(f"*{SUFFIX}"))) == 1:
        log.commit()
        if log._journal.fits(700):
            continue
        real = log._journal._begin

        def begin(*arguments, real=real):
            cache.fails = True
            real(*arguments)

        log._journal._begin = begin
        with pytest.raises(InternalError):
            log.append("t", b"does not fit" * 100)
        break
    log.close()
    log = Log(tmp_path, segment_bytes=SMALL)
    end = log.range("t")[1]
    log.commit(log.append("t", b"after")[0])
    cache.cut_power(tmp_path)
    log.close()
    cache.cut_power(tmp_path)
    found = messages(tmp_path)
    assert len(found) == end + 1 and found[-1] == (b"after", None)
    with Log(tmp_path, segment_bytes=SMALL) as log:
        assert log.get(b"key 39") == b"value" * 50


def test_a_blob_whose_early_sync_failed_is_not_acknowledged(tmp_path, cache):
    log = Log(tmp_path, segment_bytes=SMALL)
    writer = log.blob("t", 100_000)
    writer.write(b"b" * 100_000)
    cache.fails = True
    with pytest.raises(InternalError):
        writer.sync()
    sequence, _ = writer.commit(b"body")
    with pytest.raises(InternalError, match="failed"):
        log.commit(sequence)
    log.close()
