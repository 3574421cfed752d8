"""Byte-level BPE as GPT-2 published it, in plain Python: slow, and independent of the library that does the work."""

import re

PART = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
"""GPT-2's expression with Python's classes; for letters and digits that Unicode calls L and Nd they are the same."""


def byte_characters() -> dict[int, str]:
    """The printable character that each byte is written as (bytes_to_unicode of the published encoder.py)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


CHARACTERS = byte_characters()


def pieces(text: str, merges: list[tuple[str, str]]) -> list[str]:
    """The pieces of a text that no space precedes."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    found = []
    for part in PART.findall(text):
        symbols = [CHARACTERS[byte] for byte in part.encode()]
        while len(symbols) > 1:
            pairs = list(zip(symbols, symbols[1:]))
            best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            merged, i = [], 0
            while i < len(symbols):
                if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == best:
                    merged, i = [*merged, "".join(best)], i + 2
                else:
                    merged, i = [*merged, symbols[i]], i + 1
            symbols = merged
        found += symbols
    return found
