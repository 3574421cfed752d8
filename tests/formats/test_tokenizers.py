"""Tokenizers of Hugging Face directories: the same ids, or a refusal."""

import dataclasses
import json

import difficult_text
import documents
import numpy as np
import pytest
import tokenizers
from etils import epath
from huggingface_directory import DRAWN, TOKENS, directory, of_rows, refusal
from pretrained_model import CONFIG, assert_same, stored_model, whole
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.config import TrainVocabConfig
from bert_jax.data.preparation.vocabularies import run_train_vocab
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_huggingface, write_tokenizer
from bert_jax.tokenization.byte_level import ByteLevel
from bert_jax.tokenization.json_vocabulary import JsonVocabulary
from bert_jax.tokenization.sentence_pieces import sentencepiece_pipeline
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer, read_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False}


def addition(i, token, special=False):
    """An entry of added_tokens as transformers writes it."""
    return {"id": i, "content": token, **FLAGS, "normalized": not special, "special": special}


def berts(tokens=TOKENS, lowercase=False, model=(), **changes):
    """A tokenizer.json as transformers writes it for BERT."""
    cls, sep = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
    texts = [{"Sequence": {"id": text, "type_id": 0}} for text in "AB"]
    named = {name: {"id": name, "ids": [tokens.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [addition(i, token, special=True) for i, token in enumerate(tokens[:5])],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
        | {"strip_accents": None, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, texts[0], sep],
            "pair": [cls, texts[0], sep, texts[1], sep],
            "special_tokens": named,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        | {"max_input_chars_per_word": 100, "vocab": {token: i for i, token in enumerate(tokens)}}
        | dict(model),
    } | changes


def fast_tokenizer(place, tokens=TOKENS, **changes):
    """A directory with such a file, without a vocab.txt."""
    (directory(place) / "tokenizer.json").write_text(json.dumps(berts(tokens, **changes)))
    (place / "vocab.txt").unlink(missing_ok=True)
    return place


def test_the_vocabulary_of_a_tokenizer_json(tmp_path):
    tokenizer = open_huggingface(fast_tokenizer(tmp_path)).tokenizer
    assert tokenizer.tokens == TOKENS and not tokenizer.lowercase
    assert tokenizer.encode("ab B word7") == [91, 95, 1, 12]


@pytest.mark.parametrize("entries, rows", [(90, 96), (97, 128), (65, 128), (97, 104)])
def test_padded_rows_of_the_vocabulary_are_cut_and_a_warning_says_so(tmp_path, caplog, entries, rows):
    with caplog.at_level("WARNING", logger="absl"):
        stored = open_huggingface(of_rows(tmp_path, rows, TOKENS[:entries]))
    assert f"{rows - entries} rows of the word table beyond the {entries} entries" in caplog.text
    assert stored.model.vocab_size == stored.tokenizer.vocab_size == entries
    for path in ("embeddings/word/table", "mlm/bias"):
        np.testing.assert_array_equal(whole(stored.arrays[path]), DRAWN[path][:entries])


@pytest.mark.parametrize("entries, rows", [(96, 97), (90, 97), (49, 97), (48, 96), (86, 104), (30, 1000)])
def test_missing_entries_are_no_padding(tmp_path, entries, rows):
    says = refusal(of_rows(tmp_path, rows, TOKENS[:entries]))
    assert f"vocabulary of {entries} entries for a word table of {rows:,} rows" in says
    assert f"the last {rows - entries} rows are not padding" in says
    assert "append a line for each to its vocab.txt" in says
    fast_tokenizer(tmp_path, TOKENS[:entries])
    of_rows(tmp_path, rows, None)
    assert f"vocabulary of {entries} entries for a word table of {rows:,} rows" in refusal(tmp_path)


def test_too_many_entries_and_none(tmp_path):
    longer = directory(tmp_path, tokens=[*TOKENS, "more"])
    assert "vocabulary of 98 entries for a word table of 97 rows" in refusal(longer)
    assert open_huggingface(directory(tmp_path / "none", tokens=None)).tokenizer is None


@pytest.mark.parametrize(
    "file, content",
    [
        ("added_tokens.json", {"word3": 4}),
        ("added_tokens.json", {"word3": [8]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": "[CLS]"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: {"content": "[CLS]"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": ["[PAD]"]}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"99": {"content": "<e1>"}}}),
    ],
)
def test_tokens_added_beside_a_vocabulary_that_contradict_it(tmp_path, file, content):
    place = of_rows(tmp_path, 104)
    open_huggingface(place)
    (place / file).write_text(json.dumps(content))
    assert "to its vocabulary" in refusal(place) or "its added token '<e1>' the id 99" in refusal(place)


