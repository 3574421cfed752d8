"""Writes tokenizer_oracle.json: the ids that the BERT tokenizers of transformers give for difficult and real text.

    python -m venv oracle && oracle/bin/pip install transformers==5.23.0
    oracle/bin/python tests/oracles/make_tokenizer_oracle.py WIKI.txt.gz UNCASED_VOCAB.txt CASED_VOCAB.txt

transformers has two of them: `fast`, BertTokenizer, made of parts of the `tokenizers` library, which everybody gets,
and `legacy`, BertTokenizerLegacy, Google's published Python carried on. Of the difficult text the file keeps the ids,
of the first 10 MB of real text a hash of the ids of each thousand lines. Lines that `difficult_text.reasons` explains
are left out of the hashes, so that the rest must agree to the last id.

`scripts/compare_tokenizers.py` runs this file as well, with `encode KIND VOCAB LOWERCASE`: JSON texts, one a line, on
its standard input, JSON lists of ids on its output.
"""

import gzip
import hashlib
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import difficult_text

PATH = pathlib.Path(__file__).with_name("tokenizer_oracle.json")
KINDS = ("fast", "legacy")
BLOCK = 1_000
MEGABYTES = 10


def encoder(kind: str, vocabulary: str, lowercase: bool):
    """Function from a list of texts to lists of ids, without [CLS] and [SEP]; special names in a text are text."""
    if kind == "fast":
        from transformers import BertTokenizer

        tokenizer = BertTokenizer(
            vocab={token: i for i, token in enumerate(read_tokens(vocabulary))}, do_lower_case=lowercase
        )
    else:
        from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

        tokenizer = BertTokenizerLegacy(vocabulary, do_lower_case=lowercase)
    return lambda texts: [tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts]


def block_hashes(rows: list[list[int]]) -> list[str]:
    """16 hexadecimal digits for each BLOCK lists of ids."""
    blocks = [json.dumps(rows[i : i + BLOCK]).encode() for i in range(0, len(rows), BLOCK)]
    return [hashlib.sha256(block).hexdigest()[:16] for block in blocks]


def read_tokens(vocabulary: str) -> list[str]:
    return pathlib.Path(vocabulary).read_text(encoding="utf-8").split("\n")[:-1]


def read_lines(path: str) -> list[str]:
    """The lines of the first 10 MB of a gzip file, blank ones left out; the last, cut one too."""
    with gzip.open(path) as file:
        return [line for line in file.read(MEGABYTES * 1_000_000).decode("utf-8", "ignore").split("\n")[:-1] if line]


def main(wiki: str, uncased: str, cased: str) -> None:
    lines = read_lines(wiki)
    result = {"characters": difficult_text.vocabulary(), "difficult": {}, "blocks": {}}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write("".join(f"{token}\n" for token in result["characters"]))
        file.flush()
        for lowercase in (True, False):
            for kind in KINDS:
                name = f"{kind} {'uncased' if lowercase else 'cased'}"
                result["difficult"][name] = encoder(kind, file.name, lowercase)(difficult_text.texts())
                plain = [line for line in lines if not difficult_text.reasons(line, kind, lowercase)]
                result["blocks"][name] = block_hashes(encoder(kind, uncased if lowercase else cased, lowercase)(plain))
                print(name, f"{len(plain):,} of {len(lines):,} lines")
    PATH.write_text(json.dumps(result, ensure_ascii=True) + "\n")
    print(f"{PATH.name}: {PATH.stat().st_size:,} bytes")


def serve(kind: str, vocabulary: str, lowercase: str) -> None:
    texts = [json.loads(line) for line in sys.stdin]
    for ids in encoder(kind, vocabulary, lowercase == "true")(texts):
        print(json.dumps(ids))


if __name__ == "__main__":
    if sys.argv[1:2] == ["encode"]:
        serve(*sys.argv[2:])
    elif len(sys.argv) == 4:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
