"""Vocabularies learned from a corpus, measured, and extended: WordPiece, SentencePiece, byte-level BPE.

All are learned from the same words, counted in a sample of documents, so a corpus is read once and need not fit into
memory. The same corpus and options give an identical file.

WordPiece is learned by frequency or by likelihood: merge the adjacent pieces a b with maximum count(ab) / (count(a) ·
count(b)). This is the score commonly attributed to the original WordPiece (Schuster and Nakajima 2012; Google never
published its trainer): it selects the merge that, per use, raises the likelihood of the corpus under a unigram model
most. The bare ratio prefers pairs that hardly ever occur, hence the minimum pair count.

SentencePiece vocabularies are unigram or BPE, with the special tokens of any family. ModernBERT's is a byte-level BPE
of composed text (NFC), in a tokenizer.json. The report of a vocabulary gives fertility, coverage and the share of
[UNK].

Extension adds the words of a domain to a WordPiece vocabulary, so that training can continue from a checkpoint made
with it. No id changes: a word takes the place of an [unusedN] entry while there are any, and is appended after that
(the embedding table then has to grow).
"""

import collections
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import rich
import rich.table
import sentencepiece
import tokenizers
from etils import epath
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers

from bert_jax.config import TrainVocabConfig
from bert_jax.config.commands import ExtendVocabConfig
from bert_jax.config.options import check_effects
from bert_jax.errors import UserError, at_least, need_cloud_storage
from bert_jax.files import decoded
from bert_jax.progress import progress_bar, track
from bert_jax.randomness import held_out_documents
from bert_jax.tokenization import vocabulary
from bert_jax.tokenization.byte_level import (
    DEBERTA_SPECIALS,
    ROBERTA_SPECIALS,
    fast_tokenizer,
    learn_byte_level,
    learn_merges,
)
from bert_jax.tokenization.json_vocabulary import JsonVocabulary
from bert_jax.tokenization.sentence_pieces import FAMILIES, OURS, pieces_of
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import (
    MAX_WORD_LENGTH,
    WordPiece,
    basic_normalizer,
    basic_pre_tokenizer,
    written_entries,
)

Pair = tuple[int, int]


def learn_pieces(
    words: Mapping[str, int],
    alphabet: list[str],
    room: int,
    min_pair_count: int,
    advance: Callable[[], None] = lambda: None,
) -> list[str]:
    """Return up to `room` merged pieces in the order of merging; fewer once no pair occurs `min_pair_count` times.

    `words` are counted words; `alphabet` holds each of their characters, with ## unless it begins the word. Equal
    scores go to the more frequent pair, then to the alphabetically first. `advance` is called for each new piece.
    """
    texts = list(alphabet)
    ids = {text: i for i, text in enumerate(texts)}
    segmentation = _Segmentation(words, ids)
    symbol_counts = np.zeros(len(alphabet) + room, np.int64)
    for word, count in zip(segmentation.words, segmentation.counts, strict=True):
        for symbol in word:
            symbol_counts[symbol] += count
    pairs = _FrequentPairs(segmentation.pair_counts, min_pair_count)
    while len(texts) < len(alphabet) + room:
        best = pairs.best(symbol_counts, texts)
        if best is None:
            break
        left, right = best
        text = texts[left] + texts[right].removeprefix("##")
        merged = ids.setdefault(text, len(texts))  # the same text may already exist as a different merge
        if merged == len(texts):
            texts.append(text)
            advance()
        times, changed = segmentation.merge(best, merged)
        np.add.at(symbol_counts, [left, right, merged], [-times, -times, times])
        for pair in changed:
            pairs.set(pair, segmentation.pair_counts[pair])
    return texts[len(alphabet) :]


