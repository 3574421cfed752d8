"""The additions of docs/extending.md, made in a copy of the package: they work, in the files that the page lists."""

import pathlib
import re
import shutil
import sys

import documents
import processes
import pytest

from bert_jax.training.metrics import read_rows

ROOT = pathlib.Path(__file__).resolve().parents[2]

EDITS = {  # row of the table → file → the text of a new one, or what is replaced there and by what
    "an objective on existing batches": {
        "objectives/smoothed_words.py": (
            '"""Masked words with label smoothing."""\n\n'
            "import dataclasses\n\nimport jax\nimport jax.numpy as jnp\n\n"
            "from bert_jax.models.bert import BertForPreTraining\n"
            "from bert_jax.models.protocol import encoder_inputs\n"
            "from bert_jax.objectives.objective import Sums, Term\n\n\n"
            "@dataclasses.dataclass(frozen=True)\n"
            "class SmoothedWords:\n"
            "    model: BertForPreTraining\n"
            "    smoothing: float\n"
            '    terms: tuple[Term, ...] = (Term(name="smooth", label="smooth", unit="nats"),)\n\n'
            "    def denominators(self, batch):\n"
            '        return {"smooth": jnp.sum(batch["masked_weights"])}\n\n'
            "    def sums(self, params, batch, dropout_key=None):\n"
            "        encoded = self.model.encode(params, *encoder_inputs(batch), dropout_key)\n"
            "        logits = jax.nn.log_softmax(self.model.mlm_logits(params, batch, encoded))\n"
            '        ids, weights = batch["masked_ids"], batch["masked_weights"]\n'
            "        own = jnp.take_along_axis(logits, ids[:, :, None], axis=-1)[:, :, 0]\n"
            "        losses = -(1 - self.smoothing) * own - self.smoothing * jnp.mean(logits, axis=-1)\n"
            "        right = jnp.argmax(logits, axis=-1) == ids\n"
            "        sums = (jnp.sum(weights * each) for each in (losses, jnp.ones_like(losses), right))\n"
            '        return {"smooth": Sums(*sums)}\n\n\n'
            "def objective(model, options, epsilon, sentence_pairs):\n"
            "    return SmoothedWords(model, options.smoothing)\n"
        ),
        "config/objective.py": {
            "ObjectiveConfig = (\n    MaskedWords": (
                "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
                "class Smoothed(_Objective):\n"
                '    """Masked words with label smoothing."""\n\n'
                '    chosen_by: ClassVar[Mapping[str, str]] = {"name": "smoothed_words"}\n'
                '    losses: ClassVar[str] = "smoothed_words"\n'
                "    masks_words: ClassVar[bool] = True\n\n"
                "    smoothing: float = 0.0\n"
                '    """Share of the probability that is spread over all words."""\n\n\n'
                "ObjectiveConfig = (\n    MaskedWords | Smoothed"
            )
        },
    },
    "an architecture, a kind of layer": {
        "models/scaled_feed_forward.py": (
            '"""A feed-forward network whose output is scaled (Touvron et al. 2021, LayerScale)."""\n\n'
            "import jax.numpy as jnp\nfrom flax import nnx\n\n"
            "from bert_jax.models.block import FeedForward\n"
            "from bert_jax.models.layers import like\n\n\n"
            "class ScaledFeedForward(FeedForward):\n"
            "    def __init__(self, config, key, activation):\n"
            "        super().__init__(config, key, activation)\n"
            "        self.gain = nnx.Param(jnp.full(config.hidden_size, 0.5))\n\n"
            "    def __call__(self, x):\n"
            "        return super().__call__(x) * like(self.gain[...], x)\n"
        ),
        "models/architecture.py": {
            "from bert_jax.models.stack import": (
                "from bert_jax.models.scaled_feed_forward import ScaledFeedForward\nfrom bert_jax.models.stack import"
            ),
            "functools.partial(FeedForward, config": (
                "functools.partial(ScaledFeedForward if config.layer_scale else FeedForward, config"
            ),
        },
        "config/model.py": {
            '    norm: Literal["layer_norm", "rms_norm"]': (
                '    layer_scale: bool = False\n    """Whether a plain feed-forward network scales its output."""\n'
                '    norm: Literal["layer_norm", "rms_norm"]'
            )
        },
        "models/bert_parameters.py": {
            '    yield from norm("encoder/feed_forward_norm"': (
                "    if config.layer_scale:\n"
                '        yield Parameter("encoder/feed_forward/gain", (*feed_forward, hidden), decays=False)\n'
                '    yield from norm("encoder/feed_forward_norm"'
            )
        },
    },
    "an activation": {
        "config/model.py": {'"silu", "relu_squared"]': '"silu", "relu_squared", "mish"]'},
        "models/layers.py": {
            "def gelu_erf(": (
                "def mish(x: jax.Array) -> jax.Array:\n"
                '    """Return x · tanh(softplus(x)) (Misra 2019)."""\n'
                "    return x * jnp.tanh(jax.nn.softplus(x))\n\n\n"
                "def gelu_erf("
            )
        },
        "models/architecture.py": {
            '    "tanh": jnp.tanh,\n': '    "tanh": jnp.tanh,\n    "mish": mish,\n',
            "    make_norm,\n": "    make_norm,\n    mish,\n",
        },
    },
    "an attention kernel": {
        "models/kernels/rows.py": (
            '"""Attention one query at a time."""\n\n'
            "import jax\nimport jax.numpy as jnp\n\n"
            "from bert_jax.models.kernels import plain\n\n\n"
            "def attention(query, key, value, mask, dropout_key=None, rate=0.0, collect=False):\n"
            "    print('a kernel of our own')\n"
            "    row = lambda one: plain.attention(one[:, None], key, value, mask)[0][:, 0]\n"
            "    return jax.vmap(row, 1, 1)(query), None\n\n\n"
            "KERNEL = plain.Kernel(attention, (), otherwise=plain.attention)\n"
        ),
        "models/architecture.py": {
            "kernels.choice import PLATFORMS, attention_kernel, declared\n": (
                "kernels import rows\nfrom bert_jax.models.kernels.choice import PLATFORMS, declared\n"
            ),
            "return attention_kernel(compute, attention_in_jax(compute))": "return rows.KERNEL",
        },
    },
    "an optimizer, a schedule": {
        "config/pretraining.py": {
            '"stable_adamw", "muon"]': '"stable_adamw", "muon", "lion"]',
            "return 2 + (self.ema_decay > 0)": 'return (1 if self.name == "lion" else 2) + (self.ema_decay > 0)',
        },
        "training/optimizers.py": {
            "    else:\n        moments = scale_by_adam(": (
                '    elif config.name == "lion":\n'
                "        moments = optax.scale_by_lion(config.beta1, config.beta2)\n"
                "    else:\n        moments = scale_by_adam("
            )
        },
    },
    "a classification or regression task in GLUE's form": {
        "tasks/glue.py": {
            '    "sst2": GlueTask(': (
                '    "place": GlueTask(\n'
                '        ("PLACE",),\n        ("sentence",),\n'
                '        ("indoors", "outdoors"),\n        ("accuracy",),\n'
                '        {"train": 80, "dev": 16},\n    ),\n    "sst2": GlueTask('
            )
        },
        "config/tasks.py": {'GLUE = ("cola",': 'GLUE = ("place", "cola",'},
        "finetuning/results.py": {'METRICS = {\n    "mnli"': 'METRICS = {\n    "place": ("accuracy",),\n    "mnli"'},
    },
    "a task of another kind": {
        "tasks/marked.py": (
            '"""Texts behind their class, `__label__CLASS TEXT`, as fastText reads them."""\n\n'
            "from bert_jax.files import read_text\n"
            "from bert_jax.tasks import readers, sentences\n"
            "from bert_jax.tasks.sentences import Record\n"
            "from bert_jax.tasks.text import features, head, metrics, prediction_names, score, write_predictions\n\n\n"
            "def splits(task, data):\n"
            '    names = {split: (f"{split}.txt",) for split in ("train", "dev", "test")}\n'
            "    return readers.file_splits(data, names)\n\n\n"
            "def load(task, data, split, labels=None, given=None):\n"
            '    file = readers.find_file(data, split, (f"{split}.txt",))\n'
            "    records = []\n"
            "    for number, line in readers.lines(read_text(file)):\n"
            '        mark, _, text = line.partition(" ")\n'
            '        label = mark.removeprefix("__label__")\n'
            '        records.append(Record(f"{file}, line {number}", text, None, label, str(number - 1)))\n'
            "    labels = labels or tuple(sorted({record.label for record in records}))\n"
            "    numbers = {name: number for number, name in enumerate(labels)}\n"
            '    return sentences.collect(task, records, labels, numbers, unlabelled=split == "test")\n'
        ),
        "tasks/task_data.py": {'    "ner": "bert': '    "marked": "bert_jax.tasks.marked",\n    "ner": "bert'},
        "config/tasks.py": {'*SUPERGLUE_SENTENCES, "text")': '*SUPERGLUE_SENTENCES, "marked", "text")'},
        "config/finetuning.py": {
            '    "ner": {"epochs"': '    "marked": {"epochs": 2, "batch_size": 16},\n    "ner": {"epochs"',
        },
        "finetuning/results.py": {'    "ner": ("f1",),': '    "marked": ("accuracy",),\n    "ner": ("f1",),'},
    },
}


def table() -> dict[str, set[str]]:
    """The files that the table of docs/extending.md names for each addition; a new one by its folder."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.split("|---|---|---|\n")[1].split("\n\n")[0].splitlines()]
    return {row[1].strip(): set(re.findall(r"`([\w/]+\.py|[\w/]+/)`", row[2])) for row in rows}


def test_every_addition_of_the_guide_is_made_here():
    assert set(table()) == set(EDITS)


OF_AN_OPTION = {"config/pretraining.py", "config/model.py", "models/kernels/choice.py", "config/commands.py"}
"""Files that the guide lists for a piece that is to be an option, which those below are not."""


@pytest.mark.parametrize("row", EDITS)
def test_an_addition_touches_the_files_that_the_guide_lists(row):
    listed = table()[row]
    folders = {name for name in listed if name.endswith("/")}
    new = {file for file, edit in EDITS[row].items() if isinstance(edit, str)}
    assert {f"{file.rpartition('/')[0]}/" for file in new} == folders and len(new) == len(folders)
    assert set(EDITS[row]) - new <= listed
    # What is listed beside them is for an addition that is also an option.
    assert listed - folders - set(EDITS[row]) <= OF_AN_OPTION


def edited_copy(place: pathlib.Path) -> pathlib.Path:
    """The package with every addition in it."""
    shutil.copytree(ROOT / "bert_jax", place / "bert_jax", ignore=shutil.ignore_patterns("__pycache__"))
    for edits in EDITS.values():
        for name, edit in edits.items():
            file = place / "bert_jax" / name
            text = edit if isinstance(edit, str) else file.read_text(encoding="utf-8")
            for old, new in {} if isinstance(edit, str) else edit.items():
                assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
                text = text.replace(old, new)
            file.write_text(text, encoding="utf-8")
    return place


def test_the_additions_still_fit_the_files_that_they_edit(tmp_path):
    edited_copy(tmp_path)


@pytest.mark.slow
def test_the_additions_train_are_resumed_and_answer(small_store, tmp_path, monkeypatch):
    copy = edited_copy(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(copy))

    def command(*words) -> str:
        done = processes.run(sys.executable, "-m", "bert_jax", *map(str, words), cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    sizes = ["--model.hidden_size=16", "--model.num_layers=2", "--model.num_heads=2", "--model.hidden_dropout=0"]
    chosen = ["--model.activation=mish", "--optimizer.name=lion", "--model.attention_dropout=0"]
    chosen += ["--objective.name=smoothed_words", "--objective.smoothing=0.1", "--model.layer_scale=true"]
    run = ["pretrain", ROOT / "configs" / "bert_tiny.py", f"--data.path={small_store}", f"--workdir={tmp_path / 'run'}"]
    run += [*sizes, *chosen, "--batch_size=16", "--sequence_length=32", "--log_every_steps=1", "--mesh.data=8"]
    printed = command(*run, "--steps=3")
    assert "a kernel of our own" in printed and "step 3/3" in printed
    assert "resuming from step 3" in command(*run, "--steps=5")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "smooth_loss" in row and row["kind"] == "train"] == [1, 2, 3, 4, 5]

    for split, count in (("train", 80), ("dev", 16)):
        texts = documents.documents(count, seed=len(split))
        places = [("indoors", "outdoors")["rose" in text or "anchor" in text] for text in texts]
        lines = [(text.splitlines()[0], place) for text, place in zip(texts, places)]
        columns = "".join(f"{text}\t{place}\n" for text, place in lines)
        (tmp_path / f"{split}.tsv").write_text("sentence\tlabel\n" + columns, encoding="utf-8")
        marked = "".join(f"__label__{place} {text}\n" for text, place in lines)
        (tmp_path / f"{split}.txt").write_text(marked, encoding="utf-8")
    for task, ending in (("place", "tsv"), ("marked", "txt")):
        files = [f"--data.{split}={tmp_path / split}.{ending}" for split in ("train", "dev")]
        command("finetune", task, f"--init_from={tmp_path / 'run'}", f"--workdir={tmp_path / task}", *files)
        assert f"{task} (accuracy)" in command("results", tmp_path / task)
        assert command("predict", tmp_path / task, "--text=The rose blooms.").count("doors")
