"""What the files next to a vocabulary ask for, and files of no kind of ours: the ids of `tokenizers`, or a refusal."""

import collections
import json
import os
import random

import family_pieces
import numpy as np
import pytest
import tokenizer_directories as forms
from etils import epath
from huggingface_directory import DRAWN, TOKENS, directory, of_rows, refusal
from peer_outputs import run_with_peer
from pretrained_model import whole
from vocabularies import byte_level

import bert_jax
from bert_jax.errors import UserError
from bert_jax.formats.huggingface import open_huggingface
from bert_jax.formats.huggingface_export import write_tokenizer
from bert_jax.tokenization.directories import carried_settings
from bert_jax.tokenization.json_vocabulary import JsonVocabulary
from bert_jax.tokenization.tokenizer import load_tokenizer, read_tokenizer


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Each form read, and where it and its export are."""
    place, found = tmp_path_factory.mktemp("forms"), {}
    for name in forms.FORMS:
        tokenizer = read_tokenizer(epath.Path(forms.write(name, place / name)))
        assert tokenizer is not None
        (out := place / f"{name} exported").mkdir()
        write_tokenizer(tokenizer, epath.Path(out), 64)
        found[name] = tokenizer, place / name, out
    return found


@pytest.mark.parametrize("name", forms.FORMS)
def test_ids_are_those_of_the_library(opened, name):
    tokenizer, place, out = opened[name]
    assert isinstance(tokenizer.vocabulary, JsonVocabulary)
    fast = forms.pipeline(name)
    expected = [fast.encode(text, add_special_tokens=False).ids for text in forms.TEXTS]
    assert tokenizer.encode_batch(forms.TEXTS) == expected
    assert len({i for ids in expected for i in ids}) > 9 and tokenizer.vocab_size == fast.get_vocab_size()
    for text, ids in zip(forms.TEXTS, expected):
        found, offsets = tokenizer.encode_with_offsets(text)
        assert found == ids and all(0 <= start <= end <= len(text) for start, end in offsets)
    words = tokenizer.encode_words(forms.TEXTS)
    flat, lengths = tokenizer.encode_flat(forms.TEXTS)
    assert flat.tolist() == [i for ids in words for i in ids] and lengths.tolist() == [len(ids) for ids in words]
    exported = read_tokenizer(epath.Path(out))
    assert exported.fingerprint == tokenizer.fingerprint
    (twice := place / "exported again").mkdir()
    write_tokenizer(exported, epath.Path(twice), 64)
    assert {file.name: file.read_bytes() for file in twice.iterdir()} == {
        file.name: file.read_bytes() for file in out.iterdir() if file.name != "config.json"
    }
    tokenizer.save(place / "saved")
    for again in (load_tokenizer(place / "saved"), load_tokenizer(place)):
        assert again.fingerprint == tokenizer.fingerprint


def test_auto_tokenizer_gives_the_same_ids_before_and_after_an_export(opened, peer, tmp_path):
    places = [place for _, *both in opened.values() for place in both]
    for place in places:
        (place / "config.json").write_text('{"model_type": "bert"}')
    request = [{"path": str(place), "texts": forms.TEXTS} for place in places]
    (tmp_path / "request.json").write_text(json.dumps({"models": [], "inputs": {}, "tokenizers": request}))
    run_with_peer(peer, "open_with_transformers.py", tmp_path / "request.json", tmp_path / "result.npz")
    reports = json.loads(str(np.load(tmp_path / "result.npz")["report"]))["tokenizers"]
    for (name, (tokenizer, *_)), *both in zip(opened.items(), reports[::2], reports[1::2], strict=True):
        for report in both:
            assert report["ids"] == tokenizer.encode_batch(forms.TEXTS), name
            assert report["pair"][0] == tokenizer([("one text", "another")])["input_ids"][0].tolist(), name
            assert tuple(report["specials"]) == tokenizer.special_ids, name


@pytest.mark.parametrize("name, mark", [("Gemma", "▁"), ("bytes split by an expression", "Ġ")])
def test_a_word_is_read_as_after_a_space(opened, name, mark):
    tokenizer = opened[name][0]
    ((first, *_),) = tokenizer.encode_words(["word"])
    assert tokenizer.tokens[first].startswith(mark) and not tokenizer.tokenize("word")[0].startswith(mark)
    assert not tokenizer.continues_word()[first]


def test_added_tokens_keep_their_case(opened):
    tokenizer = opened["added tokens"][0]
    assert tokenizer.tokens[-3:] == [*forms.ADDED, forms.SPECIAL]
    assert tokenizer.tokenize(f"neue wörter {forms.SPECIAL}") == [forms.ADDED[1], forms.SPECIAL]


def test_words_of_a_list_of_words_continue_none(opened):
    assert not opened["words"][0].continues_word().any()


SMALL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "##s"]


def vocabulary(place, text: str, **settings):
    place.mkdir(exist_ok=True)
    (place / "vocab.txt").write_bytes(text.encode())
    if settings:
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


@pytest.mark.parametrize(
    "lines, ids, size",
    [
        ([*SMALL, "", "cow"], [5, 7, 9, 6], 10),
        ([*SMALL, "cow", "cat", "dog"], [9, 7, 8, 10], 11),
        ([*SMALL, "cow", "", ""], [5, 7, 8, 6], 11),
        (["[UNK]", *SMALL, "cow", "[PAD]"], [6, 8, 9, 7], 11),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ids_are_the_numbers_of_lines_and_the_later_of_two_wins(tmp_path, lines, ids, size, end):
    """As in Google's load_vocab and transformers' BertTokenizerLegacy."""
    place = vocabulary(tmp_path / "there", end.join([*lines, ""]))
    tokenizer = load_tokenizer(place)
    numbers = {token: number for number, token in enumerate(lines)}
    assert tokenizer.encode("cats cow dog") == ids == [numbers[piece] for piece in ("cat", "##s", "cow", "dog")]
    assert (tokenizer.vocab_size, tokenizer.pad_id) == (size, numbers["[PAD]"])
    (out := tmp_path / "out").mkdir()
    write_tokenizer(tokenizer, epath.Path(out), 64)
    for again in (read_tokenizer(epath.Path(out)), load_tokenizer(out / "vocab.txt")):
        assert again.fingerprint == tokenizer.fingerprint
    (out / "vocab.txt").unlink()  # a tokenizer.json has no entry for an id that is never given
    alone = read_tokenizer(epath.Path(out))
    assert alone.encode("cats cow dog") == ids and alone.vocab_size == max(numbers.values()) + 1


def test_blank_lines_at_the_end_need_no_rows(tmp_path):
    place = directory(tmp_path)
    (place / "vocab.txt").write_text("\n".join(TOKENS) + "\n\n\n")
    assert open_huggingface(place).tokenizer.tokens == TOKENS
    place = of_rows(tmp_path / "more", 98)
    (place / "vocab.txt").write_text("\n".join(TOKENS) + "\n\n\n")
    assert open_huggingface(place).tokenizer.tokens == [*TOKENS, ""]


def test_added_tokens_behind_an_entry_that_is_twice_keep_their_ids(tmp_path):
    place = vocabulary(tmp_path, "\n".join([*SMALL, "cat", ""]))
    (place / "added_tokens.json").write_text(json.dumps({"<e1>": 9}))
    assert read_tokenizer(epath.Path(place)).encode("cat<e1>cat") == [8, 9, 8]


@pytest.mark.parametrize("file", ["added_tokens.json", "tokenizer.json"])
def test_added_tokens_are_read_kept_and_exported_with_their_rows(tmp_path, file):
    source = of_rows(tmp_path / "there", 99)
    if file == "added_tokens.json":
        (source / file).write_text(json.dumps({"<e1>": 97, "</e1>": 98}))
    else:
        fast = forms.tokenizers.Tokenizer.from_str(forms.of_json(_fast(TOKENS))["tokenizer.json"])
        fast.add_tokens(["<e1>", "</e1>"])
        (source / file).write_text(fast.to_str())
    stored = open_huggingface(source)
    expected = [97, TOKENS.index("word7"), 98, TOKENS.index("a")]
    assert stored.tokenizer.encode("<e1>word7</e1> a") == expected
    bert_jax.convert(source, tmp_path / "ours", to="bert_jax")
    bert_jax.convert(tmp_path / "ours", tmp_path / "back", to="huggingface")
    again = open_huggingface(tmp_path / "back")
    assert again.tokenizer.fingerprint == stored.tokenizer.fingerprint
    assert again.model.vocab_size == 99 == json.loads((tmp_path / "back" / "config.json").read_text())["vocab_size"]
    rows = whole(again.arrays["embeddings/word/table"])
    np.testing.assert_array_equal(rows, np.resize(DRAWN["embeddings/word/table"], rows.shape))


def _fast(tokens):
    ids = {token: i for i, token in enumerate(tokens)}
    fast = forms.tokenizers.Tokenizer(forms.models.WordPiece(ids, unk_token="[UNK]"))
    fast.normalizer = forms.normalizers.BertNormalizer(lowercase=False)
    fast.pre_tokenizer = forms.pre_tokenizers.BertPreTokenizer()
    fast.add_special_tokens(tokens[:5])
    return fast


def test_tokens_added_to_bytes_and_pieces_are_found(tmp_path):
    """vocab.json or a .model alone: the pipeline of `tokenizers` for it, with the tokens."""
    tokenizer = byte_level()
    tokenizer.save(tmp_path)
    settings = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<e1>": tokenizer.vocab_size}))
    again = read_tokenizer(epath.Path(tmp_path))
    before, after = tokenizer.encode("the rose "), tokenizer.encode(" blooms")
    assert again.encode("the rose <e1> blooms") == [*before, tokenizer.vocab_size, *after]
    assert again.separators == tokenizer.separators == 2 and again.mask_id == tokenizer.mask_id
    assert again.encode_masked("the <mask> blooms") == tokenizer.encode_masked("the <mask> blooms")


def test_basic_tokenization_is_left_out_where_the_settings_say_so(tmp_path):
    place = vocabulary(tmp_path, "\n".join([*SMALL, "cats,", "CAT", ""]), do_basic_tokenize=False, do_lower_case=True)
    assert load_tokenizer(place).tokenize("cats, cats CAT Dog ,") == ["cats,", "cat", "##s", "CAT", "[UNK]", "[UNK]"]


def test_a_file_of_pieces_that_its_class_reads_otherwise_gives_way_to_the_tokenizer_json(opened, tmp_path):
    """T5 and Llama have a .model as well, whose ids mean something else than those of the families here."""
    place = forms.write("Metaspace", tmp_path / "there")
    settings = json.loads((place / "tokenizer_config.json").read_text()) | {"tokenizer_class": "T5TokenizerFast"}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    (place / "spiece.model").write_bytes(family_pieces.train("albert"))
    assert read_tokenizer(epath.Path(place)).fingerprint == opened["Metaspace"][0].fingerprint
    (place / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="names T5Tokenizer, which does not read spiece.model as AlbertTokenizer"):
        read_tokenizer(epath.Path(place))


REFUSED = {
    "MeCab": ({"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}, "MeCab"),
    "characters": ({"tokenizer_class": "BertJapaneseTokenizer", "subword_tokenizer_type": "character"}, "by character"),
    "another class": ({"tokenizer_class": "RobertaTokenizerFast"}, "names RobertaTokenizer, which does not read vocab"),
    "Python of its own": ({"auto_map": {"AutoTokenizer": ["a.B", None]}, "tokenizer_class": "B"}, "names 'B', a class"),
    "another prefix": ({"wordpieces_prefix": "@@"}, "wordpieces_prefix='@@', which is not read here"),
    "words left whole": ({"never_split": ["don't"]}, r"never_split=\[\"don't\"\], words that are left whole"),
    "no word": ({"do_word_tokenize": False}, "do_word_tokenize=False"),
    "a class that is none": ({"do_basic_tokenize": "no"}, "do_basic_tokenize='no' where true or false"),
    "no unknown word": ({"unk_token": "<unk>"}, "has no <unk>"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_ask_for_what_is_not_done_here(tmp_path, name):
    settings, says = REFUSED[name]
    place = vocabulary(tmp_path, "\n".join([*SMALL, ""]), **settings)
    for read in (load_tokenizer, lambda place: read_tokenizer(epath.Path(place))):
        with pytest.raises(UserError, match=says):
            read(place)


def test_the_class_that_config_json_names_counts_as_well(tmp_path):
    place = directory(tmp_path, tokenizer_class="BertJapaneseTokenizer")
    assert "config.json next to it names BertJapaneseTokenizer" in refusal(place)


def test_settings_that_change_nothing_are_read(tmp_path, caplog):
    names = dict(zip(forms.KEYS, SMALL))
    settings = {"never_split": SMALL[:5], "wordpieces_prefix": "##", "strip_accents": None, "model_max_length": 512}
    place = vocabulary(tmp_path, "\n".join([*SMALL, ""]), tokenizer_class="BertTokenizer", **names, **settings)
    assert load_tokenizer(place).kind == "wordpiece" and not caplog.records
    (place / "tokenizer_config.json").write_text('{"reads_backwards": true}')
    load_tokenizer(place)
    assert "has reads_backwards, which nothing here reads" in caplog.text


def test_a_file_that_adds_no_class_token_is_read_as_its_class_reads_it(tmp_path):
    """BertTokenizer puts [CLS] and [SEP] around a text whatever the file says; the plain class does what that says."""
    values = json.loads(_fast(SMALL).to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    assert load_tokenizer(tmp_path).kind == "wordpiece"
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UserError, match="puts no class and separator tokens around a text"):
        load_tokenizer(tmp_path)


ODD = (
    *(None, True, -1, 5, 10**9, 2**40, 1.5, "", "x", "[UNK]", [], {}, [7], ["a", "b"], [["a", 1.0]], "Sequence"),
    *({"type": "Sequence"}, {"type": "ByteLevel"}, {"content": "q"}, {"content": 7}, {"a": 0}, {"a": "b"}),
)
"""Values that a reader may not expect where they stand."""


def _places(value):
    """Every container within a JSON value, with one of its keys; of large ones the first entries."""
    for key in (list(value)[:20] if isinstance(value, dict) else range(len(value))[:12]) if value else ():
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _damaged(text: str, draw: random.Random) -> str:
    value = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        container, key = draw.choice(list(_places(value)) or [({"": 0}, "")])
        if draw.random() < 0.25:
            del container[key]
        else:
            container[key] = json.loads(json.dumps(draw.choice(ODD)))
    return json.dumps(value)


@pytest.mark.slow
def test_damaged_files_are_refused_in_one_line_or_read(tmp_path):
    draw, outcomes = random.Random(1), collections.Counter()
    intact = {name: form() for name, form in forms.FORMS.items()}
    for number in range(2_000 if "BERT_JAX_EXHAUSTIVE" in os.environ else 400):
        (place := tmp_path / str(number)).mkdir()
        for file, text in intact[draw.choice(list(intact))].items():
            if draw.random() < 0.9:
                (place / file).write_text(_damaged(text, draw) if file != "vocab.txt" and draw.random() < 0.6 else text)
        try:
            tokenizer = read_tokenizer(epath.Path(place))
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1_000
            outcomes["refused"] += 1
            continue
        if tokenizer is not None:
            (out := place / "out").mkdir()
            write_tokenizer(tokenizer, epath.Path(out), 64, carried=carried_settings(epath.Path(place)))
            assert read_tokenizer(epath.Path(out)).encode_batch(forms.TEXTS[-3:]) == tokenizer.encode_batch(
                forms.TEXTS[-3:]
            )
            outcomes["read"] += 1
    assert min(outcomes["refused"], outcomes["read"]) > 100


@pytest.mark.parametrize("files", ["vocab.txt", "tokenizer.json"])
def test_mpnet_joins_texts_by_two_separators_whatever_their_names_and_the_file(tmp_path, files):
    """As transformers 5.24 does, which exchanges what a tokenizer.json says."""
    names = {f"{key}_token": f"[{key.upper()}]" for key in ("pad", "unk", "cls", "sep", "mask")}
    settings = {"tokenizer_class": "MPNetTokenizer", "do_lower_case": True, **names}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    entries = [*names.values(), "a", "b"]
    if files == "vocab.txt":
        (tmp_path / files).write_text("\n".join(entries))
    else:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors

        made = Tokenizer(models.WordPiece({each: i for i, each in enumerate(entries)}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        made.save(str(tmp_path / files))
    found = load_tokenizer(tmp_path)([("a", "b")])
    assert found["input_ids"][0].tolist() == [2, 5, 3, 3, 6, 3] and not found["token_type_ids"][0].any()
