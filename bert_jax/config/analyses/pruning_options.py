"""Options of the removal of layers: prune."""

import dataclasses

from bert_jax.config.analyses.analysis_options import AnalysisConfig, VectorKind
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PruneConfig(AnalysisConfig):
    """analyze prune MODEL --depth=N --input=FILE --output=DIR [--task=NAME --task_data=DIR]

    Remove the layers that a model needs least, as judged by CKA, down to a given depth. Measure what is lost, compared
    with removing the top layers or random ones. The smaller model is DIR/model: train it further (pretrain
    --init_from), fine-tune it, or convert it.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    depth: int
    """Number of layers that remain."""
    texts: int = 1_000
    """Number of texts to draw at random from the input. Half of them guide the removal; in the other half masked words
    are predicted."""
    max_length: int | None = 128
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut. None: as many as the model has positions."""
    vectors: VectorKind = "mean"
    """Vector that represents a text. mean: the mean of its tokens. cls: the first token, [CLS]. token: one of its
    tokens, drawn at random."""
    draws: int = 3
    """Number of random orders to compare with."""
    task: str = ""
    """Task whose score is measured too; see `bert-jax finetune`. By default the task of a fine-tuned MODEL."""
    task_data: str = ""
    """Directory with the files of the task under their original names. A fine-tuned MODEL is scored without the layers
    and without further training. A pre-trained one is fine-tuned separately for every set of layers. By default no task
    is scored."""
    epochs: int = 3
    """Number of passes over the training examples if MODEL is fine-tuned for a score."""
    learning_rate: float = 5e-5
    """Peak learning rate of these fine-tunings."""
    seeds: int = 1
    """Number of these fine-tunings for every set of layers; the score is their mean."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work."""
        super().check()
        if self.depth < 1:
            raise UserError(f"depth={self.depth} must be at least 1: a model needs a layer")
        if self.texts == 0:
            raise UserError("texts=0: pruning reads its texts once per candidate and holds them; give a number of them")
        for name, least in (("draws", 0), ("epochs", 1), ("seeds", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.task and not self.task_data:
            raise UserError(f"task={self.task} needs its examples; give --task_data=DIRECTORY")
