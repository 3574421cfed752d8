"""SentencePiece models as the published ones of each family are made, small ones of our own text."""

import io
import re
import unicodedata

import difficult_text
import documents

FAIRSEQ = dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
OPTIONS = {  # family → how its published model was trained, as far as ids and special tokens go
    "albert": dict(
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece="<pad>", control_symbols=["[CLS]", "[SEP]", "[MASK]"]
    ),
    "xlm-roberta": FAIRSEQ,
    "camembert": FAIRSEQ,
    "deberta-v2": dict(
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
    ),
    "xlnet": dict(
        **FAIRSEQ,
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"],
        user_defined_symbols=["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"],
    ),
}
FILES = {
    "albert": "spiece.model",
    "xlm-roberta": "sentencepiece.bpe.model",
    "camembert": "sentencepiece.bpe.model",
    "deberta-v2": "spm.model",
    "xlnet": "spiece.model",
}
TEXTS = [
    "The gardener digs before noon.",
    "In 1,000 years, 25, or 3,5: ``quoted'' text,",
    "\u00c4rger na\u00efve caf\u00e9, \u00bd \ufb01ne \u2167 \uff21\uff22",
    "  leading and  two   spaces\tand\nlines ",
    "\u6771\u4eac \u30ac\u30ae \u0130stanbul \u039f\u0394\u039f\u03a3",
    "",
    " ",
    "[CLS] <s> </s> <mask> [MASK] text",
    "e\u0301 q\u0308x \u0915\u093e\u0902",
]


def texts() -> list[str]:
    return [*TEXTS, *documents.documents(2, seed=3), *difficult_text.texts()]


def reads_alike(text: str, family: str) -> bool:
    """Whether `tokenizers` can read the text as SentencePiece does.

    It applies the table of a model to clusters with their marks (and jamo), finds special tokens and XLNet's symbols
    before it splits, keeps U+0085 and a space where something was at the end, drops more marks than those that combine,
    and takes the other of two segmentations with the same score.
    """
    decomposed = unicodedata.normalize("NFKD", text)
    kinds = {unicodedata.category(character) for character in decomposed}
    marks = unicodedata.normalize("NFC", text) != text or any(
        unicodedata.category(character)[0] == "M" for character in unicodedata.normalize("NFKC", text)
    )
    hangul = any(0x1100 <= ord(character) < 0x1200 or 0xAC00 <= ord(character) < 0xD7B0 for character in decomposed)
    names = any(name in text for name in ("[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<mask>", "[UNK]", "[PAD]"))
    symbols = family == "xlnet" and re.search("[-()\".\u2013\u00a3\u20ac`]|''", decomposed)
    tidy = text == " ".join(text.split())
    long = any(len(word) > 30 for word in text.split())
    return tidy and not (marks or hangul or names or symbols or long or kinds & {"Cc", "Cf", "Co"} or "\ufffd" in text)


def class_reads_alike(text: str, family: str) -> bool:
    """Whether the class of transformers 5 does, which lacks DeBERTa's table, and the rule of the comma elsewhere."""
    if family == "deberta-v2":
        return unicodedata.normalize("NFKC", text) == text
    return "," not in text or family in ("xlm-roberta", "camembert")


def train(family: str, size: int = 420) -> bytes:
    """The .model file, of the corpus and of the difficult text, cased."""
    import sentencepiece

    model = io.BytesIO()
    lines = [line for document in documents.documents(40) for line in document.split("\n")]
    numbers = ["in 1,000 years, 25, or 3,5: 1, 2, 10, 1,000, 25, 34, 67 and 89"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines + numbers + 20 * TEXTS[:7] + difficult_text.texts()),
        model_writer=model,
        vocab_size=size,
        character_coverage=0.997,
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc",
        num_threads=1,
        minloglevel=2,
        **OPTIONS[family],
    )
    return model.getvalue()
