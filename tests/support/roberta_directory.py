"""Directories of RoBERTas as transformers would have saved them."""

import json
import pathlib

import random_roberta
import safetensors.numpy


def write(place: pathlib.Path, size: str, name: str, **config) -> pathlib.Path:
    """The class `name` in the new directory `place`, without a tokenizer."""
    place.mkdir(parents=True)
    state = random_roberta.state(size, name)
    if name == "RobertaModel":
        state = {key.removeprefix("roberta."): value for key, value in state.items()}
    safetensors.numpy.save_file(state, place / "model.safetensors", {"format": "pt"})
    (place / "config.json").write_text(json.dumps(random_roberta.config_json(size, name) | config))
    return place
