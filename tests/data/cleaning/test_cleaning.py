"""Cleaning: rules of quality, boundaries of words, and texts of evaluations."""

import collections
import dataclasses
import gzip
import json
import random
import re
import string
import unicodedata

import numpy as np
import pytest
from documents import contents, random_documents, run, write_corpus
from etils import epath

from bert_jax.config.corpora import CleaningConfig
from bert_jax.corpus import contamination, rules
from bert_jax.corpus.cleaner import SAMPLES, Cleaner, merged, read_contamination, record
from bert_jax.corpus.contamination import (
    Contamination,
    between_spaces,
    evaluation_files,
    overlapping,
    read_texts,
    word_hashes,
    words_with_marks,
    words_without_marks,
)
from bert_jax.corpus.duplicates import HASHES, signature, similarity, sketches
from bert_jax.corpus.rules import language_of, without_contacts
from bert_jax.data.preparation import local_run
from bert_jax.data.store import open_store
from bert_jax.errors import UserError

TEXTS = {
    "en": ["The committee published its report about the harbour on Monday.", "Nobody was surprised by what it said."],
    "de": ["Der Ausschuss hat am Montag seinen Bericht über den Hafen veröffentlicht.", "Niemand war überrascht."],
    "fr": ["La commission a publié lundi son rapport sur le port.", "Personne n'a été surpris de ce qu'il disait."],
}


def test_the_language_of_a_text_is_told_and_of_none_is_not():
    assert {name: language_of(lines) for name, lines in TEXTS.items()} == {name: name for name in TEXTS}
    assert language_of(["12 + 34", ""]) == "und"


def test_contacts_are_cut_out():
    line = "Write to some.one@mail.example.org or call (650) 253-0000, +49 30 901820."
    assert without_contacts(line, "US") == "Write to or call , ."
    for kept in ("In 1998-2004 it sold 10,000,000 of them at 192.168.10.20.", "At @home, a  b."):
        assert without_contacts(kept, "US") == kept
    assert without_contacts("Call 030 901820 now.", "DE") == "Call now."
    assert without_contacts("Call 030 901820 now.", "US") == "Call 030 901820 now."
    run_of_letters = "x" * 1_000_000  # as of a picture in text; tried from each letter on: most of an hour
    assert without_contacts(f"{run_of_letters} a@b.org", "US") == run_of_letters


def test_steps_run_in_order_and_say_what_they_did(tmp_path):
    (tmp_path / "dev.txt").write_text("Nobody was surprised by what it said, and nobody ever will be.\n")
    decontaminate = str(tmp_path / "dev.txt")
    clean = CleaningConfig(unicode="repair", languages=("en",), decontaminate=decontaminate, contacts="remove")
    cleaner = Cleaner(clean, "en")
    lines = ["The harbourâ€™s report is at mail@example.org on Monday.", TEXTS["en"][0], *TEXTS["en"][1:]]
    found = cleaner([*lines, "Indeed, nobody was surprised by what it said and nobody ever will be."])
    assert found.lines == ["The harbour's report is at on Monday.", *lines[1:]]
    assert [(each.step, each.documents, each.paragraphs) for each in found.records] == [
        ("unicode", 0, 1), ("decontaminate", 0, 1), ("contacts", 0, 1),
    ]  # fmt: skip
    assert found.records[0].samples == (lines[0],)
    assert cleaner(TEXTS["de"]).records == [
        record("languages.de", " ".join(TEXTS["de"]), documents=1, characters=sum(map(len, TEXTS["de"])))
    ]
    assert cleaner([]).lines == [] and not CleaningConfig(overlap=9).cleans


def test_records_add_up_in_any_order_and_keep_the_same_samples():
    records = [record(f"step{number % 2}", f"text {number}", documents=1, characters=number) for number in range(40)]
    whole = merged(records)
    assert [(each.step, each.documents, each.characters) for each in whole] == [("step0", 20, 380), ("step1", 20, 400)]
    assert all(len(each.samples) == SAMPLES for each in whole)
    random.Random(0).shuffle(records)
    parts = [merged(records[start : start + 7]) for start in range(0, 40, 7)]
    assert merged(each for part in parts for each in part) == whole


def planted(count: int = 30) -> list[list[str]]:
    """Letters, and among them documents in other languages, one of them longer than many blocks."""
    documents = [[*TEXTS["en"], *lines] for lines in random_documents(count)]
    documents[3::7] = [TEXTS["de"]] * len(documents[3::7])
    documents[5] = TEXTS["fr"] * 30
    return documents


