"""What is wrong with a token store, or with the examples that a configuration makes of it, before training on them."""

import numpy as np

from bert_jax.config import Config, resolve_phases
from bert_jax.data.examples.epoch_report import epoch_report
from bert_jax.data.examples.examples import Examples
from bert_jax.data.store.store import Store
from bert_jax.errors import UserError
from bert_jax.monitoring.check import Check
from bert_jax.monitoring.token_counts import TokenCounts
from bert_jax.tokenization.tokenizer import Tokenizer

FEWEST_DOCUMENTS = 100  # of fewer, one percent is not a whole document to hold out
MOST_DUPLICATED = 0.05  # share of the tokens
MOST_UNKNOWN = 0.01  # of Wikipedia with Google's uncased vocabulary: 0.0004
FEWEST_CAPITALS = 0.005  # English with a cased vocabulary has about a tenth
PAIRS_IN_ORDER = (0.25, 0.75)  # either label is as likely, but a single sentence has no next one
PREDICTED_OF_WANTED = 0.5
EXAMINED = 20_000  # sequences


def content_checks(store: Store, counts: TokenCounts) -> list[Check]:
    """Return the checks on the tokens of a store, whatever is done with them."""
    tokenizer = store.tokenizer()
    return [
        _ids(store, counts),
        _special(tokenizer, counts),
        _unknown(tokenizer, counts),
        _casing(tokenizer, counts),
        _documents(store),
        _duplicates(store, counts),
    ]


def example_checks(store: Store, config: Config) -> list[Check]:
    """Return the checks on the examples of each phase of `config`, whose options choose length, pairs and masks.

    Raises:
      UserError: the store has no text to train on.
    """
    checks = []
    for phase in resolve_phases(config):
        examples = Examples(store, config, phase, split="train", seed=phase.data_seed)
        where = f"phase {phase.index}: " if len(config.phases) > 1 else ""
        if config.data.has_pair_labels:
            checks.append(_pairs(examples, where))
        checks.append(_masks(examples, config, where))
    return checks


def _ids(store: Store, counts: TokenCounts) -> Check:
    highest = int(np.flatnonzero(counts.ids).max())
    return Check(
        name="ids out of range",
        seen=f"highest id {highest:,}",
        limit=f"below {store.vocab_size:,}, the size of the vocabulary",
        is_wrong=highest >= store.vocab_size,
        remedy="delete the store and prepare the corpus again; another program has written these tokens",
    )


def _special(tokenizer: Tokenizer, counts: TokenCounts) -> Check:
    special = [number for number in tokenizer.special_ids if number != tokenizer.unk_id]
    share = counts.ids[special].sum() / counts.ids.sum()
    return Check(
        name="special tokens in the text",
        seen=f"{share:.3%} of the tokens are [CLS], [SEP], [MASK] or padding",
        limit="none",
        is_wrong=share > 0,
        remedy="prepare the corpus with bert-jax prepare, which stores text alone; masks and separators are added "
        "later",
    )


def _unknown(tokenizer: Tokenizer, counts: TokenCounts) -> Check:
    share = counts.ids[tokenizer.unk_id] / counts.ids.sum()
    return Check(
        name="unknown tokens",
        seen=f"{share:.3%} of the tokens are [UNK]",
        limit=f"at most {MOST_UNKNOWN:.0%}",
        is_wrong=share > MOST_UNKNOWN,
        remedy="the vocabulary does not fit the text (another language, script or casing): learn one with bert-jax "
        "train-vocab, or add words with extend-vocab, and prepare again",
    )


