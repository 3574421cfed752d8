"""Commands with bad input: refused in one line, also by processes of their own."""

import fcntl
import gzip
import pathlib
import shlex
import shutil
import sys

import documents
import processes
import pytest
from command_lines import bert_jax, cases, refusal, refused, snapshot, status
from documents import VOCABULARY
from processes import one_device

PREPARE = "prepare --input=@/corpus.txt --vocab=@/vocab.txt --output=@/new"
TRAIN_VOCAB = "train-vocab --input=@/corpus.txt --output=@/new.txt --size=200"
PRETRAIN = "pretrain @/config.json --workdir=@/new"
BRANCH = f"{PRETRAIN} --steps=4 --branch_from=@/run:2"
AVERAGE = "average @/run"

CASES = cases(f"""
no command: pretain -> unknown command 'pretain' | pretrain
# Corpora.
no such corpus: {PREPARE} --input=@/corpse.txt -> corpse.txt | no such file | holds
no such corpus for a vocabulary: {TRAIN_VOCAB} --input=@/corpse.txt -> corpse.txt | no such file
a glob without matches: {PREPARE} --input=@/*.csv -> '*.csv' | matches | holds
an empty directory: {PREPARE} --input=@/nothing -> nothing | no file in or below
an empty corpus: {PREPARE} --input=@/empty.txt -> empty.txt | 0 bytes
an empty corpus for a vocabulary: {TRAIN_VOCAB} --input=@/empty.txt -> empty.txt | 0 bytes
a blank corpus: {PREPARE} --input=@/blank.txt -> no text | gave no token
a blank corpus for a vocabulary: {TRAIN_VOCAB} --input=@/blank.txt -> blank.txt | no text
not UTF-8: {PREPARE} --input=@/latin1.txt -> latin1.txt: byte 21 (0xe9) is not UTF-8 | --bad_utf8=replace
not UTF-8 for a vocabulary: {TRAIN_VOCAB} --input=@/latin1.txt -> latin1.txt: byte 21 (0xe9) is not UTF-8
a broken line of JSON: {PREPARE} --input=@/broken.jsonl -> broken.jsonl:2 | not a JSON object
JSON without the field: {PREPARE} --input=@/other_field.jsonl -> no field 'text' | 'body' | --text_field
no gzip: {PREPARE} --input=@/broken.txt.gz -> broken.txt.gz | not a whole gzip file
no language code: {PREPARE} --language=English -> language='English' | such as en, de or zh
a number of workers: {PREPARE} --workers=-2 -> workers=-2 | 0 for one per core
# Vocabularies.
no vocabulary: {PREPARE} --vocab=@/vocabulary.txt -> no vocabulary at | vocabulary.txt | train-vocab
no [MASK]: {PREPARE} --vocab=@/no_mask.txt -> no_mask.txt has no [MASK] | [CLS]
blank lines: {PREPARE} --vocab=@/blank.txt -> blank.txt is empty | train-vocab
no SentencePiece model: {PREPARE} --vocab=@/noise.model -> noise.model is not a SentencePiece model | train-vocab
a small vocabulary: {TRAIN_VOCAB} --size=7 -> size=7 | 30522
a method and a file that disagree: {TRAIN_VOCAB} --method=unigram -> new.txt | method=unigram | .model
a vocabulary below a file: {TRAIN_VOCAB} --output=@/corpus.txt/v.txt -> corpus.txt/v.txt | cannot write | choose
held out: {TRAIN_VOCAB} --held_out=0.9 -> held_out=0.9 | 0.5
# Where a store is to go.
a store with another vocabulary: {PREPARE} --vocab=@/other_vocab.txt --output=@/store
    -> already holds a token store | different vocabulary (wordpiece of | choose another output or delete it
a store of another corpus: {PREPARE} --input=@/few.txt --output=@/store -> already holds a token store | few.txt
a store below a file: {PREPARE} --output=@/corpus.txt/store -> cannot write output= | Not a directory
a store over a file: {PREPARE} --output=@/corpus.txt -> cannot write output= | File exists
a store among other files: {PREPARE} --output=@/foreign_run -> metrics.jsonl | choose an empty or new one
missing options: prepare --input=@/corpus.txt -> --vocab | --output | required | --help
# Stores.
no store: {PRETRAIN} --data.path=@/nothing -> nothing is not a token store | bert-jax prepare
no store there: {PRETRAIN} --data.path=@/nowhere -> nowhere is not a token store | bert-jax prepare
a cut shard: {PRETRAIN} --data.path=@/cut_store -> shard-00000.tokens | has 100 bytes | copy it again
a missing shard: {PRETRAIN} --data.path=@/missing_store -> shard-00000.sentences | is missing | copy it again
a garbled manifest: {PRETRAIN} --data.path=@/garbled_store -> manifest.json is not JSON | prepare the store again
a newer manifest: {PRETRAIN} --data.path=@/newer_store -> version 2 | reads version 1
a manifest of wrong types: {PRETRAIN} --data.path=@/retyped_store -> shards='many' | must be a list
a store without its vocabulary: {PRETRAIN} --data.path=@/no_tokenizer_store -> no_tokenizer_store/tokenizer
inspect rows of a gigabyte: inspect @/store --sequence_length=1000000000
    -> sequence_length=1000000000 is more than 65,536 | longest rows
inspect into no directory, before the run is opened: inspect @/store --run=@/run --output=@/nowhere/steps.json
    -> nowhere is not a writable directory | make it
replay into no directory, before the run is opened: replay @/run --step=1 --output=@/nowhere/steps.json
    -> nowhere is not a writable directory | make it
inspect no store: inspect @/nothing -> nothing is not a token store
evaluation store of another vocabulary: {PRETRAIN} --data.eval_path=@/other_store
    -> data.eval_path= | a vocabulary different from that of data.path= | prepare it again
a vocabulary size that the store has not: {PRETRAIN} --model.vocab_size=30522
    -> model.vocab_size=30522 | 200 entries | leave model.vocab_size out
fewer sequences than a batch: {PRETRAIN} --data.path=@/few_store --batch_size=64
    -> fewer than a batch of 64 | lower the batch size to at most
no document to train on: {PRETRAIN} --data.path=@/few_store --data.held_out=0.9 -> data.held_out=0.9 | 3 documents
weights that sum to nothing: {PRETRAIN} --data.path= --data.mixture=@/store=0,@/few_store=0
    -> the weights add up to nothing | at least one store a positive weight
budgets that sum to nothing: {PRETRAIN} --data.path= --data.mixture=@/store=0M,@/few_store=0M
    -> the weights add up to nothing
a phase whose weights sum to nothing: {PRETRAIN} --data.path= --data.mixture=@/store=1 --phases.0.mixture=@/store=0
    -> phases.0.mixture= | the weights add up to nothing
a mixture with a store that is none: {PRETRAIN} --data.path= --data.mixture=@/store=1,@/nothing=1
    -> nothing is not a token store | bert-jax prepare
a mixture of two vocabularies: {PRETRAIN} --data.path= --data.mixture=@/store=1,@/other_store=1
    -> other_store was prepared with a vocabulary different from that of | --vocab
describe no store: describe @/nothing --output=@/card.html -> nothing is not a token store
describe a cut store: describe @/cut_store --output=@/card.html -> has 100 bytes | copy it again
no --data.path: {PRETRAIN} --data.path= -> --data.path is missing | bert-jax prepare
no --workdir: pretrain @/config.json -> --workdir is missing | checkpoints
# Options.
heads that do not divide: {PRETRAIN} --model.num_heads=3 -> model.hidden_size=16 | model.num_heads=3 | fit: 1, 2, 4
more length than positions: {PRETRAIN} --sequence_length=128
    -> phases.0.sequence_length=128 | model.max_position_embeddings=64 | raise
a batch that the mesh does not divide: {PRETRAIN} --batch_size=12 -> phases.0.batch_size=12 | data=8 | nearest: 8 or 16
a mesh for other devices: {PRETRAIN} --mesh.data=3 -> data=3 | there are 8 | mesh.data=8
a mesh without size: {PRETRAIN} --mesh.fsdp=0 -> mesh.fsdp=0 | -1
an unknown option: {PRETRAIN} --colour=red -> unknown option --colour | --help
a mistyped option: {PRETRAIN} --model.hidden_sise=32 -> --model.hidden_sise | perhaps you meant --model.hidden_size
a mistyped option of prepare: {PREPARE} --langauge=de -> --langauge | perhaps you meant --language
a wrong type: {PRETRAIN} --model.num_layers=two -> --model.num_layers | two | a whole number
an unknown choice: {PRETRAIN} --optimizer.name=sgd -> --optimizer.name | sgd | 'lamb'
an unknown choice of train-vocab: {TRAIN_VOCAB} --method=magic -> --method | magic | 'unigram'
an option without value: {PRETRAIN} --steps -> --phases.0.steps
a loose word: {PRETRAIN} fast -> unexpected word 'fast' | --name=value
no configuration: pretrain -> CONFIG | usage
no such configuration: pretrain @/tiny.py -> no configuration file | tiny.py
a configuration that is no JSON: pretrain @/broken.json -> broken.json is not JSON
a configuration of wrong types: pretrain @/phases.json -> phases='1000' | must be a list
a configuration that raises: pretrain @/raising.py -> raising.py, line 6, raises TypeError: | 'hidden_size' | --debug
a configuration that is no Python: pretrain @/broken.py -> broken.py, line 2, raises SyntaxError: | correct it
a configuration of other bytes: pretrain @/zeros.py -> zeros.py | null bytes; correct it
# Phases.
a size for a phase: {PRETRAIN} --phases.0.model.hidden_size=64
    -> --phases.0.model.hidden_size is not for a phase | one set of arrays | --init_from
a kind of layers for a phase: {PRETRAIN} --phases.0.model.norm_position=pre
    -> --phases.0.model.norm_position is not for a phase | one set of arrays | give --model.norm_position
an objective of other arrays for a phase: {PRETRAIN} --phases.0.objective.name replaced_tokens
    -> --phases.0.objective.name=replaced_tokens is not for a phase | one set of arrays | --init_from
an objective that is none for a phase: {PRETRAIN} --phases.0.objective.name=magic -> 'magic' | 'left_to_right'
an optimizer for a phase: {PRETRAIN} --phases.0.optimizer.beta1=0.5
    -> --phases.0.optimizer.beta1 is not for a phase | share it; | give --optimizer.beta1 for the whole run
a mistyped option of a phase: {PRETRAIN} --phases.0.masking.ratte=0.3 -> perhaps you meant --phases.0.masking.rate
a mask rate that no slot can hold: {PRETRAIN} --max_predictions=9 --phases.0.masking.rate=0.3
    -> phases.0.max_predictions=9 cannot hold the 10 tokens | phases.0.masking.rate=0.3 | raise it to 10
a mask rate of the run that no slot can hold: {PRETRAIN} --max_predictions=4 --masking.rate=0.15
    -> phases.0.max_predictions=4 cannot hold the 5 tokens that masking.rate=0.15 predicts | raise it to 5
a phase that is not there: {PRETRAIN} --phases.1.model.hidden_size=64 -> has 1 phase, phases.0; | configuration file
# Work directories.
a work directory below a file: {PRETRAIN} --workdir=@/corpus.txt/run -> cannot write to the work directory | --workdir
a work directory over a file: {PRETRAIN} --workdir=@/corpus.txt -> cannot write to the work directory | --workdir
a work directory in /proc: {PRETRAIN} --workdir=/proc/run -> cannot write to the work directory /proc/run | --workdir
a run of another architecture: {PRETRAIN} --workdir=@/run --model.num_layers=2
    -> holds a run with different settings | model.num_layers: 1 → 2 | another --workdir
a run with another seed: {PRETRAIN} --workdir=@/run --seed=7 -> different settings | seed: 0 → 7 | another --workdir
a run on another store: {PRETRAIN} --workdir=@/run --data.path=@/other_store
    -> different settings | store_fingerprint | another --workdir
a foreign model: {PRETRAIN} --workdir=@/foreign_model -> already holds config.json but no run.json | another --workdir
a foreign run: {PRETRAIN} --workdir=@/foreign_run -> already holds metrics.jsonl | another --workdir
a store as work directory: {PRETRAIN} --workdir=@/store -> already holds manifest.json | another --workdir
a run with a damaged configuration: {PRETRAIN} --workdir=@/broken_run -> broken_run/config.json | another --workdir
# Branches.
a branch of no number: {BRANCH} --branch_from=@/run -> branch_from= | must be RUN:STEP
a branch of no run: {BRANCH} --branch_from=@/nothing:2 -> nothing is not the work directory of a run
a branch of a step that is gone: {BRANCH} --branch_from=@/run:7
    -> step 7 of | run is not there; other steps there: 2
a branch of another shape: {BRANCH} --model.num_layers=2 -> different settings | model.num_layers: 1 → 2 | --init_from
a branch of another vocabulary: {BRANCH} --data.path=@/other_store -> tokenizer_fingerprint: | --init_from
a branch without an end: {BRANCH} --steps=2 -> nothing is left to do | give more steps than 2
# Averages.
average nothing: average -> MODEL… | usage
an average without a place: average @/run @/run -> --output is missing | a new directory
an average over a run: average @/run @/other_run --output=@/run -> run is not empty | give a new directory
an average of one model: {AVERAGE} --output=@/new -> at least two models
an average of a model with itself: {AVERAGE} @/run/ --output=@/new -> run is named twice | --shares
an average with no run: {AVERAGE} @/nothing --output=@/new -> nothing | no model in
an average with a step that is gone: {AVERAGE} @/run:7 --output=@/new
    -> step 7 of | run is not there; other steps there: 2
an average with a model of another shape: {AVERAGE} @/other_run --output=@/new
    -> cannot be averaged: | model.num_heads is 2 and 4 | take models of one configuration and vocabulary
an average with a model of other words: {AVERAGE} @/other_words --output=@/new
    -> cannot be averaged: their vocabularies differ; take models of one configuration and vocabulary
# Reading a run.
evaluate no run: evaluate @/nothing --data.path=@/store -> nothing is not the work directory of a run
evaluate nothing: evaluate -> WORKDIR | usage
evaluate a damaged configuration: evaluate @/broken_run --data.path=@/store -> broken_run/config.json is not JSON
evaluate on another vocabulary: evaluate @/run --data.path=@/other_store
    -> other_store was prepared with a vocabulary different from that of | --vocab= | run/tokenizer
fill-mask in no run: fill-mask @/nothing [MASK] -> nothing | no model in
fill-mask without a mask: fill-mask @/run sparrow -> no [MASK] in 'sparrow' | write [MASK]
fill-mask without a text: fill-mask @/run -> TEXT | usage
fill-mask in another encoding: fill-mask @/run \udce9[MASK] -> is not UTF-8
fill-mask beyond the model: fill-mask @/run {"[MASK]" * 80} -> 82 tokens | 64 | shorten
score in no run: score @/nothing text -> nothing | no model in
score without a text: score @/run -> give texts after MODEL, --input=FILE or --pairs=FILE
score a step by its number: score @/run:12 text -> step 12 of | run is not there; other steps there:
score from two places: score @/run text --pairs=@/corpus.txt -> give texts after MODEL, | not several
score pairs token by token: score @/run --pairs=@/corpus.txt --reduction=tokens -> --reduction=tokens | sum or mean
score pairs of another file: score @/run --pairs=@/corpus.txt -> corpus.txt | determined by the end of its name
score beyond the model: score @/run {"." * 80} -> 82 tokens | 64 are allowed | shorten
generate beyond the model: generate @/run text --length=80 -> length=80 | the model takes 64 | shorten
generate the same again: generate @/run --samples=3 --temperature=0 -> samples=3 | order=random
fill-mask with too many candidates: fill-mask @/run [MASK] --top_k=0 -> top_k=0 | 200
""")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_one_line_and_nothing_written(case, bad_inputs, capfd, caplog):
    refused(case, bad_inputs, capfd, caplog)


