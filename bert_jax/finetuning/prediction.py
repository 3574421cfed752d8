"""`bert-jax predict`: the answers of one fine-tuned model, or of the mean of several, to a file or a text."""

from rich.console import Console

from bert_jax.config.predicting import PredictConfig, check_predict
from bert_jax.devices import sharding
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.finetuning.members import check_member, family_for, options_of, say_what_is_cut, task_of
from bert_jax.finetuning.prediction_files import check_files, check_outputs, read_examples, write_predictions
from bert_jax.finetuning.task_logits import average, member_logits
from bert_jax.formats.opening import open_stored
from bert_jax.models.kernels.choice import check_attention
from bert_jax.tasks.recorded import check_pairs


def run_predict(workdirs: str, config: PredictConfig, devices: sharding.Devices = None) -> dict[str, float]:
    """Predict `config.input` with one model or the mean of several, and write `config.output`.

    Args:
      workdirs: directory of the model, or of several, separated by commas.
      config: input, output and how to predict.
      devices: the devices of the mesh; by default every device of every process.

    Returns:
      The task's metrics, which are also printed, if the input has labels; otherwise {}.

    Raises:
      UserError: the output exists; a model is not fine-tuned; the members of an ensemble have different heads, tasks or
        vocabularies; the task needs a different head; pairs are given to a model of single texts, or the reverse; the
        input file is bad.
    """
    check_files(check_predict(config))
    use_compilation_cache()
    members = [open_stored(path) for path in workdirs.split(",")]
    first = members[0]
    for member in members:
        check_member(member, first)
    mesh = sharding.make_mesh(config.mesh, devices)
    check_attention(config.compute, mesh.devices.flat[0].platform)
    task = task_of(first, config.task)
    family, examples = read_examples(first, task, family_for(first, task), config)
    check_outputs(family.prediction_names(examples, config.split), config)
    features = family.features(examples, first.need_tokenizer(), options_of(members, task))
    for member in members if first.need_head().kind in ("classification", "regression") else ():
        check_pairs(
            member.history,
            features,
            first.need_tokenizer(),
            lambda number: f"example {number} of {config.input or '--text'}",
            member.path,
        )
    console = Console(highlight=False, stderr=not config.output)  # standard output may be for predictions alone
    say_what_is_cut(features, "", console)
    logits = average(first.need_head(), [member_logits(member, features, config, mesh) for member in members])
    write_predictions(family, examples, features, logits, config.output, config.split)
    scores = family.score(examples, features, logits) if examples.has_answers else {}
    for name, value in scores.items():
        console.print(f"{name} {value:.4f}")
    return scores
