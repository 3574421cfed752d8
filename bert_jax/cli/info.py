"""`bert-jax info`: the cost of a configuration, by arithmetic alone, without an accelerator; data only where named."""

import dataclasses
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bert_jax.config import (
    Config,
    EncoderConfig,
    GloVe,
    LeftToRight,
    MaskedDiffusion,
    MaskedWords,
    Permutation,
    PhaseConfig,
    ReplacedTokens,
    SkipGram,
    TwoDirections,
    config_of_phase,
    max_predictions,
    resolve_stages,
)
from bert_jax.config.checks import training_paths
from bert_jax.config.pretraining import phase_notes
from bert_jax.data.store import open_store
from bert_jax.models import costs
from bert_jax.models.bert_parameters import word_parameters
from bert_jax.models.costs import computed_flops, run_activation_bytes, run_flops, trained_encoders, trained_parameters
from bert_jax.parameters import total_size

WORD_HEADS = {
    MaskedWords: "masked-language-model head",
    MaskedDiffusion: "masked-language-model head",
    Permutation: "permutation-language-model head",
    LeftToRight: "language-model head",
    TwoDirections: "language-model head",
}
"""What the head that predicts words is called, by objective; static vectors have none."""
WORDS = {SkipGram: "second table of words", GloVe: "second table of words, and biases"}
"""What the arrays that only an objective's model has are called."""
PAIR_HEADS = {"nsp": "next-sentence head", "sop": "sentence-order head"}
"""What the head for pairs is called, by data.sentence_pairs; without labels it is not trained."""
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def run_info(config: Config) -> None:
    """Print parameters by part, operations and memory by sequence length, and the totals of each phase."""
    console = Console(highlight=False)
    if config.model.vocab_size is None:
        if stores := training_paths(config):
            size = open_store(stores[0], config.data.cache).vocab_size
            console.print(f"{size:,} entries, as in the vocabulary of {stores[0]}.", markup=False, soft_wrap=True)
        else:
            size = config.model.assumed_vocab_size
            console.print(
                f"model.vocab_size is not set (a run takes it from the token store); {size:,} is assumed, as in the "
                "published models of this form."
            )
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=size))
    teacher_size, whole = _teacher_size(config), _with_all_heads(config)
    console.print(parameter_table(whole, teacher_size))
    console.print(state_line(whole, teacher_size))
    console.print(flops_table(config))
    console.print(
        "computed: the share of these operations that a step executes; the last of unrolled layers runs only at the "
        "positions that are read. `plan` and MFU count that share; the phases below have whole layers."
    )
    console.print(memory_table(config))
    longest = config.model.longest_sequence
    if longest < LENGTHS[-1]:
        console.print(f"Lengths above {longest:,}, the longest sequence of this model, show the growth only.")
    console.print(phase_table(config))
    for index in range(len(config.phases)):
        if notes := phase_notes(config, index):
            console.print(f"Phase {index}: {', '.join(notes)}.", soft_wrap=True)


def _with_all_heads(config: Config) -> Config:
    """Return the options as the phase sees them that trains most heads, which the model has from the start."""
    seen = [config_of_phase(config, index) for index in range(len(config.phases))]
    return max(seen, key=lambda each: (len(each.objective.parts), each.data.has_pair_labels), default=config)


def _teacher_size(config: Config) -> int | None:
    """Return the width of the teacher's states that those of the student are mapped to; None if they are not."""
    taught = config.objective.taught
    if taught is None:
        return None
    from bert_jax.pretrained.teacher import stored_teacher  # loads jax, which nothing else here needs

    return taught.teacher_size(config.model.hidden_size, stored_teacher(taught).model.hidden_size)


def parameter_table(config: Config, teacher_size: int | None = None) -> Table:
    if isinstance(config.objective, ReplacedTokens):
        return _table_of_both(config, config.objective)
    counts = costs.parameter_counts(trained_parameters(config.model, config.objective, teacher_size))
    words = total_size(word_parameters(config.model, config.objective.word_arrays))
    layer = "block" if config.model.attention_heads else "layer"
    word_head = WORD_HEADS.get(type(config.objective))
    table = _table("Parameters", "part", "number")
    rows = (  # title, number, whether it is shown
        ("embeddings", counts.embeddings, True),
        (layer, counts.block, counts.layers),
        (f"{config.model.num_layers} {layer}s{_shared(config.model)}", counts.layers, counts.layers),
        ("final norm", counts.final_norm, counts.final_norm),
        (f"encoder{' without pooler' * bool(counts.pooler)}", counts.encoder_without_pooler, counts.layers),
        ("pooler", counts.pooler, counts.pooler),
        ("encoder with pooler", counts.encoder, counts.pooler),
        (WORDS.get(type(config.objective)), words, words),
        (f"{word_head} (table shared)", counts.mlm_head, word_head),
        (PAIR_HEADS.get(config.data.sentence_pairs, "head for pairs (untrained)"), counts.next_sentence, counts.pooler),
        ("span boundary head (table shared)", counts.span_boundary, counts.span_boundary),
        ("positions of the mask decoder", counts.mask_decoder, counts.mask_decoder),
        ("map to the teacher's states", counts.state_projection, counts.state_projection),
        ("pre-training model", counts.pretraining, True),
    )
    for name, number, shown in rows:
        if shown:
            table.add_row(name, f"{number:,}")
    return table


