"""Options of the analysis by probes."""

import dataclasses
from typing import Literal

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """analyze probe MODEL --input=FILE --output=DIR [--dev=FILE --test=FILE]

    Train linear probes on every layer and on a learned mix of all layers, and compare their scores with control tasks
    and baselines.

    The tasks depend on the kind of file. *.conllu gives the tasks pos, arc, relation and depth. *.conll, with a word
    and its tags per line, gives one task for each of --columns. *.jsonl, with labelled spans or pairs of spans, gives
    one task with the name of the file. Any other file is text and gives the tasks length, content, order, capital and
    subword.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    input: str
    """Files to train on, separated by commas; their tasks are shown together. Without --dev and --test, each seed sets
    aside 15 % of the texts for each of the two."""
    output: str
    """Directory for result.json, the pictures and the states of words. The same command reads what already exists from
    there."""
    dev: str = ""
    """Files with the same tasks, on which the penalty is chosen. By default a part of the input."""
    test: str = ""
    """Files with the same tasks, on which the probes are tested. By default a part of the input."""
    tasks: str = ""
    """Names of the tasks, separated by commas. By default all tasks that the files provide."""
    columns: str = ""
    """Names and columns of the tags in CoNLL files, such as pos:2,chunk:3,entity:4. By default the last column gives
    the task "tags"."""
    layers: str = "all"
    """Layers to probe and to mix, such as 0,2,4, where 0 is the embeddings. all: the embeddings and every layer."""
    pieces: Literal["first", "mean", "last"] = "mean"
    """Pieces of a word or span that represent it. mean: the mean of all pieces. first, last: one of them."""
    seeds: int = 3
    """Number of seeds. Each divides the texts differently and draws a different control task."""
    examples: int = 5_000
    """Maximum number of examples of a task from each of the input, dev and test, drawn at random."""
    texts: int = 2_000
    """Number of lines of text from which tasks without labels are made, drawn at random. 0: all."""
    seed: int = 0
    """First of the seeds, and the seed of whatever else is drawn at random."""
    batch_size: int = 32
    """Number of texts that the model reads at once."""
    max_length: int | None = None
    """Tokens per text, [CLS] and [SEP] included; words beyond them are not probed. None: as many as the model has
    positions."""
    text_field: str = "text"
    """Name of the field that holds the text in JSON."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work; called before a model is opened."""
        for name, least in (("seeds", 1), ("examples", 10), ("texts", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}")
        for name in ("input", "output"):
            if not getattr(self, name).strip():
                raise UserError(
                    f"{name} is empty; give the {'files' if name == 'input' else 'directory of the result'}"
                )
        if "://" in self.output:
            raise UserError(
                f"output={self.output} must be a local directory, because states in it are mapped to memory"
            )
        self.layer_numbers()
        self.tag_columns()

    def layer_numbers(self) -> str | list[int]:
        """Return "all", or the numbers of the layers."""
        if self.layers == "all":
            return "all"
        try:
            return [int(number) for number in self.layers.split(",")]
        except ValueError:
            raise UserError(
                f"layers={self.layers} must be all, or numbers separated by commas, such as 0,2,4"
            ) from None

    def tag_columns(self) -> dict[str, int] | None:
        """Return the columns by name; None for the last."""
        found = {}
        for item in filter(None, self.columns.split(",")):
            name, _, column = item.partition(":")
            if not name or not column.isdecimal() or int(column) < 1 or name in found:
                raise UserError(f"columns={self.columns}: expected NAME:COLUMN,… such as pos:2,chunk:3, not {item!r}")
            found[name] = int(column)
        return found or None
