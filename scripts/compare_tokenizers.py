"""Print where our WordPiece reads a text differently from Google's published algorithm and from transformers.

    python scripts/compare_tokenizers.py TEXT.txt.gz UNCASED_VOCAB.txt CASED_VOCAB.txt --peer=PYTHON

PYTHON is the interpreter of an environment with transformers; without it only Google's algorithm is compared. The first
10 MB of TEXT are read, and the difficult Unicode of tests/support/difficult_text.py. A quarter of an hour on two cores.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator

from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "oracles")]
import difficult_text  # noqa: E402
import make_tokenizer_oracle as oracle  # noqa: E402
from published_tokenizers import google  # noqa: E402


def readings(kind: str, peer: str, vocabulary: str, lowercase: bool, texts: list[str]) -> list[list[int]]:
    """Ids of each text as `kind` ("google", "fast", "legacy") reads it."""
    if kind == "google":
        ids = {token: i for i, token in enumerate(oracle.read_tokens(vocabulary))}
        return [[ids[piece] for piece in google(text, ids.keys(), lowercase)] for text in texts]
    command = [
        peer,
        str(TESTS / "oracles" / "make_tokenizer_oracle.py"),
        "encode",
        kind,
        vocabulary,
        str(lowercase).lower(),
    ]
    given = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{peer} failed: {done.stderr.strip().splitlines()[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(
    kinds, peer: str, vocabulary: str, lowercase: bool, texts: list[str]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """(kind, texts that differ, words of those that differ when they stand alone) for each of `kinds`."""
    encode = Tokenizer(WordPiece(oracle.read_tokens(vocabulary), lowercase)).encode_batch
    ours = encode(texts)
    for kind in kinds:
        theirs = readings(kind, peer, vocabulary, lowercase, texts)
        differing = [text for text, a, b in zip(texts, ours, theirs, strict=True) if a != b]
        words = [word for text in differing for word in text.split()]
        alone = (
            zip(words, encode(words), readings(kind, peer, vocabulary, lowercase, words), strict=True) if words else ()
        )
        yield kind, differing, [word for word, a, b in alone if a != b]


def main(text: str, vocabularies: dict[str, str], peer: str) -> None:
    kinds = ("google", *(oracle.KINDS if peer else ()))
    lines = oracle.read_lines(text)
    print(f"{text}: {len(lines):,} lines, {sum(len(line.split()) for line in lines):,} words")
    for casing, vocabulary in vocabularies.items():
        for kind, differing, words in compare(kinds, peer, vocabulary, casing == "uncased", lines):
            known = (
                []
                if kind == "google"
                else [difficult_text.reasons(line, kind, casing == "uncased") for line in differing]
            )
            why = Counter(reason for reasons in known for reason in reasons or ["NO KNOWN REASON"])
            print(
                f"{casing:8} {kind:7} {len(differing):>3} lines and {len(words):>3} words differ"
                + "".join(f"\n{'':17}{count} × {reason}" for reason, count in why.items())
            )
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write("".join(f"{token}\n" for token in difficult_text.vocabulary()))
        file.flush()
        for casing in vocabularies:
            for kind, differing, _ in compare(kinds, peer, file.name, casing == "uncased", difficult_text.texts()):
                groups = [name for name, group in difficult_text.TEXTS.items() if not {*group}.isdisjoint(differing)]
                print(
                    f"difficult text, {casing}, {kind}: {len(differing)} of {len(difficult_text.texts())} differ"
                    + "".join(f"\n{'':17}{name}" for name in groups)
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("text", "uncased", "cased"):
        parser.add_argument(name)
    parser.add_argument("--peer", default="")
    given = parser.parse_args()
    main(given.text, {"uncased": given.uncased, "cased": given.cased}, given.peer)