class _Segmentation:
    """Every word as a list of symbols, with the counts of neighbouring symbols kept up to date as they merge."""

    def __init__(self, words: Mapping[str, int], ids: Mapping[str, int]):
        self.words = [[ids[c if i == 0 else "##" + c] for i, c in enumerate(word)] for word in words]
        self.counts = list(words.values())
        self.pair_counts: dict[Pair, int] = collections.defaultdict(int)
        self._where: dict[Pair, list[int]] = collections.defaultdict(list)  # words that have, or once had, the pair
        for index, (word, count) in enumerate(zip(self.words, self.counts, strict=True)):
            for pair in itertools.pairwise(word):
                self.pair_counts[pair] += count
                self._where[pair].append(index)

    def merge(self, pair: Pair, merged: int) -> tuple[int, set[Pair]]:
        """Replace `pair` by the symbol `merged`; return the number of times and the pairs whose count has changed."""
        left, right = pair
        times, changes = 0, collections.defaultdict(int)
        for index in self._where.pop(pair):
            word, count = self.words[index], self.counts[index]
            at = 0
            while at < len(word) - 1:
                if word[at] == left and word[at + 1] == right:
                    times += count
                    changes[pair] -= count
                    if at > 0:
                        changes[word[at - 1], left] -= count
                        self._gain((word[at - 1], merged), index, count, changes)
                    if at + 2 < len(word):
                        changes[right, word[at + 2]] -= count
                        self._gain((merged, word[at + 2]), index, count, changes)
                    word[at : at + 2] = [merged]
                at += 1
        for changed, change in changes.items():
            self.pair_counts[changed] += change
        return times, set(changes)

    def _gain(self, pair: Pair, index: int, count: int, changes: dict[Pair, int]) -> None:
        changes[pair] += count
        where = self._where[pair]
        if not where or where[-1] != index:
            where.append(index)


