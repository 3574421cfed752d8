"""What the tests of loaded models share."""

import dataclasses
import pathlib

import pytest
from pretrained_model import CONFIG, TEXTS, loaded, stored_model, write_workdir

from bert_jax.pretrained.model import PretrainedModel

PADDED = dataclasses.replace(CONFIG, vocab_pad_multiple=16)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> tuple[pathlib.Path, dict]:
    """A work directory with two steps of a padded vocabulary, and the parameters of each; tests that write copy it."""
    place = tmp_path_factory.mktemp("run")
    return place, write_workdir(place, 2, 5, config=PADDED)


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    """A model of five layers and random parameters."""
    return loaded(stored_model())


@pytest.fixture(scope="module")
def encoding(model):
    """All states and attentions of `TEXTS`."""
    return model.encode(TEXTS, layers="all", attentions=True)
