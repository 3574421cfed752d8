"""`doctor` on runs and stores."""

import dataclasses
import json
import math
import pathlib

import documents
import numpy as np
import pytest
from command_lines import status, succeed
from etils import epath
from synthetic_store import MASK, VOCAB_SIZE, SyntheticStore, random_documents, write_store

from bert_jax.config import (
    Config,
    DataConfig,
    EvaluationConfig,
    MaskingConfig,
    ModelConfig,
    PhaseConfig,
    PrepareConfig,
    resolve_phases,
)
from bert_jax.config.options import to_dict
from bert_jax.config.pretraining import DoctorConfig
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.data.store import open_store
from bert_jax.errors import UserError
from bert_jax.objectives.autoregressive import NEXT_WORDS, PERMUTED_WORDS
from bert_jax.objectives.masked_words import MASKED_WORDS, NEXT_SENTENCE
from bert_jax.objectives.objective import Term, records
from bert_jax.tools.description import count_tokens
from bert_jax.tools.doctor import check_run, check_store, example_checks
from bert_jax.tools.status import RunHistory

STEPS, EVERY, VOCABULARY, UNIGRAM = 20_000, 100, 30_522, 6.6
CONFIG = Config(
    model=ModelConfig(vocab_size=VOCABULARY),
    data=DataConfig(path="nowhere"),
    phases=(PhaseConfig(steps=STEPS, learning_rate=1e-4, warmup_steps=1_000),),
    evaluation=EvaluationConfig(every_steps=1_000),
)


def row(step: int) -> dict[str, float]:
    """As of a run that leaves the frequencies of words behind at step 4,000 and is at 2.5 nats in the end."""
    noise = 0.03 * math.sin(step)
    plateau = UNIGRAM + (math.log(VOCABULARY) - UNIGRAM) * math.exp(-step / 500)
    learned = max(0.0, 1 - 4_000 / max(step, 1))
    loss = plateau - learned * (UNIGRAM - 1.5) + noise
    rate = min(step / 1_000, 1) * 1e-4 * (1 - (step - 1) / STEPS)
    return {
        "kind": "train",
        "step": step,
        "loss": loss + 0.5,
        "mlm_loss": loss,
        "learning_rate": rate,
        "grad_norm": 1.0,
        "skipped": 0.0,
        "tokens_per_second": 10_000 * (1 + 0.3 * math.sin(7 * step)),
    }


def rows() -> list[dict]:
    train = [row(1), *(row(step) for step in range(EVERY, STEPS + 1, EVERY))]
    held_out = [
        {"kind": "evaluation", "step": s, "mlm_loss": row(s)["mlm_loss"]} for s in range(1_000, STEPS + 1, 1_000)
    ]
    return [*train, *held_out]


def wrong(rows: list[dict], config: Config = CONFIG, events: list[dict] | None = None) -> set[str]:
    run = recorded(rows, MASKED_WORDS)
    return found(dataclasses.replace(run, settings=to_dict(config), events=[*run.events, *(events or [])]))


def changed(**functions) -> list[dict]:
    """The rows of training with other values, each a function of the row."""
    return [
        {**row, **{name: function(row) for name, function in functions.items() if row["kind"] == "train"}}
        for row in rows()
    ]


def until(step: int, rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["step"] <= step]


@pytest.mark.parametrize("step", [1, 100, 1_000, 3_000, 5_000, 10_000, 20_000])
def test_a_sound_run_is_sound_at_any_time(step):
    assert wrong(until(step, rows())) == set()


def test_nothing_is_said_of_a_run_without_rows():
    assert wrong([]) == set()


def test_plateau_at_the_unigram_entropy():
    flat = changed(mlm_loss=lambda row: UNIGRAM + 0.04 * math.sin(row["step"]))
    assert wrong(flat) == {"plateau at the unigram entropy"}
    assert wrong(until(3_000, flat)) == set()  # every BERT stays there for some time


