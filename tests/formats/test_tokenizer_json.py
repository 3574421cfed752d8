"""tokenizer.json as the library of Hugging Face reads it: the ids of our tokenizers."""

import dataclasses
import json

import difficult_text
import pytest
import small_corpus
import tokenizers
from etils import epath
from pretrained_model import CONFIG, stored_model
from same_models import assert_same

from bert_jax.config import TrainVocabConfig
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.tokenizer_files import write_tokenizer
from bert_jax.tokenization.sentence_pieces import sentencepiece_pipeline
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.tokenization.wordpiece import WordPiece


def fast(directory) -> tokenizers.Tokenizer:
    """tokenizer.json as the library reads it; names of specials in a text are left out of the comparison."""
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizer_json_gives_our_ids(tmp_path, lowercase):
    vocabulary = difficult_text.vocabulary()
    if lowercase:  # a cased one is refused
        vocabulary = [token for token in vocabulary if token == token.lower() or token in difficult_text.SPECIALS]
    tokenizer = Tokenizer(WordPiece(vocabulary, lowercase))
    write_tokenizer(tokenizer, epath.Path(tmp_path), 512)
    texts = difficult_text.without_specials(difficult_text.texts())
    assert len(texts) > 80
    written = fast(tmp_path)
    assert [written.encode(text, add_special_tokens=False).ids for text in texts] == tokenizer.encode_batch(texts)
    pair = written.encode("ab", "c")
    a, b = tokenizer.encode("ab"), tokenizer.encode("c")
    assert pair.ids == [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    assert pair.type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert written.encode("a [MASK] b", add_special_tokens=False).ids == tokenizer.encode_masked("a [MASK] b")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["do_lower_case"], config["model_max_length"], config["mask_token"]) == (lowercase, 512, "[MASK]")


@pytest.mark.parametrize("method", ["unigram", "bpe"])
def test_sentencepiece_vocabularies_as_tokenizer_json(tmp_path, method):
    corpus = small_corpus.write(tmp_path / "corpus.txt", 100)
    with corpus.open("a") as file:
        file.write("".join(f"\n\n{text}" for text in difficult_text.texts() if len(text) < 90))
    vocabulary = TrainVocabConfig(input=str(corpus), output=str(tmp_path / "x.model"), size=700, method=method)
    tokenizer = run_train_vocab(vocabulary)
    write_tokenizer(tokenizer, epath.Path(tmp_path / "out"), 128)
    written = fast(tmp_path / "out")
    characters = [
        f"x{chr(code)}y" for code in (*range(33, 0x800), *range(0x800, 0xD800, 7), *range(0xE000, 0x2FFFF, 97))
    ]
    texts = [*small_corpus.documents(50, seed=5), *difficult_text.without_specials(difficult_text.texts()), *characters]
    differing = [text for text in texts if written.encode(text, add_special_tokens=False).ids != tokenizer.encode(text)]
    # Two marks on a letter, written apart; U+0344 is two in one.
    assert differing == [text for text in texts if "e\u0301\u0323" in text or "\u0344" in text]
    assert written.decode(tokenizer.encode("the gardener digs")) == "the gardener digs"
    config = dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size)
    stored = stored_model(config=config, tokenizer=tokenizer, kind="bert_jax")
    write_huggingface(stored, tmp_path / "out", "with SentencePiece")
    assert_same(stored, open_huggingface(tmp_path / "out"))


def test_sentencepiece_options_that_tokenizer_json_lacks():
    def field(number, value):
        return bytes([number << 3 & 127 | 128, number >> 4, value]) if number > 15 else bytes([number << 3, value])

    def nested(number, message):
        return bytes([number << 3 | 2, len(message)]) + message

    pieces = b"".join(nested(1, nested(1, piece)) for piece in (b"[UNK]", b"a"))
    for trainer, normalizer, refused in (
        (field(3, 1), b"", False),
        (field(3, 4), b"", True),
        (field(35, 1), b"", True),
        (field(24, 1), b"", True),
        (b"", field(3, 0), True),
        (b"", field(4, 0), True),
    ):
        model = pieces + nested(2, trainer) + nested(3, normalizer)
        if refused:
            with pytest.raises(UserError, match="cannot be written as a tokenizer.json"):
                sentencepiece_pipeline(model, 0)
        else:
            assert sentencepiece_pipeline(model, 0).get_vocab() == {"[UNK]": 0, "a": 1}
