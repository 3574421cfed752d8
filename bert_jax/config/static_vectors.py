"""How static word vectors are learned, as a frozen dataclass; the standard library only, as in `config.options`."""

import dataclasses

SHARED_NEGATIVES = 64
"""Number of random words that are drawn for a row of skip-gram."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticVectorsConfig:
    """Skip-gram with negative sampling (Mikolov et al. 2013, arXiv 1310.4546) and GloVe (Pennington et al. 2014)."""

    window: int = 5
    """Maximum number of words to either side of a word that count as its neighbours. Skip-gram draws the number for
    each word, from 1 to this; GloVe takes them all, each with the weight 1 / distance."""
    negatives: int = 5
    """Weight of the randomly drawn words against each neighbour. In the paper it is their number; here all neighbours
    in a row share the words that are drawn, with the same expectation."""
    subsampling: float = 0.0
    """Threshold t for frequent words: a word that is a share f of the text is left out with probability 1 - √(t / f).
    The paper uses 1e-5 for a billion words. 0: none is left out."""
    counts: str = ""
    """Directory of the counts of pairs that `bert-jax count` wrote, which GloVe needs. window must be that of the
    counts."""
    maximum_count: float = 100.0
    """Count from which all pairs have the same weight in GloVe (x_max in the paper)."""
    count_power: float = 0.75
    """Power of the count by which rarer pairs weigh less in GloVe (α in the paper)."""