def test_learning_rate_zero():
    assert wrong(changed(learning_rate=lambda row: 0.0)) == {"learning rate zero"}
    late = changed(learning_rate=lambda row: 0.0 if row["step"] > 15_000 else row["learning_rate"])
    assert wrong(late) == {"learning rate zero"}


def test_loss_at_the_bias():
    rng = np.random.default_rng(0)
    stuck = changed(mlm_loss=lambda row: math.log(VOCABULARY) + rng.normal(0, 0.01))
    assert wrong(until(9_000, stuck)) == {"loss at the bias"}
    assert wrong(until(900, stuck)) == set()  # still warming up


def test_loss_that_is_not_finite():
    broken = changed(
        loss=lambda row: math.nan if row["step"] > 5_000 else row["loss"],
        skipped=lambda row: float(row["step"] > 5_000),
    )
    events = [{"time": 0.0, "event": "skipped", "step": step} for step in range(5_001, 5_300)]
    assert wrong(broken, events=events) == {"loss or gradient not finite"}
    one = [{"time": 0.0, "event": "skipped", "step": 77}]
    assert wrong(rows(), events=one) == set()  # skipped on the device, and no harm done


def test_a_run_without_an_evaluation_is_told():
    train = [row for row in rows() if row["kind"] == "train"]
    assert wrong(train) == {"no evaluation"}
    none = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, held_out=0.0))
    assert wrong(train, none) == {"no evaluation"}
    assert wrong(until(1_500, train)) == set()  # none was due by then, but for one that may be under way


def test_a_loss_that_rises_again_is_told():
    worse = [
        {**row, "mlm_loss": row["mlm_loss"] * (1 + max(0, row["step"] - 12_000) / 8_000)}
        if row["kind"] == "evaluation"
        else row
        for row in rows()
    ]
    assert wrong(worse) == {"not improving"}


@pytest.mark.parametrize("term", [NEXT_WORDS, PERMUTED_WORDS], ids=lambda term: term.name)
def test_other_objectives_of_words_are_examined_alike(term):
    def renamed(rows: list[dict]) -> list[dict]:
        return [{term.loss if key == "mlm_loss" else key: value for key, value in row.items()} for row in rows]

    examined = lambda rows: found(recorded(renamed(rows), term))
    assert examined(rows()) == set()
    assert examined(changed(mlm_loss=lambda row: UNIGRAM)) == {"plateau at the unigram entropy"}
    stuck = changed(mlm_loss=lambda row: math.log(VOCABULARY))
    assert examined(until(9_000, stuck)) == {"loss at the bias"}
    rising = [row | ({"mlm_loss": row["step"]} if row["kind"] == "evaluation" else {}) for row in rows()]
    assert examined(rising) == {"not improving"}


def recorded(rows: list[dict], *terms: Term) -> RunHistory:
    """A run that has recorded its terms, with the baseline of word frequencies by all names."""
    start = json.loads(json.dumps({"time": 0.0, "event": "start", "step": 0, "terms": records(terms)}))
    baseline = {"time": 0.0, "event": "baseline", "step": 0, **{term.loss: UNIGRAM for term in terms}}
    return RunHistory(epath.Path("run"), {}, to_dict(CONFIG), rows, [start, baseline], [])


def found(run: RunHistory) -> set[str]:
    return {check.name for check in check_run(run) if check.is_wrong}


def test_words_of_an_objective_from_outside_are_examined_by_the_terms_that_its_start_recorded():
    def renamed(rows: list[dict]) -> list[dict]:
        return [{"smooth_loss" if key == "mlm_loss" else key: value for key, value in row.items()} for row in rows]

    words = Term(name="smooth", of_words=True)
    assert found(recorded(renamed(rows()), words)) == set()
    flat = renamed(changed(mlm_loss=lambda row: UNIGRAM))
    assert found(recorded(flat, words)) == {"plateau at the unigram entropy"}
    stuck = until(9_000, renamed(changed(mlm_loss=lambda row: math.log(VOCABULARY))))
    assert found(recorded(stuck, words)) == {"loss at the bias"}
    assert found(recorded(stuck, Term(name="smooth"))) == set()  # which predicts no words, as far as it says


