"""Fine-tuning of every task, and its arguments."""

import collections
import dataclasses
import json
import re
import tempfile

import documents
import jax
import numpy as np
import pytest
import small_pretraining
from processes import EXHAUSTIVE
from small_finetuning import FAST, assert_same_weights, sentences, task_config, weights
from small_pretraining import finetune, run_predict

import bert_jax
from bert_jax.config import ComputeConfig, OptimizerConfig
from bert_jax.config.finetuning import FinetuneConfig, PredictConfig, task_defaults
from bert_jax.config.tasks import (
    ChoiceOptions,
    SentenceOptions,
    Squad2Options,
    TaggingDataConfig,
    TaggingOptions,
    TaskDataConfig,
    TextDataConfig,
)
from bert_jax.console import load_config
from bert_jax.data.sequences import ladder
from bert_jax.devices import hardware
from bert_jax.errors import UserError
from bert_jax.finetuning import loop
from bert_jax.finetuning.loop import IN_MEMORY, from_arguments
from bert_jax.pretraining import pretrain
from bert_jax.tasks import text
from bert_jax.tasks.task_data import family_of, held_out

OPTIONS = {
    **{"max_length": 16, "batch_size": 16, "learning_rate": 2e-3, "epochs": 1},
    **{"log_every_steps": 5, "bucket_window": 1},
}


def rows_of(tsv: str) -> list[tuple[str, str]]:
    return [tuple(line.split("\t")) for line in tsv.splitlines()[1:]]


@pytest.fixture(scope="module")
def home(pretrained):
    """The fixture's directory, with saved/: its model, written by model.save."""
    bert_jax.load(pretrained / "pretrained").save(pretrained / "saved")
    return pretrained


@pytest.fixture(scope="module")
def in_memory(home, tmp_path_factory):
    """Arguments of a finished call, and its result."""
    arguments = dict(
        train=rows_of(sentences(320, 0)),
        dev=np.array(rows_of(sentences(40, 1))),
        init_from=home / "saved",
        workdir=tmp_path_factory.mktemp("memory") / "work",
        **OPTIONS,
    )
    return arguments, finetune("text", **arguments)


@pytest.mark.slow
def test_it_is_the_run_of_the_files(in_memory, home, tmp_path):
    """From the saved model and lists as from the model and files: bit for bit."""
    arguments, result = in_memory
    files = dataclasses.replace(
        task_defaults("text"),
        init_from=str(home / "pretrained"),
        workdir=str(tmp_path / "work"),
        data=TaskDataConfig(train=str(home / "data/train.tsv"), dev=str(home / "data/dev.tsv")),
        **FAST | {"epochs": 1, "log_every_steps": 5, "compute": ComputeConfig()},
    )
    other = finetune(files)
    assert_same_weights(result.path, other.path)
    assert result.path == str(arguments["workdir"]) and repr(result) == f"Result(exit_code=0, path={result.path!r})"
    for name in ("metrics", "data", "labels", "hyperparameters"):
        assert result.results[name] == other.results[name]
    texts = [text for text, _ in arguments["train"][:4]]
    found = result.model.predict(texts)
    assert found == bert_jax.load(result.path).predict(texts) and {one.name for one in found} <= {"garden", "harbour"}
    assert result.model is result.model, "loaded once"


@pytest.mark.slow
def test_the_contents_decide_whether_a_run_is_resumed(in_memory):
    arguments, result = in_memory
    same = {"dev": [list(row) for row in arguments["dev"]], "train": iter(arguments["train"])}
    again = finetune("text", **arguments | same)
    assert again.results["runs"] == result.results["runs"], "finished: nothing was trained"
    changed = [*arguments["train"][:-1], (arguments["train"][-1][0] + " again", arguments["train"][-1][1])]
    with pytest.raises(UserError, match="different data.*features_fingerprint"):
        finetune("text", **arguments | {"train": changed})
    config = json.loads((arguments["workdir"] / "config.json").read_text())["finetune"]
    assert config["data"]["train"] == config["data"]["dev"] == IN_MEMORY


@pytest.mark.slow
def test_without_a_workdir_there_is_a_temporary_one(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError, match="there is no"):
        finetune("text", train=[("a", "x"), ("b", "y")], dev=[("a", "x")], init_from="nowhere")
    assert not list(tmp_path.iterdir()), "nothing was begun"
    numbers = [(text, len(text)) for text, _ in rows_of(sentences(64, 3))]
    result = finetune("text", train=numbers, dev=numbers[:16], init_from=home / "saved", regression=True, **OPTIONS)
    assert f"no workdir was given: results and weights go to {result.path}" in capsys.readouterr().out
    assert [str(path) for path in tmp_path.iterdir()] == [result.path] and result.results["main_metric"] == "pearson"
    assert isinstance(result.model.predict("a text")[0], float)


