"""Estimates how hard a secret is to guess; secrets that people make up count for little. Pure.

A program that answers a client instead of its peer gets one proof of the token. From then on it may guess
offline, as fast as its machines can. So a token has to be hard to guess.
"""

from __future__ import annotations

import re

#: bits that a secret needs: at 10^12 guesses a second half of the space takes some 19,000 years
LEAST_BITS = 80.0

#: bits of a letter, digit or sign that the text before it does not predict
_LETTER, _DIGIT, _SIGN = 4.7, 3.3, 5.0
#: bits of letters in one case that may be a word: a short one, any, and each letter beyond the eighth
_SHORT_WORD, _WORD, _MORE = 5.0, 11.0, 1.5
#: bits of a predictable character: a copy of earlier text, the next of a sequence, a repeated sign
_FORETOLD = 0.2
#: letters of a copy that count as one
_COPY = 3

#: what random generators make: at least this many letters, and bits for each
_HEX, _HEX_LENGTH, _HEX_BITS = re.compile(r"[0-9a-f-]+|[0-9A-F-]+"), 32, 4.0
_BASE64, _BASE64_LENGTH, _BASE64_BITS = re.compile(r"[A-Za-z0-9+/_-]+={0,2}"), 22, 5.7

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertz", "azerty", "1qaz2wsx3edc4rfv5tgb")
_LEET = str.maketrans("@431!0$57", "aaeiiosst")
#: common parts of secrets that people make up
_COMMON = re.compile(
    "password|passwort|passwd|secret|geheim|token|admin|root|login|welcome|letmein|changeme|change|default|"
    "example|test|transfer|broker|master|monkey|dragon|iloveyou|sunshine|princess|football|server|client|"
    "shared|private|public|please|hello|world|user|guest|demo|staging|19[0-9][0-9]|20[0-9][0-9]"
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_]+")
#: pairs of letters that make up a third of English, and a twentieth of random text
_PAIRS = re.compile(
    "(?=th|he|in|er|an|re|nd|at|on|nt|ha|es|st|en|ed|to|it|ou|ea|hi|is|or|ti|as|te|et|ng|of|al|de|se|le|sa|si|ar|"
    "ve|ra|ld|ur|ro)"
)


def is_strong(secret: str) -> bool:
    """Whether it is as hard to guess as a token has to be."""
    return bits_of(secret) >= LEAST_BITS


def bits_of(secret: str) -> float:
    """An estimate of its entropy in bits, which is rather too low than too high."""
    foretold = _foretold(secret)
    fresh = len(secret.replace("-", "")) - len(foretold)
    if len(foretold) * 3 <= len(secret):  # else it is a sequence or a copy
        if _HEX.fullmatch(secret) and len(secret.replace("-", "")) >= _HEX_LENGTH:
            return _HEX_BITS * fresh
        if len(secret) >= _BASE64_LENGTH and _BASE64.fullmatch(secret) and _is_random(secret):
            return _BASE64_BITS * fresh
    return _bits_of_words(secret, foretold)


def _is_random(secret: str) -> bool:
    """Letters of both cases, neither in long runs nor in the pairs of a language."""
    if not (re.search("[A-Z]", secret) and re.search("[a-z]", secret)):
        return False
    pairs = len(_PAIRS.findall(secret.lower()))
    in_runs = sum(len(run) for run in _WORDS.findall(secret) if len(run) > 4)
    return pairs * 4 < len(secret) and in_runs * 3 < len(secret) * 2


def _bits_of_words(secret: str, foretold: set[int]) -> float:
    """Bits of a text that may consist of words."""
    rest = "".join(" " if at in foretold else letter for at, letter in enumerate(secret))
    bits = _FORETOLD * len(foretold) + sum(_bits_of_word(len(word)) for word in _WORDS.findall(rest))
    others = _WORDS.sub("", rest).replace(" ", "")
    signs = [letter for letter in others if not letter.isdecimal()]
    bits += _SIGN * len(set(signs)) + _FORETOLD * (len(signs) - len(set(signs)))
    return bits + _DIGIT * (len(others) - len(signs))


def _bits_of_word(length: int) -> float:
    if length <= 3:
        return min(_LETTER * length, _SHORT_WORD)
    return _WORD + _MORE * max(0, length - 8)


def _foretold(secret: str) -> set[int]:
    """The positions of predictable characters."""
    low = secret.lower()
    found: set[int] = set()
    for match in (*_COMMON.finditer(low.translate(_LEET)), *_COMMON.finditer(low)):
        found |= set(range(match.start() + 1, match.end()))
    seen: set[str] = set()
    for at in range(_COPY - 1, len(low)):
        three = low[at - _COPY + 1 : at + 1]
        before, middle, here = map(ord, three)
        steps = here - middle == middle - before and abs(here - middle) <= 1
        if steps or any(three in row or three[::-1] in row for row in _ROWS):
            found.add(at)
        if three in seen:
            found |= set(range(at - _COPY + 1, at + 1))
        seen.add(three)
    return found
