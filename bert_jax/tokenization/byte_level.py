"""Byte-level byte-pair encoding, as in GPT-2 and RoBERTa: pieces of UTF-8 bytes, with the space before a word in them.

Every text can be spelled, so there is no unknown word. The files are vocab.json (piece → id, each byte written as one
printable character) and merges.txt (pairs of pieces, the first to merge first).
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from etils import epath
from tokenizers import decoders, models, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.files import decoded, read_contents, read_object
from bert_jax.tokenization.vocabulary import BYTE_LEVEL_FILE, CONFIG_FILE, MERGES_FILE, SPECIAL_NAMES, Vocabulary

ROBERTA_NAMES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
"""Names of the special tokens in RoBERTa, in the order of SPECIAL_NAMES, the names in BERT."""
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""RoBERTa's special tokens in the order of the ids that a new vocabulary gives them."""
DEBERTA_SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
"""The same for DeBERTa v1."""
SPACES = tuple("ĠĊĉčċČ")
"""Characters that represent the bytes of white space."""


@dataclasses.dataclass(eq=False, repr=False)
class ByteLevel(Vocabulary):
    """GPT-2's splitting of text, then byte-pair encoding of each part; no normalization.

    Attributes:
      tokens: the pieces in the order of their ids, with special tokens named as in RoBERTa or as in BERT.
      merges: pairs of pieces, the first to merge first.
      spaced: whether a text is read as if a space preceded it.
    """

    tokens: list[str]
    merges: list[tuple[str, str]]
    spaced: bool

    kind = "byte_level"
    lowercase = False
    word_starts = SPACES
    mask_takes_space = True

    def __post_init__(self):
        names = next(each for each in (ROBERTA_NAMES, SPECIAL_NAMES) if each[2] in self.ids)
        content = json.dumps([self.kind, self.spaced, self.tokens, self.merges])
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        self.special_ids = tuple(self.ids[name] for name in names)
        self.separators = 2 if names is ROBERTA_NAMES else 1
        self.fast = self.pipeline()

    def pipeline(self) -> tokenizers.Tokenizer:
        """Return what reads a text, without special tokens; its offsets leave out the space."""
        return fast_tokenizer(self.ids, self.merges, self.spaced)

    def after_space(self, text: str) -> str:
        return " " + text if text and not text.startswith(" ") else text

    def files(self) -> dict[str, bytes]:
        merges = "".join(f"{left} {right}\n" for left, right in self.merges)
        return {
            BYTE_LEVEL_FILE: (json.dumps(self.ids, ensure_ascii=False) + "\n").encode(),
            MERGES_FILE: f"#version: 0.2\n{merges}".encode(),
        }

    def options(self) -> dict[str, bool | str]:
        return {"add_prefix_space": self.spaced}


def fast_tokenizer(ids: dict[str, int], merges: list[tuple[str, str]], spaced: bool) -> tokenizers.Tokenizer:
    """Return a tokenizer of Hugging Face `tokenizers`, without special tokens; its offsets leave out the space."""
    fast = tokenizers.Tokenizer(models.BPE(ids, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    fast.post_processor = processors.ByteLevel(trim_offsets=True)
    fast.decoder = decoders.ByteLevel()
    return fast


def read_byte_level(file: epath.Path, lowercase: bool | None = None) -> ByteLevel:
    """Read a vocab.json, the merges.txt next to it, and tokenizer_config.json, where there is one.

    Raises:
      UserError: a file is missing or damaged, or `lowercase` is asked for, which is not part of such a vocabulary.
    """
    if lowercase:
        raise UserError(f"lowercase=True, but {file} is a byte-level vocabulary, which has no casing; leave it out")
    merges_file, config_file = (file.parent / name for name in (MERGES_FILE, CONFIG_FILE))
    if not merges_file.exists():
        raise UserError(f"{file} needs the {merges_file.name} that belongs to it in the same directory; copy both")
    config = read_object(config_file) if config_file.exists() else {}
    lines = decoded(read_contents(merges_file), str(merges_file)).split("\n")
    merges = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    return byte_level_of(read_object(file), merges, config.get("add_prefix_space") is True, file)


def byte_level_of(
    vocabulary: Mapping[str, object], merges: Sequence[object], spaced: bool, file: epath.Path
) -> ByteLevel:
    """Return the vocabulary of pieces (piece → id) and merges ("left right", or pairs), as `file` has them.

    Raises:
      UserError: ids are missing, a byte or a special token has no entry, or a merge does not make an entry.
    """
    by_id = {i: token for token, i in vocabulary.items() if isinstance(i, int) and not isinstance(i, bool)}
    if not by_id or sorted(by_id) != list(range(len(vocabulary))):
        raise UserError(
            f"{file}: the ids of its {len(vocabulary):,} pieces must be 0 to {len(vocabulary) - 1:,}, each once"
        )
    if lacking := [byte for byte in pre_tokenizers.ByteLevel.alphabet() if byte not in vocabulary]:
        raise UserError(
            f"{file} has no piece for {len(lacking)} of the 256 bytes, first {min(lacking)!r}; it is not the "
            "vocabulary of a byte-level BPE"
        )
    names = ROBERTA_NAMES if "<s>" in vocabulary else SPECIAL_NAMES
    if missing := [name for name in names if name not in vocabulary]:
        raise UserError(
            f"{file} has no {', '.join(missing)}; it needs {' '.join(ROBERTA_NAMES)}, or {' '.join(SPECIAL_NAMES)}"
        )
    pairs = [_pair(merge, vocabulary, file) for merge in merges]
    return ByteLevel([by_id[i] for i in range(len(by_id))], pairs, spaced)


def _pair(merge: object, vocabulary: Mapping[str, object], file: epath.Path) -> tuple[str, str]:
    pair = merge.split(" ") if isinstance(merge, str) else merge
    if isinstance(pair, list) and len(pair) == 2 and all(isinstance(piece, str) for piece in pair):
        left, right = pair
        if {left, right, left + right} <= vocabulary.keys():
            return left, right
    raise UserError(f"{file}: the merge {merge!r:.60} is not two entries of the vocabulary whose union is one too")


def learn_byte_level(words: Iterable[str], size: int, specials: Sequence[str] = ROBERTA_SPECIALS) -> ByteLevel:
    """Learn `size` pieces from an iterator over words, each written as after a space; the special tokens come first."""
    return ByteLevel(*learn_merges(words, size, specials), spaced=True)


def learn_merges(
    words: Iterable[str], size: int, specials: Sequence[str] = ()
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return `size` pieces in the order of their ids, `specials` first, and the merges that make them."""
    learner = fast_tokenizer({}, [], True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(words, trainer)
    model = json.loads(learner.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [(left, right) for left, right in model["merges"]]
