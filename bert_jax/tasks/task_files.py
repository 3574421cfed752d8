"""Finds the file of a split of a task."""

from collections.abc import Mapping, Sequence

from etils import epath

from bert_jax.config.task_options import TaskDataConfig
from bert_jax.errors import UserError
from bert_jax.tasks import tfds_examples


def find(data: TaskDataConfig, split: str, names: Sequence[str]) -> epath.Path:
    """Return `data.train`, `data.dev` or `data.test` if given, else the first of `names` that `data.dir` has.

    Raises:
      UserError: neither exists; the message lists the names and what the directory holds.
    """
    given = getattr(data, split, "")
    if given:
        path = epath.Path(given).expanduser()
        if not path.exists():
            raise UserError(f"data.{split}={given}: no such file")
        return path
    if not data.dir:
        option = f"--data.{split}=FILE, or " if hasattr(data, split) else ""
        raise UserError(f"no {split} data: give {option}--data.dir=DIR with one of {', '.join(names)}")
    directory = epath.Path(data.dir).expanduser()
    for name in names:
        if (directory / name).exists():
            return directory / name
    holds = "(there is no such directory)"
    if directory.is_dir():
        holds = ", ".join(sorted(path.name for path in directory.iterdir())[:10])
    other = f"; --data.{split}=FILE names a file with a different name" if hasattr(data, split) else ""
    raise UserError(
        f"data.dir={data.dir} has no {split} data; looked for {', '.join(names)} and found {holds or 'nothing'}{other}"
    )


def splits(data: TaskDataConfig, names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return those of the splits in `names` that `find` would find, or that the TFDS dataset has."""
    if data.tfds:
        return tfds_examples.splits(data.tfds, data, {split: tfds_examples.split_name(data, split) for split in names})
    directory = epath.Path(data.dir).expanduser()
    return tuple(
        split
        for split, files in names.items()
        if getattr(data, split, "") or data.dir and any((directory / name).exists() for name in files)
    )