def test_a_head_that_is_not_trained_is_not_judged():
    """With mlm_weight=0 the masked words stay where they are, and only the pairs may grow worse."""
    untrained = changed(mlm_loss=lambda row: math.log(VOCABULARY), next_sentence_loss=lambda row: 0.5)
    rising = [
        {**row, "mlm_loss": row["step"], "next_sentence_loss": 0.5} if row["kind"] == "evaluation" else row
        for row in untrained
    ]
    terms = dataclasses.replace(MASKED_WORDS, weight=0.0), NEXT_SENTENCE
    assert found(recorded(rising, *terms)) == set()
    assert found(recorded(rising, MASKED_WORDS, NEXT_SENTENCE)) == {"loss at the bias", "not improving"}
    worse = [{**row, "next_sentence_loss": row["step"]} if row["kind"] == "evaluation" else row for row in rising]
    assert found(recorded(worse, *terms)) == {"not improving"}


@pytest.mark.parametrize("written", [None, 3, [{"name": "mlm"}], [[]], [{**records([MASKED_WORDS])[0], "weight": "1"}]])
def test_losses_are_not_judged_where_the_terms_are_missing_or_damaged(written):
    events = [{"time": 0.0, "event": "start", "step": 0, "terms": written}]
    run = RunHistory(epath.Path("run"), {}, to_dict(CONFIG), rows(), events, [])
    assert (run.main_loss, run.word_loss) == ("loss", None)
    with pytest.raises(UserError, match="run/events.jsonl has no start that says what the losses .* are of: it is dam"):
        check_run(run)
    assert check_run(dataclasses.replace(run, rows=[])) == []


def test_masks_that_select_nothing():
    expected = {"masks that select nothing"}
    assert wrong(changed(mlm_loss=lambda row: 0.0 if row["step"] == 7_000 else row["mlm_loss"])) == expected


def test_an_evaluation_of_nothing_is_told():
    nothing = [
        {"kind": "evaluation", "step": row["step"]} if row["kind"] == "evaluation" and row["step"] > 10_000 else row
        for row in rows()
    ]
    assert wrong(nothing) == {"evaluation of nothing"}


def test_a_throughput_that_drops_is_told():
    slow = changed(tokens_per_second=lambda row: row["tokens_per_second"] / (4 if row["step"] > 18_000 else 1))
    assert wrong(slow) == {"throughput drops"}


def test_a_later_phase_is_judged_by_itself():
    """Its sequences are longer, so that it has fewer steps per second, and its rate may start again."""
    phases = (PhaseConfig(steps=10_000), PhaseConfig(steps=10_000, sequence_length=512, schedule="restart"))
    config = dataclasses.replace(CONFIG, phases=phases)
    slower = changed(tokens_per_second=lambda row: row["tokens_per_second"] / (1 if row["step"] <= 10_000 else 4))
    assert wrong(slower, config) == set()


def test_a_real_run_is_sound_together_with_its_data(finished, capsys):
    succeed("doctor", finished[0].workdir)
    said = capsys.readouterr().out
    assert "learning rate zero" in said and "duplicated documents" in said and "0 of " in said


def test_fine_tuning_and_models(finetunings, tmp_path, capsys):
    succeed("doctor", finetunings / "finetuned")
    record = next((finetunings / "finetuned" / "runs").glob("*/results.json"))
    record.write_text(json.dumps({**json.loads(record.read_text()), "collapsed": "every prediction is yes"}))
    assert status("doctor", finetunings / "finetuned") == 1
    assert "every prediction is yes" in capsys.readouterr().out
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model": {}}')
    (tmp_path / "model" / "run.json").write_text("{}")
    assert status("doctor", tmp_path / "model") == 2