def test_a_second_writer_is_refused_by_the_name_of_the_first(bad_inputs, capfd):
    before = snapshot(bad_inputs)
    facts = '{"pid": 12345, "host": "elsewhere", "since": "noon"}'
    (bad_inputs / "run" / "owner.json").write_text(facts)
    with open(bad_inputs / "run" / "owner.json") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        error = refusal(capfd, "pretrain", f"{bad_inputs}/config.json", f"--workdir={bad_inputs}/run")
    assert "is being written by process 12345 on elsewhere" in error and "another --workdir" in error
    assert snapshot(bad_inputs) == before and (bad_inputs / "run" / "owner.json").read_text() == facts


def test_a_store_that_is_being_written_is_left_alone(bad_inputs, capfd):
    (bad_inputs / "busy").mkdir()
    before = snapshot(bad_inputs)
    with open(bad_inputs / "busy" / "prepare.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        capfd.readouterr()
        command = PREPARE.replace("@/new", "@/busy").replace("@", str(bad_inputs))
        assert status(*command.split()) == 2
        error = capfd.readouterr().err
        assert error.startswith("error: another `bert-jax prepare` is writing") and error.count("\n") == 1
    shutil.rmtree(bad_inputs / "busy")
    assert {name for name in before if not name.startswith("busy")} == set(snapshot(bad_inputs))


pyarrow = pytest.importorskip("pyarrow", reason="it is of the extra `corpora`, as is what reads dumps")
parquet = pytest.importorskip("pyarrow.parquet")
zstd = pytest.importorskip("backports.zstd")

TEXT = b"a small text.\n\n" * 1000


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    """What the commands of the table are given. No case may change any of it."""
    place = tmp_path_factory.mktemp("archives")
    (place / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (place / "corpus.txt").write_bytes(TEXT)
    write_cut_archives(place)
    parquet.write_table(pyarrow.table({"body": ["fine"]}), place / "other_column.parquet")
    parquet.write_table(pyarrow.table({"text": ["fine", None]}), place / "null.parquet")
    return place


def write_cut_archives(place: pathlib.Path) -> None:
    """Write archives and columnar files that lack their end, as transfers that broke off leave them."""
    record = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 5\r\n\r\nsmall\r\n\r\n"
    whole = {
        "cut.txt.gz": gzip.compress(TEXT),
        "cut.txt.zst": zstd.compress(TEXT),
        "cut.warc.wet": record * 3,
        "cut.xml.bz2": documents.write_of_dump(place / "cut.xml.bz2", documents.pages()).read_bytes(),
    }
    parquet.write_table(pyarrow.table({"text": ["fine"] * 1000}), place / "cut.parquet")
    whole["cut.parquet"] = (place / "cut.parquet").read_bytes()
    for name, data in whole.items():
        (place / name).write_bytes(data[: 9 * len(data) // 10])


PREPARATIONS_PREPARE = "prepare --vocab=@/vocab.txt --output=@/new"

PREPARATIONS_CASES = cases(f"""
a record without text in Parquet: {PREPARATIONS_PREPARE} --input=@/other_column.parquet
    -> other_column.parquet: no text column 'text', but body | --text_field
a null for a text: {PREPARATIONS_PREPARE} --input=@/null.parquet
    -> null.parquet: row 1: the column 'text' holds None, not a string
a truncated gzip file: {PREPARATIONS_PREPARE} --input=@/cut.txt.gz
    -> cut.txt.gz is not a whole gzip file | fetch or compress it again
a truncated Zstandard file: {PREPARATIONS_PREPARE} --input=@/cut.txt.zst -> cut.txt.zst is not a whole Zstandard file
an unknown language: {PREPARATIONS_PREPARE} --input=@/corpus.txt --clean.languages=en,klingon
    -> clean.languages=klingon | cannot be identified
a runner that there is none of: {PREPARATIONS_PREPARE} --input=@/corpus.txt --runner=spork -> --runner | 'spork' | beam
an option of Beam without Beam: {PREPARATIONS_PREPARE} --input=@/corpus.txt --beam.project=p
    -> --beam.project=p is an option of Apache Beam | --runner=beam
a truncated dump: {PREPARATIONS_PREPARE} --input=@/cut.xml.bz2 -> cut.xml.bz2 is not a whole bzip2 file
a truncated crawl: {PREPARATIONS_PREPARE} --input=@/cut.warc.wet -> cut.warc.wet ends within a record
a truncated Parquet file: {PREPARATIONS_PREPARE} --input=@/cut.parquet -> cut.parquet is damaged or cut short | again
a truncated dump after a whole file: {PREPARATIONS_PREPARE} --input=@/corpus.txt,@/cut.xml.bz2
    -> cut.xml.bz2 is not a whole bzip2 file
a truncated file for a vocabulary: train-vocab --output=@/new.txt --size=200 --input=@/cut.txt.gz
    -> cut.txt.gz is not a whole gzip file
""")


@pytest.mark.parametrize("case", PREPARATIONS_CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_bad_preparations_get_one_line_and_nothing_is_written(case, place, capfd, caplog):
    refused(case, place, capfd, caplog)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("prepare --input=@/latin1.txt --vocab=@/vocab.txt --output=@/new", marks=pytest.mark.slow),
        pytest.param("pretrain @/config.json --workdir=@/new --mesh.data=3", marks=pytest.mark.slow),
        pytest.param("evaluate @/run --data.path=@/other_store", marks=pytest.mark.slow),
    ],
    ids=["not UTF-8", "a mesh for other devices", "evaluate on another vocabulary"],
)
def test_the_libraries_add_no_line_of_their_own(command, bad_inputs):
    """In a process of its own, where absl, JAX and TensorFlow greet whom they can; quick: test_information.py."""
    words = [word.replace("@", str(bad_inputs)) for word in command.split()]
    finished = bert_jax(*words)
    assert finished.returncode == 2 and finished.stdout in ("", "starting JAX\n")
    assert finished.stderr.startswith("error: ") and finished.stderr.count("\n") == 1, finished.stderr


ARRAY = "params.pooler.kernel"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, says",
    [
        (
            "pretrain @/config.json --workdir=RUN",
            "error: none of the 1 checkpoints in RUN/checkpoints can be used (step 2: the array "
            "params/pooler/kernel cannot be read (FAILED_PRECONDITION)). ",
        ),
        (
            "fill-mask RUN [MASK]",
            "error: no checkpoint of RUN can be used (step_000000002: the array params/pooler/kernel cannot be "
            "read (FAILED_PRECONDITION)); ",
        ),
    ],
)
def test_a_damaged_array_is_named_in_one_line(command, says, bad_inputs, tmp_path):
    """In a process of its own: reads that were given up used to print tracebacks from TensorStore's threads."""
    import tensorstore

    shutil.copytree(bad_inputs / "run", tmp_path / "run")
    state = tmp_path / "run" / "checkpoints" / "step_000000002" / "state"
    arrays = tensorstore.KvStore.open({"driver": "ocdbt", "base": {"driver": "file", "path": f"{state}/"}}).result()
    for chunk in [
        key for key in arrays.list().result() if key.startswith(f"{ARRAY}/".encode()) and b".zarray" not in key
    ]:
        arrays.write(chunk, b"not zstd").result()
    words = [word.replace("@", str(bad_inputs)).replace("RUN", f"{tmp_path}/run") for word in command.split()]
    finished = bert_jax(*words)
    assert finished.returncode == 2 and finished.stderr.count("\n") == 1, finished.stderr
    assert finished.stderr.startswith(says.replace("RUN", f"{tmp_path}/run")), finished.stderr


@pytest.mark.slow
def test_a_save_that_fails_is_one_line(bad_inputs, tmp_path):
    """Orbax logs the failure four times, and prints a traceback for each write that was in flight."""
    words = [sys.executable, "-m", "bert_jax", "pretrain", f"{bad_inputs}/config.json", f"--workdir={tmp_path}/run"]
    command = shlex.join([*words, "--model.hidden_size=128", "--checkpoint.every_steps=1"])
    finished = processes.run("bash", "-c", f"ulimit -f 64 && {command}", env=one_device(killed=True))  # KiB
    assert finished.returncode == 2 and finished.stderr.count("\n") == 1, finished.stderr
    assert finished.stderr.startswith(
        f"error: saving the checkpoint of step 1 to {tmp_path}/run/checkpoints failed: File too large; "
    )
