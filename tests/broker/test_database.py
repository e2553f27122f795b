"""The database: transactions, versions, damage that is told and left as it is."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from transfer.broker.storage.database import APPLICATION, FORMAT, Database, row_check
from transfer.transports.errors import (
    Closed,
    InternalError,
    LogDamaged,
    LogFull,
    LogInUse,
    NotSupported,
    StateError,
    UsageError,
)

SCHEMA = ["CREATE TABLE words (word TEXT PRIMARY KEY, length INTEGER NOT NULL)"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "broker.db"


@pytest.fixture
def database(path):
    found = Database(path)
    found.prepare("words", SCHEMA)
    yield found
    found.close()


def put(database, *words):
    with database.transaction() as connection:
        connection.executemany("INSERT INTO words VALUES (?, ?)", [(word, len(word)) for word in words])


def words(database):
    return [row[0] for row in database.query("SELECT word FROM words ORDER BY word")]


def test_what_was_committed_is_there_when_it_is_opened_again(path, database):
    put(database, "one", "three")
    database.close()
    again = Database(path)
    again.prepare("words", SCHEMA)
    assert words(again) == ["one", "three"]
    again.close()


def test_it_is_set_to_keep_what_it_promises(database):
    pragmas = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "user_version": FORMAT,
        "application_id": APPLICATION,
        "busy_timeout": 5000,
    }
    assert {name: database.query(f"PRAGMA {name}")[0][0] for name in pragmas} == pragmas


def test_a_block_that_raises_changes_nothing(database):
    with pytest.raises(ZeroDivisionError):
        with database.transaction() as connection:
            connection.execute("INSERT INTO words VALUES ('one', 3)")
            _ = 1 / 0
    put(database, "two")
    assert words(database) == ["two"]


def test_a_broken_rule_of_a_table_is_the_callers_to_read(database):
    put(database, "one")
    with pytest.raises(sqlite3.IntegrityError):
        put(database, "two", "one")
    assert words(database) == ["one"]


def test_no_transaction_inside_another(database):
    with database.transaction() as connection:
        connection.execute("INSERT INTO words VALUES ('one', 3)")
        with pytest.raises(StateError):
            with database.transaction():
                pass
    assert words(database) == ["one"]


def test_a_wrong_statement_is_our_mistake(database):
    with pytest.raises(InternalError, match="no such table"):
        database.query("SELECT * FROM missing")


def test_threads_take_turns(database):
    def work(name):
        for number in range(5):
            put(database, f"{name}{number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(words(database)) == 20


def test_closing_twice_is_fine_and_using_it_then_is_not(database):
    database.close()
    database.close()
    with pytest.raises(Closed):
        words(database)
    with pytest.raises(Closed):
        put(database, "one")
    with pytest.raises(Closed):
        database.check()


# --- versions -------------------------------------------------------------------------------


def test_a_later_version_of_a_store_runs_its_new_statements_only(path, database):
    put(database, "one")
    later = [*SCHEMA, "ALTER TABLE words ADD COLUMN language TEXT NOT NULL DEFAULT 'en'"]
    database.prepare("words", later)
    database.prepare("words", later)
    assert database.query("SELECT * FROM words") == [("one", 3, "en")]
    with pytest.raises(NotSupported, match="version 2 of 'words'"):
        database.prepare("words", SCHEMA)


def test_a_version_whose_statements_fail_leaves_the_older_one(database):
    wrong = [*SCHEMA, "CREATE TABLE more (x)", "CREATE TABLE words (x)"]
    with pytest.raises(InternalError, match="already exists"):
        database.prepare("words", wrong)
    assert database.query("SELECT name FROM sqlite_schema WHERE name = 'more'") == []
    database.prepare("words", [*SCHEMA, "CREATE TABLE more (x)"])
    assert database.query("SELECT count(*) FROM more") == [(0,)]


def test_a_file_of_a_later_format_is_refused_and_left(path, database):
    database.query(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    before = path.read_bytes()
    with pytest.raises(NotSupported, match=f"format {FORMAT + 1}"):
        Database(path)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_left(tmp_path):
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match="another program"):
        Database(path)
    assert path.read_bytes() == before


# --- damage ---------------------------------------------------------------------------------


def everything(folder):
    """What is kept: SQLite leaves shared memory and an empty write-ahead log behind when it only
    looked."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}
    return {name: content for name, content in files.items() if content}


@pytest.mark.parametrize(
    "content",
    [b"no database at all" * 100, b"SQLite format 3\0", os.urandom(8192)],
    ids=["text", "a mark", "noise"],
)
def test_a_file_that_is_no_database_is_told_and_left(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LogDamaged, match=str(path)) as caught:
        Database(path)
    assert "backup" in caught.value.hint
    assert everything(path.parent) == {path.name: content}


