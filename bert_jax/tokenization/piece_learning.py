"""Learning SentencePiece vocabularies, unigram or BPE, with the special tokens of any family."""

import collections
import dataclasses
import io
from collections.abc import Mapping

import sentencepiece
from etils import epath

from bert_jax.config import TrainVocabConfig
from bert_jax.console.progress_bar import progress_bar
from bert_jax.errors import UserError
from bert_jax.tokenization.piece_families import FAMILIES
from bert_jax.tokenization.sentence_pieces import SentencePieceTokenizer, tokenizer_of

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


def learn_family(words: Mapping[str, int], config: TrainVocabConfig, file: epath.Path) -> SentencePieceTokenizer:
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
    return tokenizer_of(file, learn_sentence_pieces(counts, config, config.size - added), family, cleaning)
