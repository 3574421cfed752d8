"""What a command prints on the console before it trains, on the first host only."""

import jax
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from bert_jax.config import Config, resolve_stages
from bert_jax.data.examples.corpus import Corpus
from bert_jax.data.examples.examples import Examples
from bert_jax.data.examples.mixture import Mixture
from bert_jax.devices import hardware, sharding
from bert_jax.models.parameters import total_size
from bert_jax.training.attention_used import attention_of
from bert_jax.training.learner import Learner


def say(text: str) -> None:
    """Print one line, however long it is and whatever is in brackets."""
    if jax.process_index() == 0:
        Console(highlight=False).print(text, markup=False, soft_wrap=True)


def say_hardware(mesh: Mesh) -> None:
    """Print the hardware in use, and any accelerator that is present but cannot be used."""
    say(
        f"{hardware.hardware(list(mesh.devices.flat))}" + (f"; {note}" if (note := hardware.idle_accelerator()) else "")
    )


def show(table: Table) -> None:
    """Print a table; 200 columns wide in a pipe or a log file, for which rich would assume 80."""
    if jax.process_index() == 0:
        console = Console(highlight=False)
        (console if console.is_terminal else Console(highlight=False, width=200)).print(table)


def announce(learner: Learner, corpus: Corpus, origins: Table | None, step: int) -> None:
    """Print every derived quantity of a pre-training run that people check before leaving it alone.

    Args:
      learner: what is trained.
      corpus: what it is trained on.
      origins: what became of each array of init_from.
      step: where the run resumes; 0 for a fresh one.
    """
    config, mesh, parameters = learner.config, learner.mesh, learner.objective.model.parameters
    say_hardware(mesh)
    say(
        f"model: {total_size(parameters):,} parameters, {config.model.num_layers} layers, hidden size "
        f"{config.model.hidden_size}, vocabulary {config.model.vocab_size:,}"
    )
    if learner.teacher is not None:
        teacher = learner.teacher.model
        say(
            f"teacher: {total_size(teacher.parameters):,} parameters, {teacher.config.num_layers} layers, hidden size "
            f"{teacher.config.hidden_size}"
        )
    for name, store in corpus.stores.items():
        training = next(found for each in corpus.training if (found := _of_store(each, name)) is not None)
        say(
            f"data: {f'{name}: ' if len(corpus.stores) > 1 else ''}{store.num_tokens:,} tokens in "
            f"{store.num_documents:,} documents, {len(training.documents):,} of them to train on"
        )
    for phase in resolve_stages(config):
        say(
            f"phase {phase.index}: {phase.steps:,} steps of {phase.batch_size:,} sequences of length "
            f"{phase.sequence_length} ({phase.tokens_per_step:,} tokens per step), "
            f"{_epochs(corpus.training[phase.index], phase.steps * phase.batch_size)}; remat: {learner.remat(phase)}"
        )
        rows = phase.batch_size // phase.micro_batches
        if phase.packed:
            say(f"phase {phase.index}: packing up to {phase.max_texts} texts into a sequence")
        else:
            say(f"phase {phase.index}: no packing; a sequence is one text or pair")
        if config.model.layer == "transformer":
            path = attention_of(config.model, config.compute, mesh, rows, phase.sequence_length, phase.max_texts)
            say(f"phase {phase.index}: attention by {path}")
    if mesh.size > 1:
        show(sharding.table(mesh, parameters))
    if origins is not None:
        show(origins)
    _announce_resumption(config, step)


def _of_store(training: Examples | Mixture, name: str) -> Examples | None:
    """Return the training examples of one of the stores, by its name; None if the phase does not read it."""
    return training.sources.get(name) if isinstance(training, Mixture) else training


def _epochs(training: Examples | Mixture, sequences: int) -> str:
    """Return how often a phase of so many sequences reads its text."""
    if isinstance(training, Examples):
        epoch = training.num_examples(0)
        return f"{sequences / epoch:.3g} epochs of {epoch:,} sequences"
    epochs = {
        name: training.shares[name] * sequences / examples.num_examples(0)
        for name, examples in training.sources.items()
    }
    return ", ".join(f"{training.shares[name]:.2%} {name} ({epochs[name]:.3g} epochs)" for name in epochs)


def _announce_resumption(config: Config, step: int) -> None:
    """Print where a run resumes, or that there is nothing left to do; nothing for a fresh one."""
    if step:
        say(
            f"resuming from step {step:,} of {config.workdir}"
            if step < config.total_steps
            else f"{config.workdir} has reached its last step, {step:,}; raise the steps of its last phase to continue"
        )
