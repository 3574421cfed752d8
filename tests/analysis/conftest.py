"""What most analyses are tried on."""

import pytest
from loaded_model import loaded
from pretrained_model import stored_model

from bert_jax.pretrained.model import PretrainedModel


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    """A model of five layers and random parameters."""
    return loaded(stored_model())
