"""A tokenizer of a few letters, for questions and contexts made of them."""

from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdeé中"
TOKENIZER = Tokenizer(
    WordPiece([*SPECIALS, *LETTERS, *("##" + c for c in LETTERS), "ab", "##cd", "bad", *".,()-'"], True)
)