def test_several_hosts_are_given_a_workdir(monkeypatch):
    """Each would draw a temporary one of its own."""
    monkeypatch.setattr(hardware, "initialize_distributed", lambda peer_timeout_seconds: None)
    here = dataclasses.replace(hardware.hardware(), num_processes=2)
    monkeypatch.setattr(hardware, "hardware", lambda: here)
    with pytest.raises(UserError, match="several hosts need one workdir that all of them see: give workdir="):
        finetune("mrpc", dir="nowhere", init_from="nowhere")


def test_an_interrupted_run_has_no_model():
    from bert_jax.finetuning.loop import Result

    with pytest.raises(UserError, match="interrupted; the same call with workdir='here' resumes it"):
        Result({}, 130, "here").model


PAIRS = [(("a", "b"), 1), (["c", "d"], 0), (("e", "f"), 10)]
FORMS = {
    "names": ([("a", "x"), ["b", " y "], np.array(["c", "x"])], ["a", "b", "c"], None, ("x", "y"), [0, 1, 0]),
    "an array": (np.array([("a", "x"), ("b", "y")]), ["a", "b"], None, ("x", "y"), [0, 1]),
    "an array of objects": (np.array([("a", 3), ("b", 20)], object), ["a", "b"], None, ("3", "20"), [0, 1]),
    "numbers of NumPy": (list(zip(["a", "b"], np.array([1, 0]))), ["a", "b"], None, ("0", "1"), [1, 0]),
    "truth": ([("a", True), ("b", np.False_)], ["a", "b"], None, ("False", "True"), [1, 0]),
    "pairs": (PAIRS, ["a", "c", "e"], ["b", "d", "f"], ("0", "1", "10"), [1, 0, 2]),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    rows, first, second, labels, answers = FORMS[name]
    config, given = from_arguments("text", {"train": rows, "dev": "dev.tsv"}, {"init_from": "m"})
    examples = text.load("text", config.data, "train", given=given)
    expected = (first, second, labels, answers)
    assert (examples.first, examples.second, examples.labels, examples.answers.tolist()) == expected
    dev = text.load("text", TextDataConfig(), "dev", labels, {"dev": rows[::-1]})
    assert dev.first == first[::-1] and dev.labels == labels


def test_numbers_and_test_sets_without_labels():
    regression = TextDataConfig(regression=True)
    given = {"train": [("a", 1), ("b", np.float32(0.5)), ("c", "-3e1")]}
    examples = text.load("text", regression, "train", given=given)
    assert (examples.labels, examples.answers.tolist()) == ((), [1, 0.5, -30])
    unlabelled = text.load("text", TextDataConfig(), "test", ("x", "y"), {"test": [("a", None), ("b", None)]})
    assert unlabelled.first == ["a", "b"] and not unlabelled.has_answers


ENDLESS: list = []
ENDLESS.append(ENDLESS)
WRONG = {
    "a list in itself": ([ENDLESS], "an example is nested too deeply, or has itself as a part"),
    "two lists": ((["a", "b", "c"], ["x", "y", "x"]), r"train\[0\] is \['a', 'b', 'c'\]; expected .*list\(zip\("),
    "texts alone": (["a good film", "a bad film"], r"train\[0\] is 'a good film'; expected"),
    "three texts": ([(("a", "b", "c"), "x")], r"train\[0\] has 3 texts"),
    "no text": ([("a", "x"), (3, "y")], r"train\[1\]: 'text' is 3, not text"),
    "an empty text": ([("a", "x"), (" ", "y")], r"train\[1\]: the text in column 'text' is empty"),
    "a pair later": ([("a", "x"), (("b", "c"), "y")], r"train\[1\] has 'text_pair', which the first example lacks"),
    "a single text later": ([(("a", "b"), "x"), ("c", "y")], r"train\[1\]: 'text_pair' is missing"),
    "no label": ([("a", "x"), ("b", None)], r"train\[1\]: the label is missing"),
    "floats": (
        [("a", 1.0), ("b", 0.0)],
        r"train\[0\]: the label '1.0' is a decimal number.*regression=True.*regression=False",
    ),
    "a list as a label": ([("a", ["x"])], r"train\[0\]: the label \['x'\] is a list; give .*several_labels=True"),
    "one class": ([("a", "x"), ("b", "x")], r"train\[0\], and every other example, has the label 'x'"),
    "nothing": ([], "train holds no example"),
    "a mapping of texts": ({"a": "x"}, "train: the column 'a' is 'x', not a list or an array"),
    "ragged columns": (
        {"text": ["a", "b"], "label": ["x"]},
        r"train: columns of different lengths \(text 2, label 1\)",
    ),
    "no column": (
        {"review": ["a"], "y": ["x"]},
        r"train\[0\]: no column text or sentence .*among 'review', 'y'.*text_column",
    ),
    "a set": ({("a", "x")}, "train is a set, whose order differs from one start to the next"),
    "bytes": (b"a", "train is bytes; expected a file, or examples"),
    "a used iterator": (iter(()), "train is a tuple_iterator without a row; an iterator gives its rows once"),
    "a text in a row is missing": ({"text": ["a", None], "label": ["x", "y"]}, r"train\[1\]: 'text' is missing"),
    "a missing label": ({"text": ["a", "b"], "label": [1, np.nan]}, r"train\[1\]: the label is missing"),
    "no rows": ({"text": [], "label": []}, "train holds no example"),
    "a number": (3, "train is int; expected a file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_examples_are_named(name):
    rows, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        config, given = from_arguments("text", {"train": rows, "dev": []}, {})
        text.load("text", config.data, "train", given=given)


TEXTS, NAMES = ["a", "b", "c"], ["x", "y", "x"]
Named = collections.namedtuple("Named", "label text")


@dataclasses.dataclass
class Review:
    text: str
    label: str


CONTAINERS = {
    "dicts": [{"text": one, "label": other, "id": 3} for one, other in zip(TEXTS, NAMES)],
    "columns": {"text": TEXTS, "label": np.array(NAMES)},
    "a structured array": np.array(list(zip(TEXTS, NAMES)), dtype=[("text", "U9"), ("label", "U9")]),
    "named tuples": [Named(other, one) for one, other in zip(TEXTS, NAMES)],
    "dataclasses": [Review(one, other) for one, other in zip(TEXTS, NAMES)],
    "a generator": (pair for pair in zip(TEXTS, NAMES)),
    "text of NumPy": [(np.str_(one), np.str_(other)) for one, other in zip(TEXTS, NAMES)],
}


def examples_of(task, rows, **options):
    """The training examples of rows in memory."""
    config, given = from_arguments(task, {"train": rows, "dev": "dev"}, options)
    return family_of(task).load(task, config.data, "train", given=given)


def of_texts(examples):
    return examples.first, examples.labels, examples.answers.tolist()


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers(name):
    assert of_texts(examples_of("text", CONTAINERS[name])) == (TEXTS, ("x", "y"), [0, 1, 0])


def test_frames_and_tables():
    """The libraries themselves; test_hub.py has the data sets of the package datasets."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    columns = {"text": TEXTS, "label": NAMES}
    frame = pandas.DataFrame(columns, index=[7, 3, 7])
    for source in (
        frame,
        frame.astype({"text": "string", "label": "category"}),
        frame.itertuples(),
        [row for _, row in frame.iterrows()],
        {"text": frame.text, "label": pyarrow.chunked_array([NAMES])},
        pyarrow.table(columns),
        pyarrow.table(columns).to_reader(),
    ):
        assert of_texts(examples_of("text", source)) == (TEXTS, ("x", "y"), [0, 1, 0])
    missing = pandas.DataFrame({"text": TEXTS, "label": pandas.array([1, None, 0], dtype="Int64")})
    for source, message in (
        (missing, r"train\[1\]: the label is missing"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "train: two columns have the same name: text, text"),
        (frame.text, "train is a Series, one column; give a data frame, or a dict of columns"),
        (frame.rename(columns={"text": "review"}), r"no column text or .* among 'review', 'label'; .*text_column=…"),
    ):
        with pytest.raises(UserError, match=message):
            examples_of("text", source)
    renamed = frame.rename(columns={"text": "review"})
    assert of_texts(examples_of("text", renamed, text_column="review"))[0] == TEXTS
    tagged = pandas.DataFrame(
        {"tokens": [np.array(["Ann", "sings"], object)], "ner_tags": [np.array(["B-PER", "O"], object)]}
    )
    assert examples_of("ner", tagged).sentences[0].tags == ("B-PER", "O")


def test_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"text": TEXTS, "label": NAMES})
    for source in (frame, frame.lazy(), frame.iter_rows(named=True), {name: frame[name] for name in frame.columns}):
        assert of_texts(examples_of("text", source)) == (TEXTS, ("x", "y"), [0, 1, 0])


ANSWERED = {"question": "who?", "context": "Ann sings", "answers": {"text": ["Ann"], "answer_start": [0]}}
ROWS = {  # (task, its rows as tuples, the same as dicts, the same as a file, the name of the file)
    "ner": (
        [(["Ann", "sings"], ["B-PER", "O"]), (("So",), ("O",))],
        [{"tokens": ["Ann", "sings"], "ner": ["B-PER", "O"]}, {"words": ["So"], "tags": ["O"]}],
        "Ann B-PER\nsings O\n\nSo O\n",
        "train.txt",
    ),
    "choice": (
        [(("a cat", "it"), ["sits", "flies"], 0), (("a bird", "it"), ("sits", "flies"), "B")],
        [
            {"context": "a cat", "question": "it", "choices": ("sits", "flies"), "answer": "A"},
            {"sent1": "a bird", "sent2": "it", "ending0": "sits", "ending1": "flies", "label": np.int64(1)},
        ],
        '{"context": "a cat", "question": "it", "choices": ["sits", "flies"], "answer": 0}\n'
        '{"context": "a bird", "question": "it", "choices": ["sits", "flies"], "answer": 1}\n',
        "train.jsonl",
    ),
    "rte": (
        [(("a", "b"), "entailment"), (("c", "d"), 1)],
        [
            {"sentence1": "a", "sentence2": "b", "label": "entailment"},
            {"sentence1": "c", "sentence2": "d", "label": "not_entailment"},
        ],
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n",
        "train.tsv",
    ),
    "squad_v2": (
        [("who?", "Ann sings", [("Ann", 0)]), ("what?", "Ann sings", None)],
        [ANSWERED, {"id": 1, "question": "what?", "context": "Ann sings", "answers": []}],
        json.dumps(
            {
                "data": [
                    {
                        "paragraphs": [
                            {
                                "context": "Ann sings",
                                "qas": [
                                    {"id": "0", "question": "who?", "answers": [{"text": "Ann", "answer_start": 0}]},
                                    {"id": "1", "question": "what?", "answers": []},
                                ],
                            }
                        ]
                    }
                ]
            }
        ),
        "train.json",
    ),
}


def contents(task, examples):
    """The examples, without the names of their places."""
    if task == "rte":
        return examples.first, examples.second, examples.answers.tolist(), examples.labels, examples.index
    if task == "ner":
        return examples.labels, [(each.words, each.tags) for each in examples.sentences]
    return [each._replace(where="") if task == "choice" else each for each in examples.questions]


@pytest.mark.parametrize("task", ROWS)
def test_every_task_reads_rows_as_its_files(task, tmp_path):
    tuples, dicts, text, name = ROWS[task]
    (tmp_path / name).write_text(text)
    kind = TaggingDataConfig if task == "ner" else TaskDataConfig
    expected = contents(task, family_of(task).load(task, kind(train=str(tmp_path / name)), "train"))
    lines = "".join(json.dumps(row, default=int) + "\n" for row in dicts)
    (tmp_path / "rows.jsonl").write_text(lines)
    rows = family_of(task).load(task, kind(train=str(tmp_path / "rows.jsonl")), "train")
    for found in (examples_of(task, tuples), examples_of(task, iter(dicts)), rows):
        assert contents(task, found) == expected


WRONG_ROWS = {
    "no pair": ("ner", [["Ann", "sings", "so"]], r"train\[0\] is \['Ann', .*expected \(\[word, …\], \[tag, …\]\)"),
    "text as words": ("ner", [("Ann sings", "B-PER O")], r"train\[0\]: its words are 'Ann sings', not a list of text"),
    "ragged tags": ("ner", [(["Ann"], ["B-PER", "O"])], r"train\[0\]: 1 words and 2 tags"),
    "numbers as tags": ("ner", [(["a"], ["O"]), (["Ann"], [3])], r"train\[1\], tag 0 is 3, not text; give the names"),
    "no tags": ("ner", [{"tokens": ["a"], "pos": ["DT"]}], r"no field 'ner or tags or ner_tags' among pos, tokens"),
    "two values": (
        "choice",
        [("a cat", ["sits", "flies"])],
        r"train\[0\] is .*expected \(context, \[choice, …\], answer",
    ),
    "a choice": ("choice", [("a cat", "sits", 0)], r'train\[0\]: choices is no list but "sits"'),
    "any choice": ("choice", [("a cat", ["sits", object()], 0)], r"train\[0\]: choice 1 is not text but .<object"),
    "an answer": ("choice", [("a cat", ["sits", "flies"], 2)], r"train\[0\]: the answer '2' is none of the 2 choices"),
    "a single text": ("rte", [("a", "entailment")], r"train\[0\] is .*; expected \(\(text, text_b\), label\)"),
    "a class": ("rte", [(("a", "b"), "neutral")], r"train\[0\]: unknown label 'neutral'; expected one of entailment"),
    "no class": ("rte", [(("a", "b"), None)], r"train\[0\]: the label is missing"),
    "columns": ("cola", [{"text": "a", "label": 1}], r"train\[0\] has no sentence, but text, label: it is not cola"),
    "a scale": ("stsb", [(("a", "b"), 5.5)], r"train\[0\]: the score 5.5 is not between 0 and 5"),
    "no number": ("stsb", [(("a", "b"), [3])], r"train\[0\]: the label \[3\] is neither text nor a number"),
    "a text of numbers": ("stsb", [(("a", 3), 2.0)], r"train\[0\]: 'sentence2' is 3, not text"),
    "no place": ("squad_v2", [("who?", "Ann sings", "Ann")], r"train\[0\] is .*\(answer, its first character"),
    "another place": (
        "squad_v1",
        [("who?", "Ann sings", [("Ann", 3)])],
        "question 0: answer 'Ann' is not at character 3",
    ),
    "ragged answers": (
        "squad_v1",
        [ANSWERED | {"answers": {"text": ["Ann"], "answer_start": []}}],
        r"train\[0\]: 1 answers and 0 numbers",
    ),
    "no context": ("squad_v1", [{"question": "who?"}], r"train\[0\]: the row has no 'context', only 'question'"),
    "no rows": ("squad_v1", [], "train holds no question"),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_bad_rows_of_other_tasks_are_named(name):
    task, rows, message = WRONG_ROWS[name]
    with pytest.raises(UserError, match=message) as raised:
        examples_of(task, rows)
    assert "\n" not in str(raised.value) or name == "another place"


def test_an_iterator_is_one_split():
    rows = iter([("a", "x"), ("b", "y")])
    with pytest.raises(UserError, match="train and dev are one iterator, which gives its rows once"):
        from_arguments("text", {"train": rows, "dev": rows}, {})


def test_an_unknown_class_in_dev():
    with pytest.raises(UserError, match=r"dev\[1\]: unknown label 'posi'; expected one of neg, pos; perhaps 'pos'"):
        text.load("text", TextDataConfig(), "dev", ("neg", "pos"), {"dev": [("a", "pos"), ("b", "posi")]})


def test_options_by_keyword(tmp_path):
    config, given = from_arguments(
        "mrpc",
        {"train": tmp_path / "a.tsv", "dev": "b.tsv", "test": None},
        {
            "init_from": tmp_path,
            "workdir": "w",
            "epochs": np.int64(7),
            "learning_rate": 1,
            "max_length": 64,
            "grid_epochs": [1, 2],
            "optimizer": {"name": "lamb"},
            "weight_decay": 0.5,
            "mesh.data": 2,
            "head_dropout": 0.25,
            "schedule": bert_jax.ScheduleConfig(power=2.0),
        },
    )
    assert not given and config == dataclasses.replace(
        task_defaults("mrpc"),
        init_from=str(tmp_path),
        workdir="w",
        epochs=7,
        learning_rate=1.0,
        grid_epochs=(1, 2),
        options=SentenceOptions(max_length=64),
        data=TaskDataConfig(train=str(tmp_path / "a.tsv"), dev="b.tsv"),
        head_dropout=0.25,
        optimizer=OptimizerConfig(name="lamb", weight_decay=0.5),
        mesh=bert_jax.MeshConfig(data=2),
        schedule=bert_jax.ScheduleConfig(power=2.0),
    )
    assert from_arguments(config, {}, {"freeze": "embeddings,layers.0"})[0].freeze == ("embeddings", "layers.0")
    assert from_arguments(config, {}, {"seed": 3})[0] == dataclasses.replace(config, seed=3)
    assert from_arguments(FinetuneConfig(task="text"), {}, {})[0].workdir == ""


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("text", {"learning_rat": 1e-3}, "unknown option 'learning_rat'; perhaps you meant learning_rate"),
        ("text", {"maxlength": 8}, "perhaps you meant max_length"),
        ("text", {"zzz": 1}, "unknown option 'zzz'; `bert-jax finetune TASK --help` lists them"),
        ("text", {"name": "lamb"}, "name is ambiguous: schedule.name or optimizer.name; write schedule={'name': …}"),
        ("text", {"optimizer": {"nam": "lamb"}}, "unknown option optimizer.nam; perhaps you meant optimizer.name"),
        ("text", {"optimizer": "lamb"}, "optimizer takes a dict of its options (name, "),
        ("text", {"data": "GLUE"}, "data takes a dict of its options (dir, train, dev, test, "),
        ("text", {"data": None}, "regression, several_labels, label_separator), not None"),
        ("text", {"doc_stride": 9}, "options.doc_stride=9 belongs to task=squad_v1 or squad_v2 or ner, not to text"),
        ("mrpc", {"data": {"scheme": "iob1"}}, "data.scheme=iob1 belongs to task=ner, not to mrpc; leave it out"),
        ("text", {"epochs": 1.5}, "epochs=1.5 must be of type int"),
        ("text", {"learning_rate": "3e-5"}, "learning_rate='3e-5' must be of type float"),
        ("text", {"select": "first"}, "select='first' must be one of last, best"),
        ("text", {"init_from": object()}, "init_from takes the path of a model, not a object; model.save(path)"),
        ("txt", {}, "unknown task 'txt'; perhaps you meant text"),
        (3, {}, "takes a task or a FinetuneConfig first, not 3"),
    ],
)
def test_bad_options_are_named(task, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        from_arguments(task, {}, options)


def test_a_share_of_train_is_held_out_as_of_a_file(home):
    """The same texts as of the file with the same lines."""
    rows = rows_of(sentences(320, 0))
    config, given = from_arguments("text", {"train": rows}, {"dev_share": 0.2})
    of_file = dataclasses.replace(config.data, train=str(home / "data/train.tsv"))
    out, of_lines = (
        held_out(text.load("text", data, "train", given=rows), 0.2, True)
        for data, rows in ((config.data, given), (of_file, None))
    )
    assert out.tolist() == of_lines.tolist() and 40 < out.sum() < 90
    with pytest.raises(UserError, match="test in memory: ax is not trained and reads files: give dir="):
        from_arguments("ax", {"test": [(("a", "b"), None)]}, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tfds": "glue/sst2"},
            "tfds='glue/sst2' has all splits, but train and dev are given in memory too; leave one of the two out",
        ),
        (
            {"text_column": "review"},
            "text_column='review' names a column, but all examples are in memory without such names",
        ),
        ({"pair_column": "b"}, "pair_column='b' names a column"),
        ({"data": {"label_column": "y"}}, "label_column='y' names a column"),
    ],
)
def test_options_of_files_beside_examples_in_memory(options, message):
    """Once ignored."""
    rows = [("a", "x"), ("b", "y")]
    with pytest.raises(UserError, match=re.escape(message)):
        from_arguments("text", {"train": rows, "dev": rows}, options)
    if "tfds" not in options:
        assert from_arguments("text", {"train": rows, "dev": "dev.tsv"}, options)[1] == {"train": rows}
        assert from_arguments("text", {"train": rows}, options | {"dir": "d"})[1] == {"train": rows}


GARDEN = documents.TOPICS["garden"][0]


def sentences_of_tasks(random, topics):
    """One sentence of each of these topics: (noun, verb, place)."""
    return [[words[random.integers(5)] for words in (*documents.TOPICS[topic], documents.PLACES)] for topic in topics]


def squad(random, count):
    """Contexts of two windows, asked for their noun of the garden; a third has none."""
    questions = []
    for number in range(count):
        topics = ["harbour", "kitchen", "workshop" if number % 3 == 0 else "garden"]
        found = sentences_of_tasks(random, random.permutation(topics))
        context = " ".join(f"The {noun} {verb} {place}." for noun, verb, place in found)
        answers = [{"text": noun, "answer_start": context.index(noun)} for noun, _, _ in found if noun in GARDEN]
        questions.append(
            {
                "context": context,
                "qas": [
                    {"id": f"q{number}", "question": "the garden?", "answers": answers, "is_impossible": not answers}
                ],
            }
        )
    return json.dumps({"version": "v2.0", "data": [{"paragraphs": questions}]})


def ner(random, count):
    """Nouns of two topics, and times of several words."""
    lines = []
    for number in range(count):
        topic = ("garden", "harbour")[number % 2]
        ((noun, verb, place),) = sentences_of_tasks(random, [topic])
        first, *more = place.split()
        lines += ["The O", f"{noun} B-{topic}", f"{verb} O", f"{first} B-time", *(f"{w} I-time" for w in more), ""]
    return "\n".join(lines) + "\n"


def choice(random, count):
    """The one of three that is about the garden."""
    lines = []
    for _ in range(count):
        topics = random.permutation(["garden", "harbour", "kitchen"])
        choices = [f"{noun} {verb}" for noun, verb, _ in sentences_of_tasks(random, topics)]
        lines.append(json.dumps({"context": "The", "choices": choices, "answer": int(np.argmax(topics == "garden"))}))
    return "\n".join(lines) + "\n"


WINDOWS = Squad2Options(max_length=24, max_query_length=6, doc_stride=8)
CASES = {
    "squad_v2": (squad, ".json", 0.6, {"options": WINDOWS, "epochs": 2}, "predictions.json"),
    "ner": (ner, ".txt", 0.8, {"options": TaggingOptions(max_length=16), "epochs": 4}, "predictions.conll"),
    "ner crf features": (
        ner,
        ".txt",
        0.8,
        {
            "options": TaggingOptions(max_length=16),
            "crf": True,
            "features": "weighted_all",
            "lstm_size": 8,
            "learning_rate": 2e-2,
            "epochs": 4,
        },
        "predictions.conll",
    ),
    "ner lstm": (
        ner,
        ".txt",
        0.8,
        {
            "options": TaggingOptions(max_length=16),
            "features": "last",
            "train_encoder": True,
            "lstm_size": 32,
            "learning_rate": 5e-3,
            "epochs": 4,
        },
        "predictions.conll",
    ),
    "choice": (choice, ".jsonl", 0.9, {"options": ChoiceOptions(max_length=16)}, "predictions.jsonl"),
}


def answers(task, model, file):
    """What the loaded model says to the examples of a file, in the form of `predictions`."""
    if task == "squad_v2":
        questions = [
            (asked["question"], paragraph["context"], asked["id"])
            for paragraph in json.loads(file.read_text())["data"][0]["paragraphs"]
            for asked in paragraph["qas"]
        ]
        return dict(zip((id for *_, id in questions), (a.text for a in model.predict([q[:2] for q in questions]))))
    if task == "choice":
        records = map(json.loads, file.read_text().splitlines())
        return [c.index for c in model.predict([(record["context"], record["choices"]) for record in records])]
    blocks = [[line.split()[0] for line in block.splitlines()] for block in file.read_text().strip().split("\n\n")]
    return [tag for tags in model.predict([tuple(words) for words in blocks]) for _, tag in tags]


def predictions(task, file):
    text = file.read_text()
    if task == "squad_v2":
        return json.loads(text)
    if task == "choice":
        return [json.loads(line)["answer"] for line in text.splitlines()]
    return [line.split()[-1] for line in text.splitlines() if line]


def keys(answers):
    return answers if isinstance(answers, dict) else range(len(answers))


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "ner lstm" or EXHAUSTIVE])
def test_learned_and_predicted_alike_on_every_road(case, pretrained, tmp_path, monkeypatch):
    make_file, suffix, least, changes, name = CASES[case]
    task, work = case.split()[0], tmp_path / "work"
    train, dev = (tmp_path / f"{split}{suffix}" for split in ("train", "dev"))
    for file, count, seed in ((train, 240, 0), (dev, 30, 1)):
        file.write_text(make_file(np.random.default_rng(seed), count))
    made, make = [], loop.make_programs
    monkeypatch.setattr(loop, "make_programs", lambda *args, **given: made.append(make(*args, **given)) or made[-1])
    files = {"train": train, "dev": dev}
    config = task_config(task, pretrained / "pretrained", work, files, **FAST | changes)
    results = finetune(config).results
    assert results["metrics"][results["main_metric"]] > least and results["collapsed"] is None
    for program in (made[0].train_step, made[0].predict_step):
        assert len(program.compiled) <= len(ladder(config.options.max_length))

    metric = results["main_metric"]
    options = PredictConfig(input=str(dev), output=f"{tmp_path / 'again'}/", split="dev", batch_size=7)
    # SQuAD's threshold is the very odds of one question, which falls on either side of it by how its batch is rounded.
    assert run_predict(str(work), options)[metric] == pytest.approx(results["metrics"][metric], abs=1.01 / 30)
    roads = (work / "predictions/dev", tmp_path / "again")
    said, again, loaded = *(predictions(task, road / name) for road in roads), answers(task, bert_jax.load(work), dev)
    for other in again, loaded:
        assert len(other) == len(said) and sum(other[key] != said[key] for key in keys(said)) <= (task == "squad_v2")
    before, after = weights(pretrained / "pretrained"), weights(work)
    same = [np.array_equal(before[path], after[path]) for path in after if path.startswith(("embeddings", "encoder"))]
    assert all(same) if "features" in case else not any(same)


def natural_inference(random, count):
    """(premise, hypothesis, label): what the hypothesis is about decides, as a model of this size can learn."""
    labels, rows = {"garden": "entailment", "harbour": "neutral", "kitchen": "contradiction"}, []
    for topic in random.choice(list(labels), count):
        rows.append([*(" ".join(words) for words in sentences_of_tasks(random, ["workshop", topic])), labels[topic]])
    return rows


@pytest.mark.slow
def test_a_model_of_mnli_is_tried_on_ax(pretrained, tmp_path, capsys):
    metrics, random = pytest.importorskip("sklearn.metrics"), np.random.default_rng(0)
    for file, count in {"train": 240, "dev_matched": 30, "dev_mismatched": 30}.items():
        rows = ["sentence1\tsentence2\tgold_label", *map("\t".join, natural_inference(random, count))]
        (tmp_path / f"{file}.tsv").write_text("\n".join(rows) + "\n")
    asked = natural_inference(random, 60)
    (tmp_path / "AX").mkdir()
    table = ["Premise\tHypothesis\tLabel", *map("\t".join, asked)]
    (tmp_path / "AX/diagnostic-full.tsv").write_text("\n".join(table) + "\n")
    options = FAST | {"epochs": 4}
    config = task_config("mnli", pretrained / "pretrained", tmp_path / "mnli", {"dir": tmp_path}, **options)
    results = finetune(config).results
    assert results["metrics"]["accuracy"] > 0.5 < results["metrics"]["mismatched_accuracy"]

    config = task_config("ax", tmp_path / "mnli", tmp_path / "ax", {"dir": tmp_path / "AX"})
    with pytest.raises(UserError, match="mnli holds a different run or its results"):
        finetune(dataclasses.replace(config, workdir=config.init_from))
    assert json.loads((tmp_path / "mnli/results.json").read_text()) == results
    capsys.readouterr()
    results = finetune(config).results
    (file,) = (tmp_path / "ax/predictions/dev").iterdir()
    said = [line.split("\t")[1] for line in file.read_text().splitlines()[1:]]
    expected = metrics.matthews_corrcoef([label for *_, label in asked], said)
    assert results["metrics"]["matthews"] == pytest.approx(expected, abs=1e-12) and expected > 0.2
    assert json.loads((tmp_path / "ax/results.json").read_text()) == results
    assert f"ax dev: 60 predictions in {file.parent}, matthews {100 * expected:.2f}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_weighted_layers_of_elmo_are_features(small_store, tmp_path):
    """Peters et al. 2018, section 3.2: pre-trained, frozen, and its layers mixed by weights that are learned."""
    elmo = load_config("elmo_mini")
    config = small_pretraining.run_config(
        small_store,
        tmp_path / "elmo",
        model=dataclasses.replace(elmo.model, hidden_size=32, initializer_range=0.1),
        objective=elmo.objective,
        data=dataclasses.replace(elmo.data, path=str(small_store), held_out=0.0, loader="plain"),
    )
    pretrain(config, devices=jax.devices()[:1])
    train, dev = (tmp_path / f"{split}.txt" for split in ("train", "dev"))
    for file, count, seed in ((train, 240, 0), (dev, 30, 1)):
        file.write_text(ner(np.random.default_rng(seed), count))
    _, _, least, changes, _ = CASES["ner crf features"]
    files = {"train": train, "dev": dev}
    task = task_config("ner", tmp_path / "elmo", tmp_path / "task", files, **FAST | changes)
    assert finetune(task).results["metrics"]["f1"] > least
    before, after = weights(tmp_path / "elmo"), weights(tmp_path / "task")
    for path in (path for path in after if path.startswith(("embeddings", "encoder"))):
        np.testing.assert_array_equal(after[path], before[path], err_msg=path)
    assert np.ptp(after["head/mix/weights"]) > 0 and after["head/mix/weights"].shape == (2,)
    words = "The rose waters the garden".split()
    assert [word for word, _ in bert_jax.load(tmp_path / "task").predict([tuple(words)])[0]] == words

    asked = [natural_inference(np.random.default_rng(seed), count) for seed, count in ((0, 240), (1, 30))]
    train, dev = ([((premise, hypothesis), label) for premise, hypothesis, label in rows] for rows in asked)
    options = {"features": "weighted_with_embeddings", "lstm_size": 8, "learning_rate": 2e-2, "epochs": 4}
    classified = finetune("text", train=train, dev=dev, init_from=str(tmp_path / "elmo"), **FAST | options)
    assert classified.results["metrics"]["accuracy"] > 0.8
    for path, array in weights(classified.path).items():
        if path.startswith(("embeddings", "encoder")):
            np.testing.assert_array_equal(array, before[path], err_msg=path)
    (answer,) = bert_jax.load(classified.path).predict([dev[0][0]])
    assert answer.name in {"entailment", "neutral", "contradiction"}