def _casing(tokenizer: Tokenizer, counts: TokenCounts) -> Check:
    capitals = np.array([token != token.lower() for token in tokenizer.tokens])
    capitals[list(tokenizer.special_ids)] = False
    share = counts.ids[: len(capitals)][capitals].sum() / counts.ids.sum()
    unknown = counts.ids[tokenizer.unk_id] / counts.ids.sum()
    if capitals.mean() > FEWEST_CAPITALS:
        return Check(
            name="wrong casing for the vocabulary",
            seen=f"{share:.2%} of the tokens have a capital letter, of the vocabulary {capitals.mean():.2%}",
            limit=f"at least {FEWEST_CAPITALS:.1%} of the tokens",
            is_wrong=share < FEWEST_CAPITALS,
            remedy="the text was lowercased, but the vocabulary is cased: prepare the original text without "
            "--lowercase, or use an uncased vocabulary",
        )
    return Check(
        name="wrong casing for the vocabulary",
        seen=f"the vocabulary has no capital letters; text is {'' if tokenizer.lowercase else 'not '}lowercased, "
        f"{unknown:.2%} [UNK]",
        limit=f"lowercased text, or at most {MOST_UNKNOWN:.0%} [UNK]",
        is_wrong=not tokenizer.lowercase and unknown > MOST_UNKNOWN,
        remedy="every word with a capital letter is unknown: prepare again with --lowercase=True",
    )


def _documents(store: Store) -> Check:
    return Check(
        name="too few documents",
        seen=f"{store.num_documents:,} documents",
        limit=f"at least {FEWEST_DOCUMENTS}",
        is_wrong=store.num_documents < FEWEST_DOCUMENTS,
        remedy="held-out figures rest on whole documents, and random second segments come from others: put a blank "
        "line between documents, or prepare more text",
    )


def _duplicates(store: Store, counts: TokenCounts) -> Check:
    lengths = np.diff(store.document_tokens)
    _, first = np.unique(counts.hashes, return_index=True)
    repeated = np.ones(len(lengths), bool)
    repeated[first] = False
    share = lengths[repeated].sum() / lengths.sum()
    return Check(
        name="duplicated documents",
        seen=f"{repeated.sum():,} of {len(lengths):,} documents repeat another one, {share:.2%} of the text",
        limit=f"at most {MOST_DUPLICATED:.0%} of the text",
        is_wrong=share > MOST_DUPLICATED,
        remedy="remove the copies and prepare again: repeated text is memorized, and held-out documents may have "
        "been trained on",
    )


def _pairs(examples: Examples, where: str) -> Check:
    report = epoch_report(examples, limit=EXAMINED)
    name, (low, high) = "IsNext" if examples.sentence_pairs == "nsp" else "in order", PAIRS_IN_ORDER
    share = report.is_next if report.is_next is not None else 0.5
    return Check(
        name=f"{where}degenerate sentence pairs",
        seen=f"{share:.1%} of {report.examined:,} pairs are {name}; {report.duplicated:.1%} of the text is borrowed "
        "from other documents",
        limit=f"{low:.0%} to {high:.0%}",
        is_wrong=not low <= share <= high,
        remedy="the label can be guessed without reading: most documents are a single sentence or fit one segment. "
        "Put a blank line only between documents, check --sentences of prepare, or set data.sentence_pairs=none",
    )


def _masks(examples: Examples, config: Config, where: str) -> Check:
    sequences = min(512, examples.num_examples(0))
    batch = examples.batch(np.arange(sequences))
    text = int(batch["attention_mask"].sum())
    predicted = float(batch["masked_weights"].sum()) / text
    rate = config.masking.rate
    return Check(
        name=f"{where}masks that select nothing",
        seen=f"{predicted:.2%} of the tokens are predicted",
        limit=f"at least half of masking.rate, {PREDICTED_OF_WANTED * rate:.2%}",
        is_wrong=predicted < PREDICTED_OF_WANTED * rate,
        remedy=f"raise max_predictions of the phase (its rate times its length is "
        f"{rate * examples.sequence_length:.0f}), "
        "or the masking.rate",
    )


def unreadable(error: UserError) -> Check:
    """Return the check of a store that cannot be opened."""
    return Check(
        name="damaged store",
        seen=str(error),
        limit="every file as prepare wrote it",
        is_wrong=True,
        remedy="copy the store again, or delete it and prepare it again",
    )