def _table_of_both(config: Config, objective: ReplacedTokens) -> Table:
    """Return the parameters of replaced-token detection."""
    table = _table("Parameters", "part", "discriminator", "generator")
    encoders = trained_encoders(config.model, config.objective)
    layers = [encoder.config.num_layers for encoder in encoders]
    discriminator, generator = (costs.parameter_counts(encoder.parameters) for encoder in encoders)
    rows = (
        ("embeddings", discriminator.embeddings, generator.embeddings),
        ("block", discriminator.block, generator.block),
        (f"{layers[0]} and {layers[1]} blocks{_shared(config.model)}", discriminator.layers, generator.layers),
        ("encoder", discriminator.encoder, generator.encoder),
        ("replaced-token head", discriminator.replaced_tokens, 0),
        (f"{WORD_HEADS[MaskedWords]} (table shared)", 0, generator.mlm_head),
        *((("positions of the mask decoder", 0, generator.mask_decoder),) if generator.mask_decoder else ()),
        ("model", discriminator.pretraining, generator.pretraining),
    )
    for name, *numbers in rows:
        table.add_row(name, *(f"{number:,}" if number else "" for number in numbers))
    both = total_size(trained_parameters(config.model, config.objective))
    table.add_row(f"both, with {objective.generator.embeddings} embeddings", f"{both:,}", "")
    return table


def state_line(config: Config, teacher_size: int | None = None) -> str:
    parameters = trained_parameters(config.model, config.objective, teacher_size)
    state = costs.state_bytes(parameters, config.optimizer.moments)
    return (
        f"Training state, float32: parameters {_bytes(state.parameters)}, moments {_bytes(state.moments)}, "
        f"gradients {_bytes(state.gradients)}; together {_bytes(state.total)}, divided over mesh.fsdp × mesh.tensor."
    )


def flops_table(config: Config) -> Table:
    """Return the training FLOPs per sequence and per token, by sequence length."""
    attends = config.model.attention_heads > 0
    numbers = ("predicted", "GFLOP/sequence", "MFLOP/token", *(("attention's share",) if attends else ()), "computed")
    table = _table("Training FLOPs (matrix products, forward and backward)", "length", *numbers)
    for length in LENGTHS:
        predicted = max_predictions(PhaseConfig(sequence_length=length), config)
        flops = run_flops(config.model, config.objective, length, predicted)
        computed = computed_flops(config.model, config.objective, config.compute, length, predicted)
        table.add_row(
            f"{length:,}",
            f"{predicted:,}",
            f"{flops.total / 1e9:,.2f}",
            f"{flops.total / length / 1e6:,.2f}",
            *((f"{flops.attention / flops.total:.1%}",) if attends else ()),
            f"{computed.total / flops.total:.1%}",
        )
    return table


def memory_table(config: Config) -> Table:
    """Return what the backward pass needs of the forward pass, per sequence, by sequence length and remat policy."""
    table = _table(
        "Activations kept for the backward pass, MiB/sequence (2 bytes per value)",
        "length",
        "remat=none",
        "of it L×L arrays",
        "of it heads",
        "remat=sel",
        "remat=full",
    )
    for length in LENGTHS:
        predicted = max_predictions(PhaseConfig(sequence_length=length), config)
        none, *less = (
            run_activation_bytes(config.model, config.objective, length, predicted, remat)
            for remat in ("none", "sel", "full")
        )
        parts = (none.total, none.quadratic, none.heads, *(kept.total for kept in less))
        table.add_row(f"{length:,}", *(f"{size / 2**20:,.1f}" for size in parts))
    return table


def phase_table(config: Config) -> Table:
    """Return the tokens and floating-point operations of each phase of the run."""
    table = _table("The run", "phase", "steps", "batch × length", "sequences", "tokens", "FLOP")
    totals = [0, 0, 0, 0]
    stages = resolve_stages(config)
    for phase in stages:
        sequences = phase.steps * phase.batch_size
        seen = config_of_phase(config, phase.index)
        flops = run_flops(seen.model, seen.objective, phase.sequence_length, phase.max_predictions).total
        row = (phase.steps, sequences, sequences * phase.sequence_length, sequences * flops)
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        table.add_row(str(phase.index), *_run_cells(row, f"{phase.batch_size:,} × {phase.sequence_length:,}"))
    if len(stages) > 1:
        table.add_row("all", *_run_cells(totals, ""))
    return table


def _run_cells(row: Any, shape: str) -> tuple[str, ...]:
    steps, sequences, tokens, flops = row
    # 80 columns have no room for twelve digits.
    return f"{steps:,}", shape, f"{sequences:,}", f"{tokens:,}" if tokens < 10**11 else f"{tokens:.4g}", f"{flops:.3g}"


def _shared(model: EncoderConfig) -> str:
    """Return what the layers of a model share."""
    if model.sharing == "all" and model.parameter_sets > 1:
        return f", with the parameters of {model.parameter_sets}"
    names = {"attention": "attention", "feed_forward": "feed-forward", "all": "all"}
    return f", {names[model.sharing]} shared" if model.sharing in names else ""


def _table(title: str, first: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if number >= size:
            return f"{number / size:,.2f} {unit}" if unit == "GiB" else f"{number / size:,.1f} {unit}"
    return f"{number / 2**10:,.1f} KiB"
