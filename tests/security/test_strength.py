"""What can be guessed is refused as a token; what a random generator made is taken."""

from __future__ import annotations

import random
import string
import uuid

import pytest

from transfer.transports.errors import SecurityError
from transfer.transports.security.settings import Security, tokens_of
from transfer.transports.security.strength import bits_of, is_strong

WEAK = (
    "", "short", "password", "P@ssw0rd-P@ssw0rd-2024!", "password123password123password123",
    "a" * 64, "ab" * 40, "deadbeef" * 8, "0123456789abcdef" * 4, "1234567890" * 5, string.ascii_letters,
    "qwertyuiopasdfghjklzxcvbnm", "00000000-0000-0000-0000-000000000000", "a token that both sides know",
    "a-shared-secret-of-the-test-4711", "transfer-broker-secret-token-2026", "CorrectHorseBatteryStaple",
    "CorrectHorseBatteryStaple1", "correct horse battery staple", "Tr0ub4dor&3", "Tr0ub4dor3Horse2Battery9",
    "the quick brown fox jumps over the lazy dog", "My dog Rex was born on 12 May 2011!",
)  # fmt: skip


@pytest.mark.parametrize("secret", WEAK)
def test_what_people_make_up_is_refused(secret):
    assert not is_strong(secret)
    for make in (lambda: Security(token=secret), lambda: tokens_of(secret, "the file")):
        if secret:
            with pytest.raises(SecurityError, match="openssl rand -hex 32"):
                make()


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("hex 32", 10),
        ("base64 22", 20),
        ("base64 43", 0),
        ("hex 64", 0),
        ("alphanumeric 48", 0),
        ("uuid", 10),
    ],
)
def test_what_a_generator_makes_is_taken(kind, most):
    """most: of 2000, those that look like words or rows by chance."""
    rng = random.Random(7)
    base64 = string.ascii_letters + string.digits + "-_"
    name, _, length = kind.partition(" ")
    letters = {"hex": "0123456789abcdef", "base64": base64, "alphanumeric": base64[:-2], "uuid": ""}[name]

    def made() -> str:
        if not letters:
            return str(uuid.UUID(int=rng.getrandbits(128), version=4))
        return "".join(rng.choices(letters, k=int(length)))

    assert sum(not is_strong(made()) for _ in range(2000)) <= most


def test_long_passphrases_are_taken():
    assert is_strong("correct-horse-battery-staple-umbrella-quartz-violin-harvest")
    assert is_strong("Zealous ombre kiwi trapezoid gully fiddling plumage unbent.")


def test_a_copy_is_worth_little():
    rng = random.Random(3)
    for _ in range(200):
        secret = "".join(rng.choices(string.hexdigits[:16], k=40))
        assert bits_of(secret + secret) < 1.3 * bits_of(secret)
