"""Published sizes by name."""

import pytest

from bert_jax.config import ModelConfig, presets
from bert_jax.config.json_form import to_dict
from bert_jax.errors import UserError


def test_unknown_size_names_those_that_exist():
    with pytest.raises(UserError, match="perhaps you meant 'medium'.*base, large"):
        presets.model_config("meduim")
    assert len({presets.SIZES[name] for name in presets.SIZES}) == 25  # 24 miniatures and large
    assert to_dict(presets.model_config("base")) == to_dict(ModelConfig())