def test_entries_that_are_named_as_added_change_nothing(tmp_path):
    directory(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 4}))
    names = {str(i): {"content": token, "special": True} for i, token in enumerate(TOKENS[:5])}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": names}))
    assert open_huggingface(tmp_path).tokenizer.tokens == TOKENS


REFUSED = {  # changes of tokenizer.json, what the message says
    "no model": (dict(model=5), "has no model"),
    "a model that is none": (dict(model={"type": "BPE", "merges": 7}), "cannot be read by tokenizers"),
    "many gaps": (dict(model={"vocab": {"[PAD]": 0, "a": 9}}), "2 entries, but ids up to 9"),
    "an id twice": (dict(model={"vocab": {"[PAD]": 0, "a": 0}}), "2 entries, but the id 0 twice"),
    "an id below 0": (dict(model={"vocab": {"[PAD]": -1, "a": 0}}), "2 entries, but ids up to 0"),
    "a joining that is none": (dict(post_processor={"type": "Roberta"}), "cannot be read by tokenizers: "),
    "a joining of unknown tokens": (
        dict(
            post_processor=berts()["post_processor"]
            | {"special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}}
        ),
        "cannot be read by tokenizers: ",
    ),
    "no vocabulary": (dict(model={"vocab": []}), "no vocabulary"),
    "no specials": (dict(model={"vocab": {"a": 0}}, added_tokens=[]), "has no [PAD]"),
    "added tokens that are none": (dict(added_tokens=5, model={"vocab": {"a": 0}}), "has no [PAD]"),
    "at random": (dict(model={"type": "BPE", "merges": [], "dropout": 0.1}), "at random (dropout=0.1)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_json_that_nobody_can_read(tmp_path, name):
    changes, says = REFUSED[name]
    values = berts(**(changes if isinstance(changes.get("model", {}), dict) else {})) | (
        {} if isinstance(changes.get("model", {}), dict) else changes
    )
    (directory(tmp_path) / "tokenizer.json").write_text(json.dumps(values))
    (tmp_path / "vocab.txt").unlink()
    assert says in refusal(tmp_path)


TEXTS = (
    "low lower lowest",
    "  new   news, newest! ",
    "re\u0301sume\u0301 or r\u00e9sum\u00e9",
    "``wide'' \uff2c\uff2f\uff37",
    "an <|address|> in a text",
    "a [MASK] is a word, and <mask> too",
    "a\tb\nc",
    "",
)
BERT, ROBERTA = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
WORDS = "low lower lowest new newest news resume wide an in a text address is word and too or"


def byte_level(names=BERT, normalizer=None, separators=1, added=(), takes_space=True):
    """ModernBERT's parts, which are GPT-NeoX's: NFC, and added tokens that are found in a text before it is split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("l", "o"), ("lo", "w"), ("\u0120", "low"), ("n", "e"), ("ne", "w"), ("\u0120", "new"), ("e", "r")]
    entries = [*alphabet, *("".join(pair) for pair in merges)]
    fast = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(entries)}, merges))
    fast.normalizer, fast.pre_tokenizer = normalizer, pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_tokens([AddedToken(text, normalized=False) for text in added])
    fast.add_special_tokens([*names[:-1], AddedToken(names[-1], lstrip=takes_space)])
    return finished(fast, names, separators)


def unigram(names=BERT, separators=1, class_last=False):
    """As transformers 5 saves a DeBERTa, an ALBERT or an XLNet: without SentencePiece's table of normalization."""
    pieces = sorted({piece for word in WORDS.split() for piece in (f"\u2581{word}", *f"\u2581{word}")})
    scores = [(name, 0.0) for name in names] + [(piece, -float(len(pieces) - len(piece))) for piece in pieces]
    fast = tokenizers.Tokenizer(models.Unigram(scores, names.index(names[1]), False))
    steps = [normalizers.Replace("``", '"'), normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFKD()]
    fast.normalizer = normalizers.Sequence([*steps, normalizers.StripAccents(), normalizers.Lowercase()])
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    fast.decoder = decoders.Metaspace(prepend_scheme="always")
    fast.add_special_tokens(list(names))
    return finished(fast, names, separators, class_last)


def finished(fast, names, separators, class_last=False):
    _, _, cls, sep, _ = names
    begin, end, second = ("", f" {cls}:2", 1) if class_last else (f"{cls} ", "", 2 - separators)
    fast.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A {sep}{end}",
        pair=f"{begin}$A{f' {sep}' * separators} $B:{second} {sep}:{second}{end}",
        special_tokens=[(name, fast.token_to_id(name)) for name in (cls, sep)],
    )
    return fast


def write(directory, fast, names, config=True):
    directory.mkdir()
    (directory / "tokenizer.json").write_text(fast.to_str())
    keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    file = "tokenizer_config.json" if config else "special_tokens_map.json"
    (directory / file).write_text(json.dumps(dict(zip(keys, names))))
    return epath.Path(directory)


CASES = {
    "modernbert": lambda: (byte_level(normalizer=normalizers.NFC(), added=["<|address|>"]), BERT),
    "deberta of transformers 5": lambda: (byte_level(separators=2), BERT),
    "roberta with one separator": lambda: (byte_level(ROBERTA), ROBERTA),
    "roberta of transformers 5": lambda: (byte_level(ROBERTA, separators=2, takes_space=False), ROBERTA),
    "deberta-v3": lambda: (unigram(), BERT),
    "xlm-roberta": lambda: (unigram(ROBERTA, separators=2), ROBERTA),
    "xlnet": lambda: (unigram(class_last=True), BERT),
}


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    fast, names = CASES[request.param]()
    tokenizer = read_tokenizer(write(tmp_path / "there", fast, names))
    assert isinstance(tokenizer.vocabulary, JsonVocabulary)
    fast.encode_special_tokens = True  # "[MASK]" in a text is letters here
    return fast, tokenizer


def test_ids_are_those_of_the_file_and_its_post_processor(case):
    fast, tokenizer = case
    texts = [text for text in TEXTS if "mask" not in text.lower()]
    for given in ([(text,) for text in texts], list(zip(texts, texts[1:]))):
        ours = tokenizer([text if len(text) == 2 else text[0] for text in given])
        for row, mask, text in zip(ours["input_ids"], ours["attention_mask"], given):
            assert row[mask > 0].tolist() == fast.encode(*text).ids


def without_specials(tokenizer, ids):
    """A unigram model of the library also finds the special tokens among its pieces."""
    return [tokenizer.unk_id if i in tokenizer.special_ids else i for i in ids]


def test_special_tokens_in_a_corpus_are_text_and_added_ones_are_not(case):
    fast, tokenizer = case
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.mask_id not in ids
        assert ids == without_specials(tokenizer, fast.encode(text, add_special_tokens=False).ids)
    address = fast.token_to_id("<|address|>")
    assert (address in tokenizer.encode(TEXTS[4])) == (address is not None)


def test_offsets_are_those_of_the_library_and_of_what_it_leaves_out(case):
    fast, tokenizer = case
    for text in TEXTS:
        ids, offsets = tokenizer.encode_with_offsets(text)
        expected = fast.encode(text, add_special_tokens=False)
        assert ids == without_specials(tokenizer, expected.ids)
        covered = {place for start, end in expected.offsets for place in range(start, end)}
        for (start, end), (first, last) in zip(offsets, expected.offsets):
            assert text[start:end].strip() == text[start:end] and text[first:last].strip() in text[start:end]
            # What a piece has beside the library's characters belongs to no piece there.
            assert not covered & (set(range(start, end)) - set(range(first, last)))


@pytest.mark.parametrize("answer", ["``wide''", "re\u0301sume\u0301", "\u1112\u1161\u11ab", "\ufeffnews", "lowest"])
def test_no_character_of_an_answer_is_lost(case, answer):
    _, tokenizer = case
    text = f"a new {answer} in a text"
    begin, end = text.index(answer), text.index(answer) + len(answer)
    _, offsets = tokenizer.encode_with_offsets(text)
    within = [(first, last) for first, last in offsets if first < end and last > begin]
    assert text[within[0][0] : within[-1][1]] == answer


def test_a_mask_in_a_text(case):
    fast, tokenizer = case
    mask = tokenizer.tokens[tokenizer.mask_id]
    ids = tokenizer.encode_masked(f"low {mask} new")
    assert ids.count(tokenizer.mask_id) == 1
    fast.encode_special_tokens = False
    assert ids == fast.encode(f"low {mask} new", add_special_tokens=False).ids
    assert tokenizer.decode(ids) == f"low {mask} new"


def test_words_begin_at_spaces(case):
    _, tokenizer = case
    continues = tokenizer.continues_word()
    for text in ("low lower newest", "news"):
        ids = tokenizer.encode_words(text.split())
        assert [[bool(each) for each in continues[word]][:1] for word in ids] == [[False]] * len(ids)
        assert all(continues[i] for word in ids for i in word[1:])
    assert not continues[list(tokenizer.special_ids)].any()


def test_it_is_saved_exported_and_opened_again(case, tmp_path):
    fast, tokenizer = case
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.fingerprint == tokenizer.fingerprint and repr(again) == repr(tokenizer)
    (tmp_path / "out").mkdir()
    write_tokenizer(tokenizer, epath.Path(tmp_path / "out"), 128)
    exported = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert [exported.encode(text).ids for text in TEXTS] == [
        tokenizers.Tokenizer.from_str(fast.to_str()).encode(text).ids for text in TEXTS
    ]
    assert read_tokenizer(epath.Path(tmp_path / "out")).fingerprint == tokenizer.fingerprint


def test_what_our_own_kind_expresses_stays_of_that_kind(tmp_path):
    assert isinstance(read_tokenizer(write(tmp_path / "bert", byte_level(), BERT)).vocabulary, ByteLevel)
    roberta = byte_level(ROBERTA, separators=2)
    assert isinstance(read_tokenizer(write(tmp_path / "roberta", roberta, ROBERTA)).vocabulary, ByteLevel)


def test_the_mask_of_a_written_byte_level_vocabulary_takes_the_space_before_it(tmp_path):
    for name, separators in (("bert", 1), ("roberta", 2)):
        names = BERT if separators == 1 else ROBERTA
        tokenizer = read_tokenizer(write(tmp_path / name, byte_level(names, separators=separators), names))
        (tmp_path / f"{name} out").mkdir()
        write_tokenizer(tokenizer, epath.Path(tmp_path / f"{name} out"), 64)
        written = tokenizers.Tokenizer.from_file(str(tmp_path / f"{name} out" / "tokenizer.json"))
        text = f"low {names[4]} new"
        assert written.encode(text, add_special_tokens=False).ids == tokenizer.encode_masked(text)


def test_a_tokenizer_returns_segments_if_the_model_has_them(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path / "there", byte_level(), BERT))
    for has_segments in (True, False):
        directory = epath.Path(tmp_path / str(has_segments))
        directory.mkdir()
        write_tokenizer(tokenizer, directory, 64, has_segments)
        config = json.loads((directory / "tokenizer_config.json").read_text())
        assert ("token_type_ids" in config["model_input_names"]) == has_segments


def test_names_are_also_read_from_the_older_map(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path / "old", unigram(), BERT, config=False))
    assert [tokenizer.tokens[i] for i in tokenizer.special_ids] == list(BERT)


