"""A tokenizer.json that no vocabulary of ours can express, against the library with the file's own post-processor."""

import json

import pytest
import tokenizers
from etils import epath
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.formats.tokenizer_files import read_tokenizer, write_tokenizer
from bert_jax.tokenization.byte_level import ByteLevel
from bert_jax.tokenization.json_vocabulary import JsonVocabulary
from bert_jax.tokenization.tokenizer import load_tokenizer

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
        (unigram(), BERT[:-1], "does not name mask_token"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, fast, names, says):
    with pytest.raises(UserError, match=says) as found:
        read_tokenizer(write(tmp_path / "there", fast, names))
    assert "\n" not in str(found.value)


def test_a_file_of_transformers_is_no_vocabulary_of_its_own(tmp_path):
    directory = write(tmp_path / "there", unigram(), BERT)
    with pytest.raises(UserError, match="bert-jax convert .* writes the vocabulary"):
        load_tokenizer(directory / "tokenizer.json")
