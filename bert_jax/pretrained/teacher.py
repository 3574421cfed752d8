"""Teachers of pre-training and fine-tuning, checked before anything is compiled.

The readers of all formats are imported inside the functions, because most runs have no teacher.
"""

import dataclasses
from collections.abc import Sequence

from jax.sharding import Mesh

from bert_jax.checkpoints.record import stored_fingerprint
from bert_jax.config import (
    ComputeConfig,
    DataConfig,
    DistillationConfig,
    EncoderConfig,
    HeadConfig,
    ModelConfig,
    Phase,
)
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.errors import UserError
from bert_jax.formats.stored import StoredModel, check_fit
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import MODEL_PARTS, STATE_PROJECTION
from bert_jax.models.task import BertForTask
from bert_jax.objectives.distillation import Teacher, compared_layers
from bert_jax.tokenization.tokenizer import Tokenizer

OPTION = "objective.distillation"


def open_teacher(
    taught: DistillationConfig | None,
    student: EncoderConfig,
    data: DataConfig,
    phases: Sequence[Phase],
    compute: ComputeConfig,
    tokenizer: Tokenizer,
    mesh: Mesh,
) -> Teacher[BertForPreTraining] | None:
    """Return the teacher with its arrays on the devices of `mesh`; None if the options name none.

    Args:
      taught: names it, and what is learned from it; None without one.
      student: what learns, with the vocabulary of `tokenizer`.
      data: what both read.
      phases: at which lengths.
      compute: how the teacher computes.
      tokenizer: of the data.
      mesh: the devices.

    Raises:
      UserError: there is no such model, or the student cannot learn from it what the options ask for.
    """
    if taught is None:
        return None
    from bert_jax.formats.opening import place

    stored = stored_teacher(taught)
    check_vocabularies(stored, tokenizer, f"{OPTION}.teacher")
    _check_states(stored, taught, student, data, phases)
    return Teacher(_network(stored, compute), place(stored, mesh), stored_fingerprint(stored.arrays))


def teacher_is_there(path: str) -> bool:
    """Return whether there is anything in a place that could be a teacher."""
    from bert_jax.formats.opening import is_there

    return is_there(path)


def describe_teacher(
    taught: DistillationConfig | None,
    student: EncoderConfig,
    data: DataConfig,
    phases: Sequence[Phase],
    compute: ComputeConfig,
    mesh: Mesh,
) -> Teacher[BertForPreTraining] | None:
    """Return the teacher for devices that need not exist: its arrays are described, and there is no fingerprint.

    Raises:
      UserError: as `open_teacher`; of the vocabularies the sizes are compared.
    """
    if taught is None:
        return None
    from bert_jax.formats.opening import describe

    stored = stored_teacher(taught)
    if stored.model.vocab_size != student.vocab_size:
        raise UserError(
            f"{OPTION}.teacher={stored.path} has a vocabulary of {stored.model.vocab_size:,} entries, the student one "
            f"of {student.vocab_size or 0:,}; leave model.vocab_size out to plan with the teacher's"
        )
    _check_states(stored, taught, student, data, phases)
    return Teacher(_network(stored, compute), describe(stored, mesh), "")


def stored_teacher(taught: DistillationConfig) -> StoredModel:
    """Return the description of the teacher on disk."""
    from bert_jax.formats.opening import open_stored

    stored = open_stored(taught.teacher)
    check_fit(stored)
    return stored.without(STATE_PROJECTION)  # of a student that teaches


def stored_task_teacher(config: FinetuneConfig, tokenizer: Tokenizer) -> StoredModel | None:
    """Return the description on disk of the teacher of fine-tuning; None if the options name none.

    Args:
      config: options of the command.
      tokenizer: of the student.

    Raises:
      UserError: there is no such model, or it was not fine-tuned with the same vocabulary, for rows as long.
    """
    path = config.distillation.teacher
    if not path:
        return None
    from bert_jax.formats.opening import open_stored

    stored = open_stored(path)
    check_fit(stored)
    check_vocabularies(stored, tokenizer, "distillation.teacher")
    _check_task_model(stored, config)
    return stored


def open_task_teacher(
    stored: StoredModel | None, config: FinetuneConfig, head: HeadConfig, mesh: Mesh
) -> Teacher[BertForTask] | None:
    """Return the teacher from `stored_task_teacher` with its arrays on the devices of `mesh`.

    Args:
      stored: the teacher, or None.
      config: options of the command.
      head: of the student.
      mesh: the devices.

    Raises:
      UserError: it was not fine-tuned for the same labels.
    """
    if stored is None:
        return None
    from bert_jax.formats.opening import place

    _check_head(stored, head)
    network = BertForTask(stored.model, stored.need_head(), config.compute, unread=stored.unread)
    arrays = {path: array for path, array in stored.arrays.items() if path in network.parameters}
    stored = dataclasses.replace(stored, arrays=arrays)
    return Teacher(network, place(stored, mesh), stored_fingerprint(arrays))


