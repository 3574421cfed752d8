"""Learning a vocabulary from a corpus: WordPiece by frequency or likelihood, SentencePiece, or byte-level BPE.

All learn from the same counted words, so a corpus is read once and need not fit into memory. The same corpus and
options give an identical file.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import rich
import tokenizers
from etils import epath
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.config import TrainVocabConfig
from bert_jax.console.progress_bar import progress_bar, track
from bert_jax.data.held_out import held_out_documents
from bert_jax.errors import UserError
from bert_jax.tokenization import vocabulary_file
from bert_jax.tokenization.byte_level import DEBERTA_SPECIALS, ROBERTA_SPECIALS, learn_byte_level
from bert_jax.tokenization.likelihood import learn_pieces
from bert_jax.tokenization.modernbert_vocabulary import learn_modernbert
from bert_jax.tokenization.piece_families import FAMILIES, OURS
from bert_jax.tokenization.piece_learning import learn_family, learn_sentence_pieces
from bert_jax.tokenization.report import report
from bert_jax.tokenization.tokenizer import Tokenizer, basic_normalizer, load_tokenizer
from bert_jax.tokenization.vocabulary_file import SPECIAL_NAMES
from bert_jax.tokenization.words import Sample, alphabet_of, basic_words, spelled_with

_BYTES = 256
_BYTE_LEVEL_SPECIALS = {"bert": ROBERTA_SPECIALS, "deberta": DEBERTA_SPECIALS}
_ONLY_BYTES = {"deberta": "DeBERTa v1", "modernbert": "ModernBERT"}
"""Families whose vocabularies are byte-level ones."""
_SENTENCE_PIECE = ("unigram", "bpe")
_SMALLEST = 2 * len(SPECIAL_NAMES) + 10  # room for a few letters; anything real has thousands


def run_train_vocab(config: TrainVocabConfig) -> Tokenizer:
    """Learn a vocabulary from the corpus of `bert-jax train-vocab`, write it, and print how it does on held-out text.

    Returns:
      The tokenizer, loaded from `config.output`.

    Raises:
      UserError: an option cannot be used, the corpus has no text or cannot be read, or the output cannot be written.
    """
    from bert_jax.data.corpus.readers import read_documents

    check(config)
    tokenizer, learned, held_out = train_vocab(
        read_documents(config.input, format=config.format, text_field=config.text_field), config
    )
    full = tokenizer.vocab_size >= config.size
    asked = "" if full else f" of the {config.size:,} requested (the corpus yields no more)"
    thinned = "" if learned.stride == 1 else f" (one in {learned.stride}, to stay under max_bytes={config.max_bytes:,})"
    print(
        f"{tokenizer.vocab_size:,} entries{asked}, learned from {learned.num_bytes:,} bytes of "
        f"{learned.num_documents:,} documents{thinned}, are in {config.output}"
    )
    if config.method == "likelihood" and full:
        print(
            f"the vocabulary was full before every pair with min_pair_count={config.min_pair_count} had been merged; "
            "this score prefers rare pairs, so a higher min_pair_count reaches more of the common words"
        )
    if held_out.num_documents:
        rich.print(report(tokenizer, held_out).table(f"on {held_out.num_documents:,} held-out documents"))
    elif config.held_out:
        print(f"no document was held out: there are only {learned.num_documents:,}, and held_out={config.held_out}")
    return tokenizer


def train_vocab(documents: Iterable[str], config: TrainVocabConfig) -> tuple[Tokenizer, Sample, Sample]:
    """Learn a vocabulary from `documents`, write it to config.output (whole or not at all) and load it from there.

    `documents` are read twice, so an iterator does not suffice. Returns the tokenizer, the sample that it was learned
    from and the sample of held-out documents.
    """
    check(config)
    learned, held_out = _sample(documents, config)
    words = learned.words()
    if not words:
        raise UserError(f"{config.input} has no text to learn a vocabulary from")
    if config.method == "byte_bpe":
        _learn_bytes(words, config).save(config.output)
        return load_tokenizer(config.output), learned, held_out
    if config.family != OURS.name:
        learn_family(words, config, _output_file(config)).save(config.output)
        return load_tokenizer(config.output), learned, held_out
    learn = learn_sentence_pieces if config.method in _SENTENCE_PIECE else _learn_wordpiece
    contents = learn(words, config)
    return load_tokenizer(_write(contents, config)), learned, held_out


def _learn_bytes(words: Mapping[str, int], config: TrainVocabConfig) -> Tokenizer:
    if config.family == "modernbert":
        return learn_modernbert(_repeated(words), config.size)
    return learn_byte_level(_repeated(words), config.size, _BYTE_LEVEL_SPECIALS[config.family])


def check(config: TrainVocabConfig) -> None:
    """Raise a UserError about options that do not fit together, before any text is read."""
    if config.size < _SMALLEST:
        raise UserError(
            f"size={config.size} leaves no room for words in addition to the five special tokens; BERT has 30522"
        )
    if config.method == "byte_bpe" and (config.lowercase or config.size < _BYTES + _SMALLEST):
        raise UserError(
            f"method=byte_bpe with lowercase={config.lowercase}, size={config.size:,}: byte-level BPE keeps the case "
            f"of text and has an entry for each of {_BYTES} bytes; set --lowercase=False and a size of "
            f"{_BYTES + _SMALLEST} or more"
        )
    if config.method != "byte_bpe" and config.family in _ONLY_BYTES:
        raise UserError(
            f"family={config.family} with method={config.method}: the vocabulary of {_ONLY_BYTES[config.family]} is a "
            "byte-level one; set --method=byte_bpe, or --family=deberta-v2 for that of DeBERTa v2 and v3"
        )
    directory = epath.Path(config.output).suffix not in (".txt", ".model", ".json")
    if config.method == "bpe" and FAMILIES[config.family].apart:
        raise UserError(
            f"family={config.family} with method=bpe: its tokenizers never use a piece of a digit and a comma, which a "
            "bpe of transformers cannot express; set --method=unigram, as the published models have"
        )
    if config.family not in ("bert", *_ONLY_BYTES) and not (config.method in _SENTENCE_PIECE and directory):
        raise UserError(
            f"family={config.family} with method={config.method} and output={config.output}: only SentencePiece "
            "vocabularies belong to a family, in a directory with a file that names it; set --method=unigram and give "
            "a directory"
        )
    if config.min_pair_count < 1:
        raise UserError(f"min_pair_count={config.min_pair_count} must be at least 1")
    if config.max_bytes < 1:
        raise UserError(f"max_bytes={config.max_bytes} must be positive")
    if not 0 <= config.held_out <= 0.5:
        raise UserError(f"held_out={config.held_out} must be between 0 and 0.5")
    file = _output_file(config)
    vocabulary_file.check_writable(file)
    others = [other.name for other in vocabulary_file.vocabularies(file.parent) if other.name != file.name]
    if others and file.parent == epath.Path(config.output):
        raise UserError(
            f"output={config.output} already holds {others[0]}, and a directory can hold only one vocabulary; "
            "choose a different directory or name the file"
        )


def _output_file(config: TrainVocabConfig) -> epath.Path:
    """Return the file that config.output means: itself, or the usual name in a directory."""
    output, wordpiece = epath.Path(config.output), config.method in ("frequency", "likelihood")
    if config.method == "byte_bpe":
        if output.suffix in (".txt", ".model", ".json") or (output.exists() and not output.is_dir()):
            raise UserError(f"output={output} does not fit method=byte_bpe, which writes two files; give a directory")
        return output / (
            vocabulary_file.JSON_FILE if config.family == "modernbert" else vocabulary_file.BYTE_LEVEL_FILE
        )
    if output.is_dir() or output.suffix not in (".txt", ".model"):
        if output.exists() and not output.is_dir():
            raise UserError(
                f"output={output} is a file but not a vocabulary; give vocab.txt, NAME.model or a directory"
            )
        return output / (vocabulary_file.WORDPIECE_FILE if wordpiece else FAMILIES[config.family].file)
    if (output.suffix == ".txt") != wordpiece:
        raise UserError(
            f"output={output} does not fit method={config.method}: frequency and likelihood write a vocab.txt, "
            "unigram and bpe a NAME.model"
        )
    return output


def _write(contents: bytes, config: TrainVocabConfig) -> epath.Path:
    """Write the vocabulary to its place, with a tokenizer_config.json if the file has its usual name."""
    file = _output_file(config)
    vocabulary_file.make_directory(file.parent)
    vocabulary_file.write(file, contents)
    if file.name in (vocabulary_file.WORDPIECE_FILE, vocabulary_file.SENTENCEPIECE_FILE):
        kind = "wordpiece" if file.name == vocabulary_file.WORDPIECE_FILE else "sentencepiece"
        vocabulary_file.write_config(file.parent, kind, config.lowercase)
    return file


def _sample(documents: Iterable[str], config: TrainVocabConfig) -> tuple[Sample, Sample]:
    """Return the documents to learn from and those to hold out: those that a training run on the same corpus holds out.

    The choice depends on the number of documents, so they are counted first.
    """
    number = sum(1 for _ in _with_text(documents, config.lowercase, "counting documents")) if config.held_out else 0
    numbers = set(np.flatnonzero(held_out_documents(number, config.held_out))) if number > 1 else set()
    learned, held_out = Sample(config.max_bytes), Sample(config.max_bytes)
    for index, document in enumerate(_with_text(documents, config.lowercase, "reading documents")):
        (held_out if index in numbers else learned).add(document)
    return learned, held_out


def _with_text(documents: Iterable[str], lowercase: bool, description: str) -> Iterator[str]:
    """Yield the documents that have a token, as a token store keeps them; show their number on a terminal."""
    normalizer = basic_normalizer(lowercase)
    for document in track(documents, description, None):
        if any(normalizer.normalize_str(word).strip() for word in document.split()):
            yield document


def _learn_wordpiece(raw_words: Mapping[str, int], config: TrainVocabConfig) -> bytes:
    words = basic_words(raw_words, config.lowercase)
    alphabet = alphabet_of(words, (config.size - len(SPECIAL_NAMES)) // 2)
    words = spelled_with(words, alphabet)
    room = config.size - len(SPECIAL_NAMES) - len(alphabet)
    if config.method == "frequency":
        pieces = _frequent_pieces(words, alphabet, room)
    else:
        with progress_bar("merging pairs", room) as move_to:
            merged = itertools.count(1)
            pieces = learn_pieces(words, alphabet, room, config.min_pair_count, lambda: move_to(next(merged)))
    return vocabulary_file.serialize([*SPECIAL_NAMES, *alphabet, *pieces])


def _frequent_pieces(words: Mapping[str, int], alphabet: list[str], room: int) -> list[str]:
    """Learn pieces with Hugging Face's trainer: byte-pair encoding with ## marks, the most frequent pair merged next.

    By itself it numbers characters in the order of a randomly seeded hash table and breaks ties by that number, so that
    no two runs agree. Given the whole alphabet as its first "special" tokens, it has no characters left to number.
    """
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain = [piece for piece in alphabet if len(piece) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=room + len(alphabet),
        special_tokens=alphabet,
        initial_alphabet=plain,
        limit_alphabet=len(plain),
        show_progress=False,
    )
    with progress_bar("merging pairs", None):
        learner.train_from_iterator(_repeated(words), trainer)
    ids = learner.get_vocab()
    return sorted(ids, key=ids.__getitem__)[len(alphabet) :]


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Yield text in which each word occurs as often as it was counted, because the trainer takes no counts."""
    for word, count in words.items():
        for start in range(0, count, 10_000):
            yield (word + " ") * min(10_000, count - start)
