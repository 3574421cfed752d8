"""Commands to try a model: `bert-jax demo` (also `make demo`), and `bert-jax fill-mask`.

The demo runs every step within minutes, on the documentation that comes with every Python installation. `fill-mask`
prints the model's words for each [MASK].
"""

import dataclasses
import pathlib
from typing import Any

from rich.console import Console
from rich.table import Table

from bert_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    PhaseConfig,
    PrepareConfig,
    TrainVocabConfig,
)
from bert_jax.config.checks import check
from bert_jax.config.commands import DemoConfig, FillMaskConfig
from bert_jax.pretrained.answers import Filled
from bert_jax.pretrained.model import load_with_generator

VOCAB_SIZE = 4_096
EXAMPLES = (
    "Return a copy of the [MASK].",
    "If the argument is not a [MASK], a TypeError is [MASK].",
    "Open the [MASK] and read its contents.",
)


def demo_config() -> Config:
    """Return the configuration of a small BERT with both objectives, which trains within minutes on two CPU cores.

    It has no dropout, because it sees few epochs; and wider initial weights, because with 0.02 and a hidden size of 128
    the branches start so faint that the loss remains at that of word frequencies for most of the run
    (0.02 · √(768 / 128) ≈ 0.05).
    """
    return Config(
        model=ModelConfig(
            hidden_size=128,
            num_layers=3,
            num_heads=2,
            max_position_embeddings=128,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.06,
        ),
        data=DataConfig(held_out=0.05),
        phases=(PhaseConfig(steps=1_800, sequence_length=64, batch_size=64, learning_rate=2e-3, warmup_steps=180),),
        checkpoint=CheckpointConfig(every_steps=300),
        evaluation=EvaluationConfig(every_steps=300, sequences=512),
        log_every_steps=20,
    )


def run_demo(options: DemoConfig) -> int:
    """Make vocabulary and store, train, evaluate and fill in masks; return the exit status."""
    console = Console(highlight=False)
    workdir = pathlib.Path(options.workdir)
    vocab, store = workdir / "data" / "vocab.txt", workdir / "data" / "store"

    console.rule("[bold]1/5 vocabulary[/] · docstrings of the installed packages, a minute or more to read")
    if vocab.exists():
        console.print(f"{vocab} exists already")
    else:
        from bert_jax.data.preparation.vocabularies import run_train_vocab

        run_train_vocab(
            TrainVocabConfig(input="docs:", output=str(vocab), size=VOCAB_SIZE, held_out=demo_config().data.held_out)
        )

    console.rule("[bold]2/5 token store[/] · the corpus as ids, once on disk")
    if (store / "manifest.json").exists():
        console.print(f"{store} exists already")
    else:
        from bert_jax.data.preparation.prepare import run_prepare

        run_prepare(PrepareConfig(input="docs:", vocab=str(vocab), output=str(store)))

    console.rule("[bold]3/5 pre-training[/] · masked words and next sentences")
    from bert_jax.pretraining import pretrain

    config = demo_config()
    config = check(
        dataclasses.replace(config, workdir=str(workdir), data=dataclasses.replace(config.data, path=str(store)))
    )
    result = pretrain(config)
    if result.exit_code:
        return result.exit_code

    console.rule("[bold]4/5 evaluation[/] · documents that training never saw")
    from bert_jax.cli.evaluate import run_evaluate

    evaluated = run_evaluate(str(workdir), config)

    console.rule("[bold]5/5 fill in the masks[/]")
    from bert_jax.pretrained.model import load

    model = load(workdir)
    for text in EXAMPLES:
        print_filled(text, model.fill_mask(text), "[MASK]")
    _farewell(console, workdir, store, evaluated)
    return 0


def _farewell(console: Any, workdir: pathlib.Path, store: pathlib.Path, evaluated: Any) -> None:
    model, unigram = evaluated.metrics, evaluated.unigram
    console.rule()
    console.print(
        f"[bold]Reached[/] after {evaluated.step:,} steps, on held-out documents: masked words "
        f"{model['mlm_accuracy']:.1%} right (always the commonest word: {unigram['mlm_accuracy']:.1%}), perplexity "
        f"{model['perplexity']:.1f} (word frequencies alone: {unigram['perplexity']:.0f}), next sentence "
        f"{model['next_sentence_accuracy']:.1%} right (chance: about 50%)."
    )
    console.print(
        f"The curves: {workdir / 'curves.png'}   numbers: {workdir / 'metrics.jsonl'}   tensorboard --logdir {workdir}"
    )
    console.print("[bold]Next:[/]", markup=True)
    for command in (
        f'bert-jax fill-mask {workdir} "Return the [MASK] of the list."',
        f"bert-jax inspect {store}",
        f"bert-jax serve {workdir} (a page on which it shows what it does; pip install 'bert_jax[serve]')",
        "and your own text: see “Your own text” in README.md",
    ):
        console.print(f"  {command}", markup=False)


def run_fill_mask(path: str, text: str, options: FillMaskConfig) -> None:
    model, generator = load_with_generator(path)
    model = generator or model  # a discriminator writes no words
    tokenizer = model.need_tokenizer()
    print_filled(text, model.fill_mask(text, options.top_k), tokenizer.tokens[tokenizer.mask_id])


def print_filled(text: str, filled: Filled, mask: str) -> None:
    """Print the text, then one column per mask with the most likely candidate on top."""
    console, table = Console(markup=False, highlight=False), Table(show_header=len(filled) > 1)
    console.print(text, style="bold", soft_wrap=True)
    for number in range(1, len(filled) + 1):
        table.add_column(f"{mask} {number}")
    for candidates in zip(*filled, strict=True):
        table.add_row(*(f"{c.probability:6.1%}  {c.token}" for c in candidates))
    console.print(table)
