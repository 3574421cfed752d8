"""What pre-training trains for, as frozen dataclasses; the standard library only, as in `config.options`."""

import dataclasses
from typing import Literal

from bert_jax.config.generator import GeneratorConfig
from bert_jax.config.static_vectors import StaticVectorsConfig
from bert_jax.config.teachers import DistillationConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The objective, and the weights of its losses in the sum that is minimized; those of the paper are 1."""

    name: Literal[
        "masked_words", "left_to_right", "two_directions", "replaced_tokens", "permutation", "skip_gram", "glove"
    ] = "masked_words"
    """Objective of the training. masked_words: BERT's masked language model, with the second objective of
    data.sentence_pairs. left_to_right: each token of a text, from those before it; the model needs
    direction=left_to_right. two_directions: from those before it and, by the other half of the states, from those after
    it, as in ELMo; the model needs layer=lstm. replaced_tokens: ELECTRA's discriminator, which tells the words of a
    generator, trained with it, from those of the text. permutation: some tokens, from those that come before them in
    a random order, as in XLNet; the model needs positions=xlnet. skip_gram: the words near each word, from its vector
    alone (word2vec); the model needs layer=none. glove: how often each two words are near each other, from their
    vectors; the model needs layer=none, and the data static_vectors.counts."""
    mlm_weight: float = 1.0
    """Weight of the loss of the masked words. 0: its head is not trained."""
    sentence_pair_weight: float = 1.0
    """Weight of the loss of the second objective, next sentences or sentence order, whichever data.sentence_pairs
    chooses. 0: its head is not trained."""
    span_boundary_weight: float = 0.0
    """Weight of the loss of the span boundary objective (SpanBERT): the words of each run of masked tokens, from the
    two tokens at its borders. 0: there is no such head. Use it with masking.unit=span."""
    next_word_weight: float = 1.0
    """Weight of the loss of the next words with name=two_directions."""
    previous_word_weight: float = 1.0
    """Weight of the loss of the previous words with name=two_directions."""
    longest_span: int = 5
    """Maximum number of adjacent tokens that are predicted together with name=permutation; the probability of n is
    proportional to 1/n. masking.rate is the share of all tokens."""
    replaced_tokens_weight: float = 50.0
    """Weight of the discriminator's loss with name=replaced_tokens; mlm_weight is then that of the generator's."""
    generator: GeneratorConfig = GeneratorConfig()
    """The generator of name=replaced_tokens."""
    distillation: DistillationConfig = DistillationConfig()
    """A teacher to learn from, in addition to the masked words, and the weights of what is learned from it."""
    mask_decoder: bool = False
    """Whether masked words, including a generator's, are predicted by DeBERTa's enhanced mask decoder: from two more
    passes of the last layer, whose queries begin with absolute positions. It needs model.disentangled.terms and is left
    out of exports."""
    static_vectors: StaticVectorsConfig = StaticVectorsConfig()
    """Windows and random words of skip_gram; windows and counts of glove."""

    @property
    def predicts_neighbours(self) -> bool:
        """Whether each word has one vector, from which its neighbours, or their counts, are predicted."""
        return self.name in ("skip_gram", "glove")

    @property
    def masks_words(self) -> bool:
        """Whether batches have masked words, which the model or its generator fills in."""
        return self.name in ("masked_words", "replaced_tokens")

    @property
    def predicts_all(self) -> bool:
        """Whether every token is predicted from those on one side of it, and none is masked."""
        return self.name in ("left_to_right", "two_directions")