def swapped(fast):
    fast.post_processor = processors.TemplateProcessing(
        single="[SEP] $A", pair="[SEP] $A $B", special_tokens=[("[SEP]", fast.token_to_id("[SEP]"))]
    )
    return fast


@pytest.mark.parametrize(
    "fast, names, says",
    [
        (swapped(unigram()), BERT, "joins two texts as '.*SEP.*'; expected the class, a text"),
        (unigram(), (*BERT[:-1], "[BLANK]"), r"has no entry for the special tokens \[BLANK\]"),
        (unigram(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[M]")), BERT[:-1], "does not name mask_token"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, fast, names, says):
    with pytest.raises(UserError, match=says):
        read_tokenizer(write(tmp_path / "there", fast, names))


def test_a_tokenizer_json_alone_is_a_vocabulary(tmp_path):
    """Named or found in its directory, with tokenizer_config.json next to it or without."""
    directory = write(tmp_path / "there", unigram(), BERT)
    tokenizer = read_tokenizer(directory)
    for step in (directory / "tokenizer.json", directory):
        assert load_tokenizer(step).fingerprint == tokenizer.fingerprint
    (directory / "tokenizer_config.json").unlink()
    assert load_tokenizer(directory).fingerprint == tokenizer.fingerprint
    (tmp_path / "bert.json").mkdir()
    (tmp_path / "bert.json" / "tokenizer.json").write_text(json.dumps(berts()))
    assert load_tokenizer(tmp_path / "bert.json").kind == "wordpiece"
    with pytest.raises(UserError, match="lowercase=True, but the vocabulary in .* is cased"):
        load_tokenizer(write(tmp_path / "bytes", byte_level(), BERT), lowercase=True)


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
    corpus = documents.write(tmp_path / "corpus.txt", 100)
    with corpus.open("a") as file:
        file.write("".join(f"\n\n{text}" for text in difficult_text.texts() if len(text) < 90))
    vocabulary = TrainVocabConfig(input=str(corpus), output=str(tmp_path / "x.model"), size=700, method=method)
    tokenizer = run_train_vocab(vocabulary)
    write_tokenizer(tokenizer, epath.Path(tmp_path / "out"), 128)
    written = fast(tmp_path / "out")
    characters = [f"x{chr(c)}y" for c in (*range(33, 0x800), *range(0x800, 0xD800, 7), *range(0xE000, 0x2FFFF, 97))]
    texts = [*documents.documents(50, seed=5), *difficult_text.without_specials(difficult_text.texts()), *characters]
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
