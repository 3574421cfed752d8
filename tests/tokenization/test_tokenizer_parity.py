"""Our WordPiece against Google's published algorithm and against the stored readings of Hugging Face transformers 5.23.

Google's is equalled everywhere. Where transformers reads a text otherwise, `difficult_text.reasons` says why, and the
tests hold it to that: with a reason the readings differ, without one they agree to the last id.
"""

import json

import difficult_text
import pytest
from etils import epath
from google_tokenization import google
from oracles import make_tokenizer_oracle as oracle

from bert_jax.errors import UserError
from bert_jax.formats.tokenizer_files import read_tokenizer
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

CASINGS = {"uncased": True, "cased": False}


@pytest.fixture(scope="module")
def stored() -> dict:
    return json.loads(oracle.PATH.read_text())


@pytest.mark.parametrize("casing", CASINGS)
def test_difficult_text_equals_google(stored, casing):
    tokenizer = Tokenizer(WordPiece(stored["characters"], CASINGS[casing]))
    for text in difficult_text.texts():
        read = [tokenizer.tokens[i] for i in tokenizer.encode(text)]
        assert read == google(text, set(tokenizer.tokens), tokenizer.lowercase), ascii(text)


@pytest.mark.parametrize("casing", CASINGS)
@pytest.mark.parametrize("kind", oracle.KINDS)
def test_difficult_text_equals_transformers_but_for_known_reasons(stored, kind, casing):
    tokenizer = Tokenizer(WordPiece(stored["characters"], CASINGS[casing]))
    theirs = stored["difficult"][f"{kind} {casing}"]
    same = 0
    for text, ids in zip(difficult_text.texts(), theirs, strict=True):
        reasons = difficult_text.reasons(text, kind, tokenizer.lowercase)
        assert (tokenizer.encode(text) == ids) == (not reasons), (ascii(text), reasons)
        same += not reasons
    assert same > 60


@pytest.mark.slow
@pytest.mark.parametrize("casing", CASINGS)
def test_ten_megabytes_of_wikipedia(stored, shared_data, casing):
    """Both tokenizers of transformers, by a hash of each thousand lines; a known reason sets one or two lines apart."""
    tokenizer = load_tokenizer(shared_data / "vocab" / casing)
    lines = oracle.read_lines(shared_data / "wiki" / "wiki_train.txt.gz")
    rows = dict(zip(lines, tokenizer.encode_batch(lines)))
    for kind in oracle.KINDS:
        plain = [line for line in lines if not difficult_text.reasons(line, kind, tokenizer.lowercase)]
        assert len(lines) - len(plain) <= 3
        assert oracle.block_hashes([rows[line] for line in plain]) == stored["blocks"][f"{kind} {casing}"]


@pytest.mark.parametrize(
    "character, pieces",
    [
        *((space, ["a", "b"]) for space in " \t\r\n\u00a0"),
        ("\u0005", ["a", "##b"]),
        ("\U0001f4a9", ["a", "##\U0001f4a9", "##b"]),
        *((mark, ["a", mark, "b"]) for mark in "-$`."),
    ],
)
def test_published_facts_about_characters(character, pieces):
    """Google's tests of is_whitespace, is_control and is_punctuation."""
    tokenizer = Tokenizer(WordPiece([*difficult_text.SPECIALS, "a", "##b", "b", "##\U0001f4a9", *"-$`."], True))
    assert [tokenizer.tokens[i] for i in tokenizer.encode(f"a{character}b")] == pieces


def test_the_casing_that_a_directory_states_is_checked_against_its_vocabulary(tmp_path):
    """As Google's validate_case_matches_checkpoint, for every way in; one capital among many is no cased vocabulary."""
    tokens = [*difficult_text.SPECIALS, "the", "The", "##s", "Cat"]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(
        UserError, match=r"lowercase=True \(by .*_config.json\), but .*cased vocabulary.*'The'.*_case\": false"
    ):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match='lowercase=True, but .*cased vocabulary.*"do_lower_case": false'):
        read_tokenizer(epath.Path(tmp_path))  # of a Hugging Face directory
    assert not load_tokenizer(tmp_path, lowercase=False).lowercase
    many = [*difficult_text.SPECIALS, "The", *(f"w{i}" for i in range(200))]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in many))
    assert load_tokenizer(tmp_path).lowercase and load_tokenizer(tmp_path / "vocab.txt", lowercase=True).lowercase
