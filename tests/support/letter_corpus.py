"""Documents of random letters, prepared with a vocabulary of letters."""

import gzip
import random
import string

from bert_jax.config import PrepareConfig
from bert_jax.data.preparation import prepare

LETTERS = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase), "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


def random_documents(count, seed=0):
    """Lists of lines; some documents are longer than a block of the tests, some sentences too."""
    rng = random.Random(seed)

    def sentence():
        words = (
            "".join(rng.choices(string.ascii_lowercase, k=rng.randrange(1, 8))) for _ in range(rng.randrange(1, 12))
        )
        return " ".join(words)

    return [[sentence() for _ in range(rng.choice((1, 2, 5, 5, 5, 60)))] for _ in range(count)]


def write_corpus(path, documents):
    text = "\n\n".join("\n".join(lines) for lines in documents) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def run(input, vocab, output, **options):
    return prepare.run_prepare(
        PrepareConfig(
            input=str(input), vocab=vocab, output=str(output), **{"sentences": "lines", "workers": 1, **options}
        )
    )


def contents(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }
