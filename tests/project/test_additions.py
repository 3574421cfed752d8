"""The additions of docs/extending.md, made in a copy of the package: they work, in the files that the page lists."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import small_corpus

ROOT = pathlib.Path(__file__).resolve().parents[2]

EDITS = {  # row of the table → file → what is replaced there, and by what; a new file replaces None
    "an activation": {
        "config/encoder.py": [('Literal["gelu_tanh", "gelu_erf"]', 'Literal["gelu_tanh", "gelu_erf", "squared_relu"]')],
        "models/layers.py": [
            (
                "def gelu_erf(",
                "def squared_relu(x: jax.Array) -> jax.Array:\n"
                '    """Return max(x, 0)² (So et al. 2021, Primer)."""\n'
                "    return jnp.square(jnp.maximum(x, 0))\n\n\n"
                "def gelu_erf(",
            )
        ],
        "models/architecture.py": [
            ('"tanh": jnp.tanh}', '"tanh": jnp.tanh, "squared_relu": squared_relu}'),
            ("    relu,\n", "    relu,\n    squared_relu,\n"),
        ],
    },
    "an attention kernel": {
        "models/kernels/rows.py": [
            (
                None,
                '"""Attention one query at a time."""\n\n'
                "import jax\nimport jax.numpy as jnp\n\n"
                "from bert_jax.models.kernels import xla\n\n\n"
                "def attention(query, key, value, mask, dropout_key=None, rate=0.0, collect=False):\n"
                "    if collect or dropout_key is not None or mask.adder().shape[2] != 1:\n"
                "        return xla.attention(query, key, value, mask, dropout_key, rate, collect)\n"
                "    print('a kernel of our own')\n"
                "    row = lambda one: xla.attention(one[:, None], key, value, mask)[0][:, 0]\n"
                "    return jax.vmap(row, 1, 1)(query), None\n",
            )
        ],
        "models/architecture.py": [
            ("kernels.choice import attention_kernel\n", "kernels import rows\n"),
            ("return attention_kernel(compute)", "return rows.attention"),
        ],
    },
    "an optimizer": {
        "config/optimization.py": [
            ('"stable_adamw", "muon"]', '"stable_adamw", "muon", "lion"]'),
            ("return 2 + (self.ema_decay > 0)", 'return (1 if self.name == "lion" else 2) + (self.ema_decay > 0)'),
        ],
        "optim/optimizers.py": [
            (
                "    else:\n        moments = optax.scale_by_adam(",
                '    elif config.name == "lion":\n'
                "        moments = optax.scale_by_lion(config.beta1, config.beta2)\n"
                "    else:\n        moments = optax.scale_by_adam(",
            )
        ],
    },
    "a classification or regression task in GLUE's form": {
        "tasks/glue/facts.py": [
            (
                '    "sst2": GlueTask(',
                '    "place": GlueTask(\n'
                '        ("PLACE",),\n        ("sentence",),\n'
                '        ("indoors", "outdoors"),\n        ("accuracy",),\n'
                '        {"train": 80, "dev": 16},\n    ),\n    "sst2": GlueTask(',
            )
        ],
        "config/task_options.py": [('GLUE = ("cola",', 'GLUE = ("place", "cola",')],
        "finetuning/results_table.py": [
            ('METRICS = {\n    "mnli"', 'METRICS = {\n    "place": ("accuracy",),\n    "mnli"')
        ],
    },
}


def listed(row: str) -> set[str]:
    """The files that the table of docs/extending.md names for an addition."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
    return set(re.findall(r"`([\w/]+\.py|[\w/]+/)`", line.split("|")[2]))


OF_AN_OPTION = {"config/options.py", "config/encoder.py", "models/kernels/choice.py", "config/benchmarking.py"}
"""Files that the guide lists for a piece that is to be an option, which those below are not."""


@pytest.mark.parametrize("row", EDITS)
def test_an_addition_touches_the_files_that_the_guide_lists(row):
    folders = {name for name in listed(row) if name.endswith("/")}
    touched = set(EDITS[row])
    new = {file for file in touched if any(file.startswith(folder) for folder in folders)}
    assert len(new) == len(folders)
    assert touched - new <= listed(row)
    # What is listed beside them is for an addition that is also an option.
    assert listed(row) - folders - touched <= OF_AN_OPTION


def edited_copy(place: pathlib.Path) -> pathlib.Path:
    """The package with every addition in it."""
    shutil.copytree(ROOT / "bert_jax", place / "bert_jax", ignore=shutil.ignore_patterns("__pycache__"))
    for edits in EDITS.values():
        for name, replacements in edits.items():
            file = place / "bert_jax" / name
            for old, new in replacements:
                text = "" if old is None else file.read_text(encoding="utf-8")
                assert old is None or text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
                file.write_text(new if old is None else text.replace(old, new), encoding="utf-8")
    return place


def test_the_additions_still_fit_the_files_that_they_edit(tmp_path):
    edited_copy(tmp_path)


@pytest.mark.slow
def test_the_additions_train_are_resumed_and_answer(small_store, tmp_path, monkeypatch):
    copy = edited_copy(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(copy))

    def command(*words) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "bert_jax", *map(str, words)], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    sizes = ["--model.hidden_size=16", "--model.num_layers=2", "--model.num_heads=2", "--model.hidden_dropout=0"]
    chosen = ["--model.activation=squared_relu", "--optimizer.name=lion", "--model.attention_dropout=0"]
    run = ["pretrain", ROOT / "configs" / "bert_tiny.py", f"--data.path={small_store}", f"--workdir={tmp_path / 'run'}"]
    run += [*sizes, *chosen, "--batch_size=16", "--sequence_length=32", "--log_every_steps=1", "--mesh.data=8"]
    printed = command(*run, "--steps=3")
    assert "a kernel of our own" in printed and "step 3/3" in printed
    assert "resuming from step 3" in command(*run, "--steps=5")

    for split, count in (("train", 80), ("dev", 16)):
        rows = [
            f"{text.splitlines()[0]}\t{('indoors', 'outdoors')['rose' in text or 'anchor' in text]}"
            for text in small_corpus.documents(count, seed=len(split))
        ]
        (tmp_path / f"{split}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    files = [f"--data.{split}={tmp_path / split}.tsv" for split in ("train", "dev")]
    command("finetune", "place", f"--init_from={tmp_path / 'run'}", f"--workdir={tmp_path / 'place'}", *files)
    assert "place" in command("results", tmp_path / "place").lower()
    assert command("predict", tmp_path / "place", "--text=The rose blooms.").count("doors")
