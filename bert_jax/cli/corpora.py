"""Commands on text: vocabularies, the token store, and the examples that a model sees."""

import dataclasses

from bert_jax.console.command_line import parse, positional, positionals
from bert_jax.console.help import described, usage


def train_vocab(arguments: list[str]) -> int:
    """train-vocab --input=CORPUS --output=VOCAB [--size=N]

    Learn a vocabulary from a corpus: WordPiece, SentencePiece or byte-level BPE.
    """
    from bert_jax.config import TrainVocabConfig

    options = parse(TrainVocabConfig, arguments, *described(train_vocab))
    from bert_jax.tokenization.learning import run_train_vocab

    run_train_vocab(options)
    return 0


def extend_vocab(arguments: list[str]) -> int:
    """extend-vocab --vocab=VOCAB --output=VOCAB [--input=CORPUS | --words=FILE]

    Add the words of a domain to a vocabulary. Every entry keeps its id.

    Give either --input=CORPUS, in which the words are found, or --words=FILE, which lists them.
    """
    from bert_jax.config.commands import ExtendVocabConfig

    options = parse(ExtendVocabConfig, arguments, *described(extend_vocab))
    from bert_jax.tokenization.extension import run_extend_vocab

    run_extend_vocab(options)
    return 0


def prepare(arguments: list[str]) -> int:
    """prepare --input=CORPUS --vocab=VOCAB --output=STORE [--runner=beam --beam.NAME=VALUE …]

    Tokenize a corpus once into a token store, which every pre-training run reads.

    NAME is an option of Apache Beam, and VALUE is what it is set to. Such options need --runner=beam.
    """
    from bert_jax.config import PrepareConfig

    prefix = "--beam."
    options = parse(PrepareConfig, [word for word in arguments if not word.startswith(prefix)], *described(prepare))
    beam = tuple(word.removeprefix(prefix) for word in arguments if word.startswith(prefix))
    options = dataclasses.replace(options, beam=(*options.beam, *beam))
    from bert_jax.data.preparation.prepare import run_prepare

    run_prepare(options)
    return 0


def count(arguments: list[str]) -> int:
    """count STORE --output=COUNTS [--window=N]

    Count how often any two tokens of a store occur near each other, for GloVe (objective.name=glove).

    STORE is a token store that `bert-jax prepare` wrote, local or gs://.
    """
    from bert_jax.config.commands import CountConfig

    store, options = positional(arguments, usage(count), "STORE")
    config = parse(CountConfig, options, *described(count))
    from bert_jax.data.preparation.pair_counting import run_count

    run_count(store, config)
    return 0


def describe(arguments: list[str]) -> int:
    """describe STORE [OTHER] --output=FILE.html

    Write the card of a token store: counts, lengths, vocabulary, duplicates, frequent sentences, sources, samples.

    STORE is a token store that `bert-jax prepare` wrote, local or gs://. OTHER is shown next to it.
    """
    from bert_jax.config.watching import DescribeConfig

    stores, words = positionals(arguments, usage(describe), "STORE")
    config = parse(DescribeConfig, words, *described(describe))
    from bert_jax.monitoring.description import run_describe

    run_describe(stores, config)
    return 0


def inspect(arguments: list[str]) -> int:
    """inspect STORE

    Show, in colour, how documents become sentences, pieces, pairs and masks.

    STORE is a token store that `bert-jax prepare` wrote, local or gs://.
    """
    from bert_jax.config.commands import InspectConfig

    store, options = positional(arguments, usage(inspect), "STORE")
    config = parse(InspectConfig(), options, *described(inspect))
    from bert_jax.commands.inspection import run_inspect

    run_inspect(store, config)
    return 0
