"""What the examples of pre-training can be like: the values of options that several commands have."""

from typing import Literal

SentencePairs = Literal["nsp", "sop", "adjacent", "none"]
"""Pairs of segments, and the task on them; see `DataConfig.sentence_pairs`."""
PackingChoice = Literal["auto", "on", "off"]
"""Whether a row holds several texts; see `DataConfig.packing`."""
MaskUnit = Literal["token", "whole_word", "span", "ngram"]
"""Units of masking; see `MaskingConfig.unit`."""
