"""From the words of `bert-jax study` to a study and the options of all its arms."""

import dataclasses

from bert_jax.config.shipped import shipped_studies
from bert_jax.config.studying import Study, check_study
from bert_jax.console.command_line import executed, named_file
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Given:
    """Options of the command line that all arms take, as words."""

    pretraining: tuple[str, ...] = ()
    finetuning: tuple[str, ...] = ()


def load_study(path: str) -> Study:
    """Return the Study at `path`: a Python file with `get_study()`, or the name of a shipped one.

    The file is executed.

    Raises:
      UserError: there is no such file or name, or its study is not sound.
    """
    file = named_file(path, shipped_studies(), "study")
    if file.suffix != ".py":
        raise UserError(f"{path!r} is not a study: expected a .py file with get_study()")
    module = executed(file)
    study = module.get_study() if hasattr(module, "get_study") else None
    if not isinstance(study, Study):
        raise UserError(f"{path} must define get_study() that returns a Study, not {type(study).__name__}")
    return check_study(study)


def given_words(words: list[str]) -> Given:
    """Return the words for pre-training, and those for fine-tuning (--finetune.epochs=2) without their prefix."""
    pretraining: list[str] = []
    finetuning: list[str] = []
    chosen = pretraining
    for word in words:
        if word.startswith("--"):
            chosen = finetuning if word.startswith("--finetune.") else pretraining
        chosen.append(word.replace("--finetune.", "--", 1) if chosen is finetuning else word)
    return Given(tuple(pretraining), tuple(finetuning))
