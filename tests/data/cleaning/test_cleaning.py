"""Cleaning on the way into a store: what goes, what is counted, and that workers and interruptions change nothing."""

import dataclasses
import random

import pytest
from letter_corpus import contents, random_documents, run, write_corpus

from bert_jax.config.corpora import CleaningConfig
from bert_jax.corpus.cleaner import SAMPLES, Cleaner, merged, record
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
    clean = CleaningConfig(
        unicode="repair", languages=("en",), decontaminate=str(tmp_path / "dev.txt"), contacts="remove"
    )
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


def test_cleaning_is_the_same_for_any_number_of_workers_by_beam_and_after_an_interruption(
    tmp_path, vocab, small_blocks, monkeypatch
):
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