def test_a_clean_corpus_makes_the_store_of_what_stays(tmp_path, vocab, small_blocks):
    clean = CleaningConfig(languages=("en",))
    keep = Cleaner(clean, "en")
    documents = [lines for lines in planted() if len(lines) < 20]
    expected = [lines for lines in documents if keep(lines).lines]
    run(write_corpus(tmp_path / "all.txt", documents), vocab, tmp_path / "cleaned", clean=clean)
    run(write_corpus(tmp_path / "kept.txt", expected), vocab, tmp_path / "kept")
    cleaned, kept = (open_store(tmp_path / name) for name in ("cleaned", "kept"))
    assert 0 < len(expected) < len(documents) and cleaned.manifest.counts == kept.manifest.counts
    assert {each.step: each.documents for each in cleaned.manifest.cleaning}["languages.de"] >= 3


@pytest.mark.usefixtures("forked_workers")
def test_cleaning_is_the_same_for_any_workers_by_beam_and_when_interrupted(tmp_path, vocab, small_blocks, monkeypatch):
    corpus, clean = write_corpus(tmp_path / "a.txt", planted()), CleaningConfig(languages=("en",), contacts="remove")
    for workers in (1, 2):
        run(corpus, vocab, tmp_path / f"by_{workers}", clean=clean, workers=workers)
    run(corpus, vocab, tmp_path / "by_beam", clean=clean, runner="beam")
    monkeypatch.setattr(local_run, "RECORD_SECONDS", 0)
    merge, calls = local_run.merged, iter(range(9))

    def interrupted(records):
        if next(calls) == 5:
            raise KeyboardInterrupt
        return merge(records)

    with monkeypatch.context() as patched:
        patched.setattr(local_run, "merged", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(corpus, vocab, tmp_path / "resumed", clean=clean)
    with pytest.raises(UserError, match=r"made from something else \(.*languages"):
        run(corpus, vocab, tmp_path / "resumed", clean=dataclasses.replace(clean, languages=("en", "de")))
    run(corpus, vocab, tmp_path / "resumed", clean=clean)
    assert contents(tmp_path / "by_1") == contents(tmp_path / "by_2") == contents(tmp_path / "resumed")
    assert contents(tmp_path / "by_beam") == contents(tmp_path / "by_1")
    assert open_store(tmp_path / "by_1").manifest.cleaning


def test_what_follows_a_removed_part_of_a_document_is_no_part_of_the_document_before(tmp_path, vocab, small_blocks):
    german, english = TEXTS["de"] * 20, TEXTS["en"] * 20  # each of them is longer than a block
    documents = [TEXTS["en"], [*german, *english], TEXTS["en"]]
    run(write_corpus(tmp_path / "a.txt", documents), vocab, tmp_path / "store", clean=CleaningConfig(languages=("en",)))
    store = open_store(tmp_path / "store")
    assert store.num_documents == 3 and store.document_sentences[:2].tolist() == [0, len(TEXTS["en"])]


@pytest.mark.parametrize(
    ("clean", "message"),
    [
        (CleaningConfig(languages=("xx",)), "clean.languages=xx cannot be identified; give codes"),
        (CleaningConfig(languages=("en", "en")), "names a language twice"),
        (CleaningConfig(quality=("good",)), "clean.quality=good must be some of gopher, c4"),
        (CleaningConfig(decontaminate="none.tsv"), "clean.decontaminate=none.tsv does not exist"),
        (CleaningConfig(overlap=3), "clean.overlap=3 must be at least 8 words"),
        (CleaningConfig(contacts="remove", phone_region="us"), "clean.phone_region=us must be the code of a country"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_written(tmp_path, vocab, clean, message):
    corpus = write_corpus(tmp_path / "a.txt", random_documents(3))
    with pytest.raises(UserError, match=message):
        run(corpus, vocab, tmp_path / "store", clean=clean)
    assert not (tmp_path / "store").exists()


SENTENCE = "The quick brown fox jumps over the lazy dog and that is what they have to do with it today."


def prose(words: int, seed: int = 0) -> list[str]:
    """Lines of random words, with stop words, of which none is repeated."""
    rng = random.Random(seed)
    spelled = ["".join(rng.choices(string.ascii_lowercase, k=5)) for _ in range(words)]
    spelled[:3] = ["the", "of", "and"]
    return [" ".join(spelled[start : start + 10]) for start in range(0, words, 10)]


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        (None, prose(50)),
        ("few_words", prose(49)),
        (None, prose(100_000)),
        ("many_words", [*prose(100_000), "more"]),
        ("length_of_words", ["a b " * 30]),
        ("length_of_words", ["internationalizations " * 60]),
        (None, [*prose(100), "# " * 10]),
        ("symbols", [*prose(100), "# " * 13]),
        ("symbols", [line + " …" * 2 for line in prose(100)]),
        ("bullets", ["- " + line for line in prose(100)]),
        ("ellipses", [line + ("..." if index % 3 == 0 else "") for index, line in enumerate(prose(60))]),
        ("words_without_letters", [line + " 123 456 789" for line in prose(100)]),
        ("stop_words", [" ".join(line.split()[3:]) for line in prose(100)]),
        ("repeated_lines", [*prose(100), *prose(100)[:5]]),
        ("top_2_words", [f"{line} internationally regarded" for line in prose(60)]),
    ],
)
def test_each_rule_of_gopher_has_its_limit(rule, lines):
    assert rules.broken_rule(lines, english=True) == rule


def test_stop_words_are_asked_of_english_only():
    lines = [" ".join(line.split()[3:]) for line in prose(100)]
    assert rules.broken_rule(lines, english=False) is None


def shares_by_tuples(words: list[str], size: int) -> tuple[float, float]:
    """The two shares of table A1 as the words of the paper say them."""
    rows = [tuple(words[place : place + size]) for place in range(len(words) - size + 1)]
    counts, total = collections.Counter(rows), sum(map(len, words))
    most = max(counts.values(), default=0)
    top = max((sum(map(len, row)) * most for row, count in counts.items() if count == most > 1), default=0)
    covered = {at + step for at, row in enumerate(rows) if counts[row] > 1 for step in range(size)}
    return top / total, sum(len(words[place]) for place in covered) / total


@pytest.mark.parametrize("size", [2, 5, 10])
@pytest.mark.parametrize("seed", range(5))
def test_shares_of_repetition_are_those_counted_with_tuples(size, seed):
    rng = random.Random(seed)
    words = rng.choices(["a", "bb", "ccc"], k=rng.choice((size - 1, 30, 60)))
    hashes = word_hashes(" ".join(words))
    lengths = np.array(list(map(len, words)))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    found = (
        rules._share_of_the_top(overlapping(hashes, size), ends, size),
        rules._share_repeated(overlapping(hashes, size), lengths, size),
    )
    assert found == pytest.approx(shares_by_tuples(words, size))


PAGES = [
    [SENTENCE] * 3,
    [SENTENCE] * 2,
    [SENTENCE, "Short line here.", "No end mark in this line of many words", SENTENCE, SENTENCE],
    [SENTENCE, "We use cookies on this site, as you may know already.", SENTENCE, SENTENCE],
    [SENTENCE, "Please enable JavaScript to see all of this page.", SENTENCE, SENTENCE],
    [SENTENCE, SENTENCE, SENTENCE, "This page has a { curly bracket in a line."],
    [SENTENCE, SENTENCE, SENTENCE, "A page of Lorem ipsum and nothing else at all."],
    [SENTENCE, "This has a citation [12] and another [citation needed] in the middle of it.", SENTENCE, SENTENCE],
    [SENTENCE, "It goes on and on and on and on ...", SENTENCE, SENTENCE],
    [SENTENCE, f"This has a long word {'x' * 1001} in the middle of it.", SENTENCE, SENTENCE],
    [SENTENCE, '"Is this what they said?" he asked, "then let us go."', "What? No! Yes. We are here."],
    ["{ in a line that goes for another reason", SENTENCE, SENTENCE, SENTENCE],
]


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_cleaned_as_by_the_code_that_made_c4(page, monkeypatch):
    c4_utils = pytest.importorskip("tensorflow_datasets.text.c4_utils")
    monkeypatch.setattr(c4_utils, "_get_sentences", lambda line: [None] * rules.count_sentences(line))
    counted = collections.Counter()
    clean = c4_utils.get_clean_page_fn()
    expected = list(
        clean(c4_utils.PageFeatures(text="\n".join(page)), counter_inc_fn=lambda name: counted.update([name]))
    )
    kept, gone, rule = rules.clean_page(page)
    assert kept == (expected[0].text.split("\n") if expected else [])
    assert (rule is None) == bool(expected)
    if expected:
        filtered = sum(count for name, count in counted.items() if name.startswith("line-filtered"))
        assert sum(map(len, gone.values())) == filtered == len(page) - len(kept)


def test_sentences_of_a_line_are_counted_by_their_ends():
    lines = ("One. Two! Three?", 'He said "no." And left.', "3.5 is one.")
    assert [rules.count_sentences(line) for line in lines] == [3, 2, 1]


@pytest.mark.parametrize(
    ("text", "words", "with_marks"),
    [
        ("BERT模型，2018年。", ["BERT", "模", "型", "2018", "年"], ["BERT", "模", "型，", "2018", "年。"]),
        ("カタカナ・ひらがな々", list("カタカナひらがな々"), ["カ", "タ", "カ", "ナ・", *"ひらがな々"]),
        ("ที่นี่ดี", ["ที่", "นี่", "ดี"], ["ที่", "นี่", "ดี"]),  # vowel signs and tones stay with their letters
        ("ភាសា។", ["ភា", "សា"], ["ភា", "សា។"]),
        ("ພາສາ", list("ພາສາ"), list("ພາສາ")),
        ("မြန်မာ", ["မြ", "န်", "မာ"], ["မြ", "န်", "မာ"]),
        ("한국어 텍스트, don't", ["한국어", "텍스트", "don", "t"], ["한국어", "텍스트,", "don't"]),
    ],
)  # fmt: skip
def test_a_character_is_a_word_where_no_spaces_are_written(text, words, with_marks):
    assert words_without_marks(text) == words
    assert words_with_marks(text) == with_marks


def test_words_between_spaces_are_those_of_other_scripts():
    assert between_spaces(words_with_marks("BERT模型，2018年 (Google)。")) == ["BERT", "2018", "(Google)。"]


def test_other_text_has_the_words_that_it_has_without_its_marks():
    """All characters below the first script without spaces, and those of Korean."""
    characters = [*map(chr, range(0x0E00)), *map(chr, range(0xAC00, 0xAD00)), "\u200c", "\u200d"]
    marks = {ord(each): None for each in characters if unicodedata.category(each)[0] == "M" or each in "\u200c\u200d"}
    draw = random.Random(0)
    for _ in range(50):
        text = unicodedata.normalize("NFC", "".join(draw.choices(characters, k=500)))
        bare = [word.translate(marks) for word in words_without_marks(text)]
        assert bare == re.findall(r"\w+", text.translate(marks))
        assert words_with_marks(text) == text.split()


def test_vowel_signs_and_points_belong_to_their_words():
    """Hindi, Bengali, Tamil, pointed Hebrew and Arabic, Persian with a joiner: as many words as spaces say."""
    for text in (
        "यह हिन्दी भाषा का एक वाक्य है",
        "এটি বাংলা ভাষার একটি বাক্য",
        "இது தமிழ் மொழியின் ஒரு வாக்கியம்",
        "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
        "بِسْمِ ٱللَّهِ ٱلرَّحْمَٰنِ",
        "من می\u200cخواهم",
        "cafe\u0301 noe\u0308l",
    ):
        assert len(words_without_marks(text)) == len(text.split()), text
        assert len(words_without_marks(f"{text} 模")) == len(text.split()) + 1
    assert words_without_marks("cafe\u0301") == ["café"]
    eight = "यह हिन्दी भाषा का एक वाक्य है जो"
    evaluated = Contamination([f"{eight} परीक्षा में आता है और यहाँ भी मिलता है"], 13)
    assert not evaluated.shared([f"अलग {eight} अलग"]).any(), "8 words in a row are fewer than 13"


def chinese(draw, length):
    """Sentences of characters drawn from 2,000, as one line without spaces."""
    characters = [chr(draw.randrange(0x4E00, 0x4E00 + 2000)) for _ in range(length)]
    return "".join(each + ("。" if draw.random() < 0.06 else "") for each in characters)


def mixed(draw, length):
    """Chinese with a word of Latin letters after every tenth character or so."""
    latin = ("BERT", "model", "a", "Transformer")
    return "".join(each + (draw.choice(latin) if draw.random() < 0.1 else "") for each in chinese(draw, length))


def changed(draw, text, changes):
    characters = list(text)
    for place in draw.sample([place for place, each in enumerate(text) if is_han(each)], changes):
        characters[place] = chr(draw.randrange(0x6000, 0x7000))
    return "".join(characters)


def is_han(character):
    return unicodedata.name(character).startswith("CJK UNIFIED")


def jaccard(first, second):
    """Exact, over five words in a row, by characters that are looked up one by one."""
    sets = []
    for text in (first, second):
        spaced = "".join(f" {each} " if is_han(each) else " " if each == "。" else each for each in text.lower())
        words = spaced.split()
        sets.append({tuple(words[place : place + 5]) for place in range(len(words) - 4)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("write", [chinese, mixed])
def test_the_estimated_similarity_is_the_exact_one(write):
    """The mean error of 60 independent pairs, and each error, within four standard deviations."""
    draw, errors = random.Random(0), []
    for changes in (1, 3, 6, 10, 20, 40) * 10:
        text = write(draw, 300)
        copy = changed(draw, text, changes)
        exact = jaccard(text, copy)
        signatures = [signature(word_hashes(each)) for each in (text, copy)]
        estimate = similarity(*(sketches(each)[None] for each in signatures))[0]
        errors.append((estimate - exact) / np.sqrt((exact * (1 - exact) + 1 / 256) / HASHES))
    assert abs(np.mean(errors)) <= 4 / np.sqrt(len(errors)) and np.abs(errors).max() <= 4


@pytest.mark.parametrize("write", [chinese, mixed])
def test_planted_near_duplicates_go_and_different_documents_stay(tmp_path, vocab, write):
    """Similarities are four standard deviations or more from the threshold of 0.7."""
    draw = random.Random(1)
    texts = [write(draw, 300) for _ in range(12)]
    near = [changed(draw, text, 4) for text in texts[:6]]
    far = [changed(draw, text, 40) for text in texts[6:]]
    assert min(map(jaccard, texts, near)) > 0.86 and max(map(jaccard, texts[6:], far)) < 0.54
    (tmp_path / "a.txt").write_text("\n\n".join([*texts, *near, *far]))
    clean = CleaningConfig(deduplicate="near", near_threshold=0.7)
    manifest = run(tmp_path / "a.txt", vocab, tmp_path / "store", clean=clean)
    assert {each.step: each.documents for each in manifest.cleaning} == {"deduplicate.near": 6}


def test_thirteen_characters_in_a_row_of_an_evaluation_text_are_found():
    draw = random.Random(2)
    question, before, after = (chinese(draw, size).replace("。", "") for size in (30, 40, 40))
    found = Contamination([question], 13)
    lines = [before + question[5:18] + after, before + question[5:17] + after, before + after]
    assert found.shared(lines).tolist() == [True, False, False]


def test_rules_about_quality_leave_chinese_prose():
    draw = random.Random(3)
    lines = ["".join(f"{chinese(draw, 20).replace('。', '')}。" for _ in range(4)) for _ in range(5)]
    assert rules.broken_rule(lines, english=False) is None
    assert rules.broken_rule(lines[:1] * 5, english=False) == "repeated_lines"
    assert rules.broken_rule([lines[0][:40]], english=False) == "few_words"
    one = chinese(draw, 3000) + "。"  # no word of more than a thousand characters
    assert rules.clean_page([*lines, one, "目录"]) == ([*lines, one], {"no_end_mark": ["目录"]}, None)


@pytest.mark.parametrize("seed", range(8))
def test_shared_paragraphs_are_those_that_sets_of_tuples_find(seed):
    rng = random.Random(seed)
    words = [rng.choice("abc") for _ in range(400)]
    texts = [" ".join(words[at : at + size]) for at, size in ((0, 30), (50, 9), (100, 7), (200, 12))]
    lines = [" ".join(rng.choice("abcd") for _ in range(rng.randrange(0, 40))) for _ in range(8)]
    lines[2:2] = [" ".join(words[10:20]), " ".join(words[20:40])]  # a row of 13 words that goes over two paragraphs
    lines.append("x " + " ".join(words[50:59]).upper() + "!")
    rows = {tuple(text.split()) for text in texts if 8 <= len(text.split()) < 13}
    rows |= {tuple(words[at : at + 13]) for at in range(0, 30 - 12)}
    joined = [(word.lower().strip("!"), owner) for owner, line in enumerate(lines) for word in line.split()]
    expected = [False] * len(lines)
    for at in range(len(joined)):
        for size in {len(row) for row in rows}:
            part = joined[at : at + size]
            if tuple(word for word, _ in part) in rows:
                for owner in range(part[0][1], part[-1][1] + 1):
                    expected[owner] = True
    assert Contamination(texts, 13).shared(lines).tolist() == expected
    assert expected[2] and expected[3] and expected[-1]


def test_short_texts_and_none_are_not_searched_for():
    assert not Contamination(["only seven words are in this text"], 13).rows
    assert Contamination([], 13).shared(["anything at all"]).tolist() == [False]


def test_the_fingerprint_is_of_the_texts_and_not_of_their_order():
    texts = ["one two three four five six seven eight", "two three four five six seven eight nine ten"]
    assert Contamination(texts, 13).fingerprint == Contamination(texts[::-1], 13).fingerprint
    assert Contamination(texts, 13).fingerprint != Contamination(texts[:1], 13).fingerprint


def test_texts_are_cells_strings_and_lines(tmp_path):
    (tmp_path / "dev.tsv").write_text('id\tsentence\n1\tan "open quote\n')
    (tmp_path / "test.csv").write_text('1,"a, b"\n')
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"data": [{"context": "c d", "id": 3, "answers": ["e"]}]}))
    digits = "7" * 4301
    (tmp_path / "own.jsonl").write_text(f'{{"text": "one\u2028and", "id": {digits}}}\r\n\n"two"\n')
    (tmp_path / "valid.json").write_text(f'["three", {digits}]')
    (tmp_path / "dev.txt").write_text("a\u2029b\x0bc\n\x85d\x0ce\r\n")
    (tmp_path / "own.txt.gz").write_bytes(gzip.compress(b"first\nsecond\n"))
    found = {path.name: list(read_texts(epath.Path(path))) for path in tmp_path.iterdir()}
    assert found == {
        "dev.tsv": ["id", "sentence", "1", 'an "open quote'],
        "test.csv": ["1", "a, b"],
        "dev-v1.1.json": ["c d", "e"],
        "own.jsonl": ["one\u2028and", "two"],
        "valid.json": ["three"],
        "dev.txt": ["a\u2029b\x0bc", "\x85d\x0ce"],
        "own.txt.gz": ["first", "second"],
    }


def test_of_a_directory_the_files_for_evaluation_count(tmp_path):
    for name in "RTE/dev.tsv RTE/train.tsv MNLI/dev_matched.tsv squad/test-v2.0.json.gz latest.txt x.bin".split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [str(path.relative_to(tmp_path)) for path in evaluation_files(str(tmp_path))]
    assert found == ["MNLI/dev_matched.tsv", "RTE/dev.tsv", "squad/test-v2.0.json.gz"]
    assert [path.name for path in evaluation_files(f"{tmp_path}/RTE/train.tsv, {tmp_path}/latest.txt")] == [
        "train.tsv", "latest.txt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.json", b"{", "is not a readable .json file"),
        ("dev.tsv", b"\xff", "dev.tsv, line 1: not UTF-8"),
        ("dev.tsv", "a\tb\n".encode("utf-16"), "dev.tsv is UTF-16, not UTF-8"),
        ("dev.txt", b"one\rtwo\r", "dev.txt: its lines end in carriage returns alone"),
        ("dev.json", b"[" * 100_000, "is not a readable .json file"),
        ("dev.tsv.gz", b"not gzip", "dev.tsv.gz"),
        ("dev.txt.gz", gzip.compress(b"\n" * (1 << 20)), "holds more than 200 times as much text"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, name, content, message, monkeypatch):
    monkeypatch.setattr(contamination, "UNCOUNTED", 1 << 19)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_texts(epath.Path(tmp_path / name)))


def test_what_is_no_evaluation_set_is_one_line(tmp_path):
    (tmp_path / "train.tsv").write_text("")
    (tmp_path / "dev.bin").write_text("")
    for path, message in (
        (tmp_path, "has no file of .* whose name says dev"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "dev.bin", "must be a file of"),
    ):
        with pytest.raises(UserError, match=message):
            evaluation_files(str(path))


@pytest.mark.parametrize("content", ["", "seven words are too few for this\n"])
def test_evaluation_sets_without_a_text_to_search_for_are_one_line(tmp_path, content):
    (tmp_path / "dev.txt").write_text(content)
    for paths in (f"{tmp_path}/dev.txt", ","):
        with pytest.raises(UserError, match="clean.decontaminate=.* holds no text of 8 words or more"):
            read_contamination(CleaningConfig(decontaminate=paths))
