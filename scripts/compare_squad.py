"""Compare how exactly answers come back from token positions with the original's algorithm, and time the features.

    python scripts/compare_squad.py VOCABULARY SQUAD.json [QUESTIONS]

VOCABULARY: WordPiece, as load_tokenizer opens it. SQUAD.json: form 1.1. QUESTIONS: how many of the first are compared
(all); the original's part is slow. The original is the oracle of the tests, tests/support/original_squad.py of this
checkout.
"""

import collections
import pathlib
import sys
import time

from bert_jax.config.tasks import SquadOptions, TaskDataConfig
from bert_jax.tasks import squad
from bert_jax.tasks import squad as squad_windows
from bert_jax.tokenization.tokenizer import load_tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "support"))
import original_squad
from published_tokenizers import google_basic

OPTIONS = SquadOptions()


def compare(tokenizer, examples, features, index: int) -> dict[str, int]:
    """Compare one question: is its gold answer found, by offsets and by get_final_text; are the labels the same."""
    question = examples.questions[index]
    text, context = examples.contexts[question.context], features.contexts[question.context]
    gold = text[slice(*question.span)]
    ours = squad_windows.read(text, context, *squad_windows.answer_tokens(context, *question.span))
    windows = original_squad.make_windows(
        text,
        question.text,
        (gold, question.span[0]),
        lambda part: [tokenizer.tokens[i] for i in tokenizer.encode(part)],
        OPTIONS.max_length,
        OPTIONS.doc_stride,
        OPTIONS.max_query_length,
    )
    theirs = original_squad.read(
        text,
        next(window for window in windows if window.end),
        lambda part: " ".join(google_basic(part, tokenizer.lowercase)),
    )
    labels = [(window.start, window.end) for window in windows]
    same = labels == [tuple(row) for row in features.labels[features.example == index].tolist()]
    if not same or ours != gold:
        print(f"{question.id}: gold {gold!r}, ours {ours!r}, original {theirs!r}")
    return {
        "questions": 1,
        "exact by offsets": ours == gold,
        "exact by get_final_text": theirs == gold,
        "same labels": same,
    }


def main(vocabulary: str, file: str, questions: str = "0") -> None:
    tokenizer = load_tokenizer(vocabulary)
    start = time.perf_counter()
    examples = squad.load("squad_v1", TaskDataConfig(train=file), "train")
    read = time.perf_counter()
    features = squad.features(examples, tokenizer, OPTIONS)
    made = time.perf_counter()
    print(
        f"{len(examples):,} questions on {len(examples.contexts):,} contexts read in {read - start:.1f} s; "
        f"{len(features):,} windows made in {made - read:.1f} s"
    )
    counts = collections.Counter()
    for index in range(int(questions) or len(examples)):
        counts.update(compare(tokenizer, examples, features, index))
    print(dict(counts))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
