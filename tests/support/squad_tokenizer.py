"""A tokenizer of a few letters, for questions and contexts made of them."""

from bert_jax.tokenization.tokenizer import WordPieceTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdeé中"
TOKENIZER = WordPieceTokenizer(
    [*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), "ab", "##cd", "bad", *".,()-'"], True
)