class _FrequentPairs:
    """The pairs that may be merged, in arrays, so that each merge can consider all their scores.

    A heap would be no better: a merge raises the score of every pair that contains one of its two symbols.
    """

    def __init__(self, pair_counts: Mapping[Pair, int], min_count: int):
        self._min_count = min_count
        self._rows: dict[Pair, int] = {}
        self._free: list[int] = []
        self._symbols, self._counts = np.zeros((2, 0), np.int64), np.zeros(0, np.int64)
        for pair, count in pair_counts.items():
            self.set(pair, count)

    def set(self, pair: Pair, count: int) -> None:
        row = self._rows.get(pair)
        if count < self._min_count:
            if row is not None:
                self._counts[self._rows.pop(pair)] = 0
                self._free.append(row)
            return
        if row is None:
            if not self._free:
                self._grow()
            row = self._rows[pair] = self._free.pop()
            self._symbols[:, row] = pair
        self._counts[row] = count

    def best(self, symbol_counts: np.ndarray, texts: list[str]) -> Pair | None:
        """Return the pair to merge next, or None if no pair is frequent enough."""
        if not self._rows:
            return None
        left, right = self._symbols
        # Unused rows have count 0, and their symbols may have vanished: the maximum keeps their score a plain 0.
        scores = self._counts / np.maximum(symbol_counts[left] * symbol_counts[right], 1)
        ties = np.flatnonzero(scores == scores.max())
        row = min(ties, key=lambda row: (-self._counts[row], texts[left[row]], texts[right[row]]))
        return int(left[row]), int(right[row])

    def _grow(self) -> None:
        old = len(self._counts)
        more = max(1024, old // 4)
        self._symbols = np.concatenate([self._symbols, np.zeros((2, more), np.int64)], axis=1)
        self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
        self._free = list(range(old + more - 1, old - 1, -1))


SPECIALS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
"""ModernBERT's special tokens in the order of their ids, which follow those of the pieces."""
MULTIPLE = 64
"""The published vocabulary is filled up to a multiple of it, with tokens that no text has been trained with."""


def learn_modernbert(words: Iterable[str], size: int) -> Tokenizer:
    """Learn `size` entries from an iterator over words, and add [unusedN] up to the next multiple of 64."""
    composed = normalizers.NFC()
    pieces, merges = learn_merges(map(composed.normalize_str, words), size - len(SPECIALS))
    fast = fast_tokenizer({piece: i for i, piece in enumerate(pieces)}, merges, spaced=False)
    fast.normalizer = composed
    fast.add_special_tokens([*SPECIALS[:-1], AddedToken(SPECIALS[-1], lstrip=True)])
    fast.add_tokens([f"[unused{i}]" for i in range(-fast.get_vocab_size() % MULTIPLE)])
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, fast.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return Tokenizer(JsonVocabulary(json.loads(fast.to_str()), vocabulary.SPECIAL_NAMES))


_FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
_BERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
_SPECIALS = {
    "bert": {**_BERT, "pad_piece": "[PAD]", "unk_piece": "[UNK]"},
    "albert": {**_BERT, "pad_piece": "<pad>"},
    "xlm-roberta": _FAIRSEQ,
    "camembert": _FAIRSEQ,
    "deberta-v2": {
        **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
        **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
    },
    "xlnet": {**_FAIRSEQ, "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]},
}
"""Options of the trainer with which each published model was made; they give the special tokens their ids."""


def learn_sentence_pieces(words: Mapping[str, int], config: TrainVocabConfig, size: int | None = None) -> bytes:
    """Return the .model file with `size` pieces (None: config.size) learned from counted words."""
    model = io.BytesIO()
    ranked = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    lines = (f"{word}\t{count}" for word, count in ranked if len(word) <= 1_000)
    cleaned = FAMILIES[config.family].cleaning.tidies  # and lowercased by this, if at all
    casing = "nmt_nfkc_cf" if config.lowercase and not cleaned else "nmt_nfkc"
    with progress_bar("learning pieces", None):
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=lines,
                model_writer=model,
                input_format="tsv",
                model_type=config.method,
                vocab_size=size or config.size,
                hard_vocab_limit=False,
                normalization_rule_name=casing,
                input_sentence_size=0,
                minloglevel=2,
                num_threads=8,
                **_SPECIALS[config.family],
            )  # num_threads is fixed because floating-point sums depend on it
        except RuntimeError as error:
            raise UserError(
                f"SentencePiece cannot learn {config.size:,} entries by {config.method} from {config.input}: "
                f"{error}; try a smaller size"
            ) from None
    return model.getvalue()


def learn_family(words: Mapping[str, int], config: TrainVocabConfig, file: epath.Path) -> Tokenizer:
    """Return a vocabulary of config.family learned from counted words, of config.size entries with those it adds."""
    family = FAMILIES[config.family]
    cleaning = family.cleaning
    if cleaning.tidies:
        cleaning = dataclasses.replace(cleaning, lowercase=config.lowercase)
    counts = collections.Counter()
    for word, count in words.items():
        counts[cleaning(word)] += count
    del counts[""]
    added = len(family.first) - family.dropped + family.adds_mask
    model = learn_sentence_pieces(counts, config, config.size - added)
    return Tokenizer(pieces_of(file, model, family, cleaning))


ALPHABET_LIMIT = 1_000  # characters, as in Hugging Face's WordPiece trainer; words with any other are not learned from


class Sample:
    """Words of a corpus, thinned to `max_bytes` while it is read: from every document, or every 2nd, every 4th …

    The size of a stream is known only at its end. So document number i belongs to level (trailing zero bits of i), and
    while the sample is too large, its lowest level is dropped. Document 0 stays whatever its size.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.num_documents: int = 0
        self._words: dict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self._sizes: collections.Counter[int] = collections.Counter()
        self._lowest, self._highest = 0, 63

    def add(self, document: str) -> None:
        number = self.num_documents
        self.num_documents += 1
        level = (number & -number).bit_length() - 1 if number else self._highest
        if level < self._lowest:
            return
        self._words[level].update(document.split())
        self._sizes[level] += len(document.encode())
        while self.num_bytes > self.max_bytes and self._lowest < self._highest:
            self._words.pop(self._lowest, None)
            self._sizes.pop(self._lowest, None)
            self._lowest += 1

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the documents in the sample."""
        return sum(self._sizes.values())

    @property
    def stride(self) -> int:
        """Distance between sampled documents: 1 if every document is in the sample, 2 if every second …"""
        return 2**self._lowest

    def words(self) -> collections.Counter[str]:
        """Return how often each whitespace-separated word occurs in the sample."""
        return sum_counts(pair for words in self._words.values() for pair in words.items())


def sum_counts(pairs: Iterable[tuple[str, int]]) -> collections.Counter[str]:
    total = collections.Counter()
    for word, count in pairs:
        total[word] += count
    return total


def basic_words(words: Mapping[str, int], lowercase: bool) -> collections.Counter[str]:
    """Count the words that WordPiece will see: normalized, punctuation and ideographs apart, none over 200 characters.

    The tokenizer does all this within whitespace-separated words, so each distinct one is processed only once.
    """
    normalizer, pre_tokenizer = basic_normalizer(lowercase), basic_pre_tokenizer()
    parts = (
        (part, count)
        for word, count in words.items()
        for part, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(word))
    )
    return sum_counts((part, count) for part, count in parts if len(part) <= MAX_WORD_LENGTH)


