"""Options of the analyses of attention heads: heads."""

import dataclasses

from bert_jax.config.analyses.analysis_options import AnalysisConfig
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsConfig(AnalysisConfig):
    """analyze heads MODEL --input=FILE --output=DIR [--trees=FILE.conllu]

    Measure what every attention head does over a corpus: where it looks (neighbours, special tokens, punctuation,
    distance, entropy), which heads are alike, whether it finds syntactic heads and antecedents, and what the loss of
    masked words gains without it.

    MODEL is anything that bert_jax.load opens, such as a work directory or one checkpoint of it
    (RUN/checkpoints/step_000001000).
    """

    texts: int = 1_000
    """Number of texts to draw at random from the input. 0: all of them, in their order."""
    max_length: int | None = 128
    """Tokens per text, [CLS] and [SEP] included; longer texts are cut, longer sentences of --trees are left out. None:
    as many as the model has positions."""
    trees: str = ""
    """CoNLL-U file (*.conllu) with syntactic heads. Every attention head is measured by how well it finds them and, if
    the file marks mentions (Entity=… in its last column), antecedents. By default neither is measured."""
    clusters: int = 4
    """Number of clusters of heads."""
    ablation_texts: int = 200
    """Number of these texts in which masked words are predicted without each head in turn. 0: no heads are removed."""

    def check(self) -> None:
        """Raise a UserError if an option cannot work."""
        super().check()
        for name, least in (("clusters", 1), ("ablation_texts", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}")