def test_an_empty_file_is_a_new_database(path):
    path.parent.mkdir()
    path.touch()
    database = Database(path)
    assert database.check() == []
    database.close()


def test_a_broken_page_is_told_and_left(path, database):
    put(database, *(f"word{number:04d}" for number in range(2000)))
    assert database.check() == [] == database.check(full=False)
    database.close()
    content = bytearray(path.read_bytes())
    content[5 * 4096 : 5 * 4096 + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(LogDamaged, match="broken"):
        Database(path)
    assert everything(path.parent) == {path.name: bytes(content)}


def test_damage_beneath_an_open_database_is_told(path, database):
    put(database, *(f"word{number:04d}" for number in range(2000)))
    database.query("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    for page in range(3, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    database.query("PRAGMA shrink_memory")
    assert database.check()
    with pytest.raises(LogDamaged):
        database.query("SELECT sum(length) FROM words")


DIES = """
import os, signal, sys
from transfer.broker.storage.database import Database
database = Database(sys.argv[1])
database.prepare("words", ["CREATE TABLE words (word TEXT PRIMARY KEY, length INTEGER NOT NULL)"])
with database.transaction() as connection:
    connection.executemany("INSERT INTO words VALUES (?, 1)", [(f"w{number}",) for number in range(1999)])
database.query("PRAGMA wal_checkpoint(TRUNCATE)")
with database.transaction() as connection:
    connection.execute("INSERT INTO words VALUES ('late', 1)")
with database.transaction() as connection:
    connection.execute("INSERT INTO words VALUES ('uncommitted', 1)")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(path):
    """A file whose process was killed in a transaction; what it committed last is in the write-ahead
    log."""
    done = subprocess.run([sys.executable, "-c", DIES, str(path)], timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.with_name("broker.db-wal").stat().st_size > 4096
    return path


def test_a_killed_process_leaves_what_it_committed(killed):
    database = Database(killed)
    database.prepare("words", SCHEMA)
    assert len(words(database)) == 2000
    assert "late" in words(database) and "uncommitted" not in words(database)
    assert database.check() == []
    database.close()


def test_a_damaged_file_keeps_its_write_ahead_log(killed):
    content = bytearray(killed.read_bytes())
    for page in range(3, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    killed.write_bytes(content)
    before = everything(killed.parent)
    with pytest.raises(LogDamaged):
        Database(killed)
    assert everything(killed.parent) == before


# --- others, and the disk -------------------------------------------------------------------


def test_a_file_that_is_locked_elsewhere_is_told(path, database, monkeypatch):
    monkeypatch.setattr("transfer.broker.storage.database.BUSY", 0.01)
    database.query("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogInUse, match="locked"):
        put(database, "one")
    other.execute("ROLLBACK")
    other.close()
    put(database, "one")
    assert words(database) == ["one"]


def test_a_full_disk_is_told_and_nothing_is_lost(database):
    put(database, "one")
    pages = database.query("PRAGMA page_count")[0][0]
    database.query(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LogFull):
        put(database, *("x" * 500 + str(number) for number in range(100)))
    database.query(f"PRAGMA max_page_count = {pages + 1000}")
    put(database, "two")
    assert words(database) == ["one", "two"]


def test_a_row_check_tells_values_and_types_apart():
    rows = [
        (),
        (1,),
        ("1",),
        (1.0,),
        (None,),
        ("",),
        (b"1",),
        ("1", ""),
        ("", "1"),
        ("1\0",),
        ("a", "b"),
        ("a\0b",),
    ]
    assert len({row_check(*row) for row in rows}) == len(rows)
    assert row_check("é", 1, None) == row_check("é", 1, None)


def test_a_crash_while_the_file_was_made_is_taken_back(tmp_path):
    """It has no write-ahead log then, but a journal, and one who only reads cannot take that back."""
    making = sqlite3.connect(tmp_path / "making.db", isolation_level=None)
    making.execute("PRAGMA cache_size = 1")
    making.execute("BEGIN IMMEDIATE")
    making.execute("CREATE TABLE half (value)")
    making.executemany("INSERT INTO half VALUES (?)", [(bytes(4000),)] * 20)
    for suffix in ("", "-journal"):
        shutil.copy(tmp_path / f"making.db{suffix}", tmp_path / f"state.db{suffix}")
    making.close()
    assert (tmp_path / "state.db-journal").stat().st_size
    for _ in range(2):
        Database(tmp_path / "state.db").close()