def _check_task_model(stored: StoredModel, config: FinetuneConfig) -> None:
    """Raise a UserError unless a teacher has scores for every example, and reads rows as long as the student's."""
    name, theirs = f"distillation.teacher={stored.path}", stored.head
    if theirs is None:
        raise UserError(
            f"{name} has no head of a task, so it has nothing to teach; fine-tune it on {config.task} first"
        )
    if theirs.crf:
        raise UserError(f"{name} has a CRF, whose scores are those of whole sentences; fine-tune it without --crf")
    if config.max_length > stored.model.longest_sequence:
        raise UserError(
            f"{name} reads at most {stored.model.longest_sequence} tokens, but options.max_length="
            f"{config.max_length}; lower it, or choose a teacher with more positions"
        )


def _check_head(stored: StoredModel, head: HeadConfig) -> None:
    """Raise a UserError unless the scores of a teacher mean what those of the student mean, for the same rows."""
    name, theirs = f"distillation.teacher={stored.path}", stored.need_head()
    if (theirs.kind, theirs.classes) != (head.kind, head.classes):
        raise UserError(
            f"{name} has a head for {_described(theirs)}, the student one for {_described(head)}; choose a teacher "
            "that was fine-tuned on the same task, with the same labels in the same order"
        )


def _described(head: HeadConfig) -> str:
    return f"{head.kind} of {', '.join(head.labels)}" if head.labels else head.kind


def check_vocabularies(stored: StoredModel, tokenizer: Tokenizer, option: str) -> None:
    """Raise a UserError unless the ids of a teacher mean what they mean to the student."""
    theirs = stored.need_tokenizer(f"{option}=")
    if list(theirs.tokens) != list(tokenizer.tokens):
        raise UserError(
            f"{option}={stored.path} has a vocabulary ({theirs.vocab_size:,} entries) different from that "
            f"of the data ({tokenizer.vocab_size:,}), so its predictions are of other words; prepare the data with the "
            "teacher's vocabulary, or choose a teacher that was trained with that of the data"
        )


def _check_states(
    stored: StoredModel,
    options: DistillationConfig,
    ours: EncoderConfig,
    data: DataConfig,
    phases: Sequence[Phase],
) -> None:
    """Raise a UserError if what the options compare is not there, or has another shape."""
    theirs, name = stored.model, f"{OPTION}.teacher={stored.path}"
    if "mlm" not in stored.parts and options.soft_weight:
        raise UserError(
            f"{name} has no masked-language-model head (apart from the encoder: "
            f"{', '.join(stored.parts) or 'nothing'}), which {OPTION}.soft_weight={options.soft_weight:g} needs; "
            "choose a pre-trained model, or set it to 0"
        )
    if theirs.direction != ours.direction:
        raise UserError(f"{name} has model.direction={theirs.direction}, the student {ours.direction}; choose another")
    if not isinstance(theirs, ModelConfig) and options.soft_weight:
        kind = "an XLNet" if theirs.two_streams else "a recurrent model"
        raise UserError(
            f"{name} is {kind}, which was not trained to predict words at their masks, as {OPTION}.soft_weight="
            f"{options.soft_weight:g} needs; set it to 0, or choose another teacher"
        )
    if data.sentence_pairs != "none" and theirs.type_vocab_size == 1:
        raise UserError(
            f"{name} has model.type_vocab_size=1, so it does not know the second segment of data.sentence_pairs="
            f"{data.sentence_pairs}; set data.sentence_pairs=none, or choose a teacher of two segments"
        )
    if options.attention_weight and ours.attention_heads != theirs.attention_heads:
        raise UserError(
            f"{name} has num_heads={theirs.attention_heads}, the student {ours.attention_heads}, but "
            f"{OPTION}.attention_weight={options.attention_weight:g} compares them; set it to 0, or choose equal sizes"
        )
    if options.hidden_weight or options.attention_weight:
        compared_layers(options, ours, theirs)
    longest = max(phase.sequence_length for phase in phases)
    if longest > theirs.longest_sequence:
        raise UserError(
            f"{name} reads at most {theirs.longest_sequence} tokens, but phases have {longest}; shorten them, or "
            "choose a teacher with more positions"
        )


def _network(stored: StoredModel, compute: ComputeConfig) -> BertForPreTraining:
    return BertForPreTraining(stored.model, compute, tuple(part for part in MODEL_PARTS if part in stored.parts))
