"""Addition of a domain's words to a WordPiece vocabulary, so that training can continue from a checkpoint made with it.

No id changes: a word takes the place of an [unusedN] entry while there are any, and is appended after that (the
embedding table then has to grow).
"""

import collections
import re

from etils import epath

from bert_jax.config.commands import ExtendVocabConfig
from bert_jax.errors import UserError
from bert_jax.tokenization import vocabulary_file
from bert_jax.tokenization.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer
from bert_jax.tokenization.words import Sample, basic_words


def run_extend_vocab(config: ExtendVocabConfig) -> Tokenizer:
    """Write the extended vocabulary of `bert-jax extend-vocab` and print what was added."""
    if bool(config.words) == bool(config.input):
        raise UserError("extend-vocab needs either words=FILE (one word per line) or input=CORPUS to find them in")
    for name in ("max_words", "min_count", "max_bytes"):
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)} must be at least 1")
    tokenizer = load_tokenizer(config.vocab, config.lowercase)
    if config.words:
        found = _read_words(epath.Path(config.words))
    else:
        from bert_jax.data.corpus.readers import read_documents

        sample = Sample(config.max_bytes)
        for document in read_documents(config.input, format=config.format, text_field=config.text_field):
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


def extend(tokenizer: Tokenizer, words: list[str]) -> tuple[WordPieceTokenizer, list[str]]:
    """Return a tokenizer that also knows `words`, and the words that are new to it in the order of their ids.

    A word is added as WordPiece sees it: "COVID-19" as "covid", "-" and "19".

    Raises:
      UserError: the tokenizer is SentencePiece, whose model needs a probability for every
        piece.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
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
    return WordPieceTokenizer(tokens, tokenizer.lowercase), added


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
        words = file.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(
            f"words={file} cannot be read ({error.strerror or error}); expected a file, one word per line"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"words={file} is not UTF-8 (byte {error.start}); convert it first") from None
    words = [word.strip() for word in words if word.strip()]
    if not words:
        raise UserError(f"words={file} is empty; expected one word per line")
    return words


def _save(tokenizer: WordPieceTokenizer, output: epath.Path) -> None:
    """Write to a directory or a .txt file, with a tokenizer_config.json beside it if the file is called vocab.txt."""
    if output.suffix != ".txt":
        tokenizer.save(output)
    elif output.name == vocabulary_file.WORDPIECE_FILE:
        tokenizer.save(output.parent)
    else:
        vocabulary_file.make_directory(output.parent)
        vocabulary_file.write(output, vocabulary_file.serialize(tokenizer.tokens))