def wrong_of_store(path) -> set[str]:
    return {check.name for check in check_store(str(path), DoctorConfig(sequence_length=64)) if check.is_wrong}


@pytest.fixture
def prepared(small_store, tmp_path):
    """Prepares texts with the vocabulary of the small corpus, or another one."""

    def prepare(texts: list[str], vocab: pathlib.Path = small_store.parent / "vocab.txt", **options) -> pathlib.Path:
        (tmp_path / "corpus.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        names = {"input": str(tmp_path / "corpus.txt"), "vocab": str(vocab), "output": str(tmp_path / "store")}
        run_prepare(PrepareConfig(**names, sentences="lines", workers=1, **options))
        return tmp_path / "store"

    return prepare


def cased_vocabulary(small_store, place: pathlib.Path) -> pathlib.Path:
    """The vocabulary of the small corpus, and its words with a capital letter."""
    tokens = (small_store.parent / "vocab.txt").read_text().splitlines()
    plain = [token for token in tokens if token.isalpha()]
    file = place / "cased.txt"
    file.write_text("\n".join([*tokens, *(token.capitalize() for token in plain)]) + "\n")
    return file


def test_nothing_is_wrong_with_sound_stores(small_store, prepared, tmp_path):
    assert wrong_of_store(small_store) == set()
    cased = cased_vocabulary(small_store, tmp_path)
    assert wrong_of_store(prepared(documents.documents(200), cased, lowercase=False)) == set()


def test_duplicated_documents_are_told(prepared):
    texts = documents.documents(200)
    assert wrong_of_store(prepared([*texts, *texts[:20]])) == {"duplicated documents"}


def test_text_with_letters_that_the_vocabulary_lacks(prepared):
    texts = [text + "\nШла Саша по шоссе." for text in documents.documents(200)]
    assert wrong_of_store(prepared(texts)) == {"unknown tokens"}


def test_lowercased_text_with_a_cased_vocabulary(prepared, small_store, tmp_path):
    texts = [text.lower() for text in documents.documents(200)]
    store = prepared(texts, cased_vocabulary(small_store, tmp_path), lowercase=False)
    assert wrong_of_store(store) == {"wrong casing for the vocabulary"}


def test_capitals_with_an_uncased_vocabulary(prepared, caplog):
    store = prepared(documents.documents(200), lowercase=False)
    assert wrong_of_store(store) == {"wrong casing for the vocabulary", "unknown tokens"}  # "The" is unknown


def test_too_few_documents(prepared):
    assert wrong_of_store(prepared(documents.documents(60))) == {"too few documents"}


def test_documents_of_one_sentence_have_degenerate_pairs(prepared):
    """Every chunk is a single sentence, so that no second segment can follow the first."""
    sentences = list(dict.fromkeys("\n".join(documents.documents(60)).splitlines()))
    store = prepared(sentences)
    assert wrong_of_store(store) == {"degenerate sentence pairs"}
    unlabelled = check_store(str(store), DoctorConfig(sequence_length=64, sentence_pairs="adjacent"))
    assert not any(check.is_wrong for check in unlabelled)


def sentences(seed: int = 0) -> SyntheticStore:
    return SyntheticStore(random_documents(300), seed)


def test_ids_that_the_vocabulary_does_not_have(tmp_path):
    store = sentences()
    store.all_tokens[1234] = VOCAB_SIZE + 7
    assert wrong_of_store(write_store(store, tmp_path / "store", 100)) == {"ids out of range"}


def test_special_tokens_in_the_text(tmp_path):
    store = sentences()
    store.all_tokens[1234] = MASK
    assert wrong_of_store(write_store(store, tmp_path / "store", 100)) == {"special tokens in the text"}


def test_a_damaged_store(tmp_path):
    path = write_store(sentences(), tmp_path / "store", 100)
    assert wrong_of_store(path) == set()
    tokens = bytearray((path / "shard-00001.tokens").read_bytes())
    tokens[100] ^= 1
    (path / "shard-00001.tokens").write_bytes(tokens)
    assert wrong_of_store(path) == {"damaged store"}


@pytest.mark.parametrize("most, expected", [(None, set()), (1, {"masks that select nothing"})])
def test_masks(small_store, most, expected):
    phase = PhaseConfig(sequence_length=64, max_predictions=most)
    config = Config(data=DataConfig(held_out=0.1), phases=(phase,))
    checks = example_checks(open_store(small_store), config, resolve_phases(config))
    assert {check.name for check in checks if check.is_wrong} == expected
    spans = dataclasses.replace(config, masking=MaskingConfig(unit="span"))
    checks = example_checks(open_store(small_store), spans, resolve_phases(spans))
    assert {check.name for check in checks if check.is_wrong} == expected


def test_a_store_is_examined_as_the_phases_that_read_it_do(small_store, tmp_path):
    (tmp_path / "other").symlink_to(small_store)
    first, other = str(small_store), str(tmp_path / "other")
    mixtures = "", f"{first}=1,{other}=0", f"{other}=1", f"{first}=1,{other}=1"
    phases = tuple(PhaseConfig(sequence_length=32, mixture=mixture) for mixture in mixtures)
    config = Config(data=DataConfig(mixture=f"{first}=1", held_out=0.1), phases=phases)
    names = [each.name for each in check_run(RunHistory(epath.Path("run"), {}, to_dict(config), [], [], []))]
    examined = {tuple(name.split(": ")[:2]) for name in names if name.endswith("masks that select nothing")}
    read = {(first, "phase 0"), (first, "phase 1"), (first, "phase 3"), (other, "phase 2"), (other, "phase 3")}
    assert examined == read and f"{other}: too few documents" in names


def test_one_pass_counts_what_a_loop_counts(tmp_path, monkeypatch):
    """In blocks that end within a shard, against the definition; equal documents have equal hashes, others do not."""
    monkeypatch.setattr("bert_jax.tools.description.BLOCK_TOKENS", 5_000)
    documents = [*random_documents(100), [3, 4], [4, 3], [3, 4]]
    store = SyntheticStore(documents)
    starts = store.document_tokens
    store.all_tokens[starts[-4] : starts[-3]] = store.all_tokens[starts[-2] : starts[-1]]  # the first of the last three
    opened, told = open_store(write_store(store, tmp_path / "store", 40)), []
    counts = count_tokens(opened, told.append)
    np.testing.assert_array_equal(counts.ids, np.bincount(store.all_tokens, minlength=VOCAB_SIZE))
    texts = [tuple(store.all_tokens[starts[i] : starts[i + 1]]) for i in range(len(documents))]
    assert len(counts.hashes) == len(texts)
    same = {(i, j) for i in range(len(texts)) for j in range(i) if texts[i] == texts[j]}
    assert same == {(i, j) for i in range(len(texts)) for j in range(i) if counts.hashes[i] == counts.hashes[j]}
    assert len(same) >= 1 and told[-1] == len(store.all_tokens) and len(told) > 5
    shares = np.bincount(store.all_tokens) / len(store.all_tokens)
    assert counts.entropy() == pytest.approx(-sum(share * np.log(share) for share in shares if share))


def test_the_command_says_what_to_do(prepared, small_store, capsys):
    succeed("doctor", small_store, "--sequence_length=64")
    assert "0 of 8 checks found something" in capsys.readouterr().out
    path = prepared(documents.documents(60))
    capsys.readouterr()
    assert status("doctor", path, "--sequence_length=64") == 1
    said = capsys.readouterr().out
    assert "wrong  too few documents: 60 documents" in said and "expected: at least 100" in said
    assert "what to do: " in said and "1 of 8 checks" in said
    assert status("doctor", path, "--sequence_length=4") == 2
    assert status("doctor", path.parent) == 2
    assert "not the work directory of a run" in capsys.readouterr().err