def alphabet_of(words: Mapping[str, int], size: int) -> list[str]:
    """Return the most frequent characters, each alone and, if it occurs so, with ##, of which all pieces are made.

    Stops at ALPHABET_LIMIT characters or `size` pieces, so that rare characters do not fill the vocabulary.
    """
    characters, inside = collections.Counter(), set()
    for word, count in words.items():
        for character in word:
            characters[character] += count
        inside.update(word[1:])
    kept = []
    for character in sorted(characters, key=lambda c: (-characters[c], c))[:ALPHABET_LIMIT]:
        pieces = [character, "##" + character] if character in inside else [character]
        if len(kept) + len(pieces) > size:
            break
        kept += pieces
    return sorted(kept, key=lambda piece: (piece.startswith("##") and len(piece) > 1, piece))


def spelled_with(words: Mapping[str, int], alphabet: list[str]) -> dict[str, int]:
    """Return the words without characters outside `alphabet`, most frequent first, ties in alphabetical order."""
    known = set(alphabet)
    kept = [word for word in words if known.issuperset(word)]
    return {word: words[word] for word in sorted(kept, key=lambda word: (-words[word], word))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyReport:
    """Fit of a vocabulary to a text; shares are of occurrences, and words are BERT's (punctuation marks are words)."""

    num_words: int
    pieces_per_word: float
    """Fertility."""
    single_piece_words: float
    """Coverage: share of the words that are one known piece."""
    unknown_words: float
    """Share of the words with a part that is [UNK]."""
    unknown_pieces: float
    pieces_per_byte: float

    def table(self, title: str) -> rich.table.Table:
        table = rich.table.Table(title=f"{title} ({self.num_words:,} words)", show_header=False)
        table.add_row("pieces per word (fertility)", f"{self.pieces_per_word:.3f}")
        table.add_row("words in one piece (coverage)", f"{self.single_piece_words:.2%}")
        table.add_row("words with an [UNK]", f"{self.unknown_words:.3%}")
        table.add_row("[UNK] among the pieces", f"{self.unknown_pieces:.3%}")
        table.add_row("bytes per piece", f"{1 / self.pieces_per_byte:.2f}")
        return table


def report(tokenizer: Tokenizer, sample: Sample) -> VocabularyReport:
    """Measure `tokenizer` on the words of `sample`, which must not be empty; each distinct word is encoded once."""
    raw_words = sample.words()
    words = basic_words(raw_words, lowercase=False)
    num_words = words.total()
    pieces, unknown_pieces = 0, 0
    for ids, count in _encoded(tokenizer, raw_words):
        pieces += count * len(ids)
        unknown_pieces += count * ids.count(tokenizer.unk_id)
    single, unknown = 0, 0
    for ids, count in _encoded(tokenizer, words):
        known = tokenizer.unk_id not in ids
        # SentencePiece may spell a punctuation mark as ▁ and the mark, which does not split a word.
        single += count * (known and sum(tokenizer.tokens[i] != vocabulary.WORD_START for i in ids) == 1)
        unknown += count * (not known)
    return VocabularyReport(
        num_words=num_words,
        pieces_per_word=pieces / num_words,
        single_piece_words=single / num_words,
        unknown_words=unknown / num_words,
        unknown_pieces=unknown_pieces / max(pieces, 1),
        pieces_per_byte=pieces / sample.num_bytes,
    )


def _encoded(tokenizer: Tokenizer, words: Mapping[str, int]):
    return zip(tokenizer.encode_batch(list(words)), words.values(), strict=True)


_BYTES = 256
_BYTE_LEVEL_SPECIALS = {"bert": ROBERTA_SPECIALS, "deberta": DEBERTA_SPECIALS}
_ONLY_BYTES = {"deberta": "DeBERTa v1", "modernbert": "ModernBERT"}
"""Families whose vocabularies are byte-level ones."""
_SENTENCE_PIECE = ("unigram", "bpe")
_SMALLEST = 2 * len(vocabulary.SPECIAL_NAMES) + 10  # room for a few letters; anything real has thousands


def run_train_vocab(config: TrainVocabConfig) -> Tokenizer:
    """Learn a vocabulary from the corpus of `bert-jax train-vocab`, write it, and print how it does on held-out text.

    Returns:
      The tokenizer, loaded from `config.output`.

    Raises:
      UserError: an option cannot be used, the corpus has no text or cannot be read, or the output cannot be written.
    """
    check(config)
    tokenizer, learned, held_out = train_vocab(_documents(config), config)
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


def _documents(config: TrainVocabConfig | ExtendVocabConfig) -> Iterable[str]:
    """Return the documents of `input`."""
    from bert_jax.corpus.blocks import Limits
    from bert_jax.corpus.readers import read_documents

    limits = Limits.given(config.max_line_bytes, config.max_expansion)
    return read_documents(config.input, format=config.format, text_field=config.text_field, limits=limits)


def _learn_bytes(words: Mapping[str, int], config: TrainVocabConfig) -> Tokenizer:
    if config.family == "modernbert":
        return learn_modernbert(_repeated(words), config.size)
    return Tokenizer(learn_byte_level(_repeated(words), config.size, _BYTE_LEVEL_SPECIALS[config.family]))


def check(config: TrainVocabConfig) -> None:
    """Raise a UserError about options that do not fit together, before any text is read."""
    need_cloud_storage(config.input)
    need_cloud_storage(config.output)
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
    check_effects(config)
    at_least(1, min_pair_count=config.min_pair_count)
    if config.max_bytes < 1:
        raise UserError(f"max_bytes={config.max_bytes} must be positive")
    if not 0 <= config.held_out <= 0.5:
        raise UserError(f"held_out={config.held_out} must be between 0 and 0.5")
    file = _output_file(config)
    vocabulary.check_writable(file)
    others = [other.name for other in vocabulary.vocabulary_files(file.parent) if other.name != file.name]
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
        return output / (vocabulary.JSON_FILE if config.family == "modernbert" else vocabulary.BYTE_LEVEL_FILE)
    if output.is_dir() or output.suffix not in (".txt", ".model"):
        if output.exists() and not output.is_dir():
            raise UserError(
                f"output={output} is a file but not a vocabulary; give vocab.txt, NAME.model or a directory"
            )
        return output / (vocabulary.WORDPIECE_FILE if wordpiece else FAMILIES[config.family].file)
    if (output.suffix == ".txt") != wordpiece:
        raise UserError(
            f"output={output} does not fit method={config.method}: frequency and likelihood write a vocab.txt, "
            "unigram and bpe a NAME.model"
        )
    return output


def _write(contents: bytes, config: TrainVocabConfig) -> epath.Path:
    """Write the vocabulary to its place, with a tokenizer_config.json if the file has its usual name."""
    file = _output_file(config)
    vocabulary.make_directory(file.parent)
    vocabulary.write_file(file, contents)
    if file.name in (vocabulary.WORDPIECE_FILE, vocabulary.SENTENCEPIECE_FILE):
        kind = "wordpiece" if file.name == vocabulary.WORDPIECE_FILE else "sentencepiece"
        vocabulary.write_config(file.parent, kind, config.lowercase)
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
    alphabet = alphabet_of(words, (config.size - len(vocabulary.SPECIAL_NAMES)) // 2)
    words = spelled_with(words, alphabet)
    room = config.size - len(vocabulary.SPECIAL_NAMES) - len(alphabet)
    if config.method == "frequency":
        pieces = _frequent_pieces(words, alphabet, room)
    else:
        with progress_bar("merging pairs", room) as move_to:
            merged = itertools.count(1)
            pieces = learn_pieces(words, alphabet, room, config.min_pair_count, lambda: move_to(next(merged)))
    return written_entries([*vocabulary.SPECIAL_NAMES, *alphabet, *pieces])


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


def run_extend_vocab(config: ExtendVocabConfig) -> Tokenizer:
    """Write the extended vocabulary of `bert-jax extend-vocab` and print what was added."""
    if bool(config.words) == bool(config.input):
        raise UserError("extend-vocab needs either words=FILE (one word per line) or input=CORPUS to find them in")
    check_effects(config)
    at_least(1, max_words=config.max_words, min_count=config.min_count, max_bytes=config.max_bytes)
    tokenizer = load_tokenizer(config.vocab, config.lowercase)
    if config.words:
        found = _read_words(epath.Path(config.words))
    else:
        sample = Sample(config.max_bytes)
        for document in _documents(config):
            sample.add(document)
        found = find_words(tokenizer, sample, config.max_words, config.min_count)
    extended, added = extend(tokenizer, found)
    _save(extended, epath.Path(config.output))
    reused = len(added) - (extended.vocab_size - tokenizer.vocab_size)
    shown = " ".join(added[:10]) + (" …" if len(added) > 10 else "")
    print(
        f"{len(added):,} words added ({reused:,} in place of [unused] entries), {extended.vocab_size:,} entries in "
        f"{config.output}: {shown}"
    )
    return extended


def extend(tokenizer: Tokenizer, words: list[str]) -> tuple[Tokenizer, list[str]]:
    """Return a tokenizer that also knows `words`, and the words that are new to it in the order of their ids.

    A word is added as WordPiece sees it: "COVID-19" as "covid", "-" and "19".

    Raises:
      UserError: the tokenizer is SentencePiece, whose model needs a probability for every
        piece.
    """
    if not isinstance(tokenizer.vocabulary, WordPiece):
        raise UserError(
            "only a WordPiece vocabulary (vocab.txt) can be extended; train a new SentencePiece model on both corpora"
        )
    tokens, known = list(tokenizer.tokens), set(tokenizer.tokens)
    given = collections.Counter(part for word in words for part in word.split())
    added = [part for part in basic_words(given, tokenizer.lowercase) if part not in known]
    unused = [i for i, token in enumerate(tokens) if re.fullmatch(r"\[unused\d+\]", token)]
    for i, word in zip(unused, added, strict=False):
        tokens[i] = word
    tokens += added[len(unused) :]
    return Tokenizer(WordPiece(tokens, tokenizer.lowercase)), added


def find_words(tokenizer: Tokenizer, sample: Sample, max_words: int, min_count: int) -> list[str]:
    """Return the words of `sample` that would save most pieces (count × (pieces − 1)) as single entries, best first.

    An [UNK] hides a whole word, so it counts as one piece per character. Words without a letter are left to their
    parts.
    """
    counts = {
        word: count
        for word, count in basic_words(sample.words(), tokenizer.lowercase).items()
        if count >= min_count and any(map(str.isalpha, word))
    }
    saved = {}
    for (word, count), ids in zip(counts.items(), tokenizer.encode_batch(list(counts)), strict=True):
        pieces = len(word) + 1 if tokenizer.unk_id in ids else len(ids)
        if pieces > 1:
            saved[word] = count * (pieces - 1)
    return sorted(saved, key=lambda word: (-saved[word], word))[:max_words]


def _read_words(file: epath.Path) -> list[str]:
    try:
        words = decoded(file.read_bytes(), f"words={file}").split("\n")
    except OSError as error:
        raise UserError(
            f"words={file} cannot be read ({error.strerror or error}); expected a file, one word per line"
        ) from None
    words = [word.strip() for word in words if word.strip()]
    if not words:
        raise UserError(f"words={file} is empty; expected one word per line")
    return words


def _save(tokenizer: Tokenizer, output: epath.Path) -> None:
    """Write to a directory or a .txt file, with a tokenizer_config.json next to it if the file is called vocab.txt."""
    if output.suffix != ".txt":
        tokenizer.save(output)
    elif output.name == vocabulary.WORDPIECE_FILE:
        tokenizer.save(output.parent)
    else:
        vocabulary.make_directory(output.parent)
        vocabulary.write_file(output, written_entries(tokenizer.tokens))
