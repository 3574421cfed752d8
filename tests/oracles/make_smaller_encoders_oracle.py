"""Writes smaller_encoders_oracle.npz: transformers' BERT, ALBERT, DistilBERT and ELECTRA with drawn parameters.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.24.0
    oracle/bin/python tests/oracles/make_smaller_encoders_oracle.py

Stored of each case: the names and shapes of what save_pretrained writes, the logits (of a bare encoder its states and
what it pools), and norms and samples of the gradients of a sum over them, of one class of each family whole; of bare
encoders and masked words, the states and attentions of every layer. The parameters are drawn again by
tests/support/random_smaller_encoders.py.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import oracle_directory
import random_smaller_encoders as drawn
from drawn_values import value

PATH = pathlib.Path(__file__).with_name("smaller_encoders_oracle.npz")


def build(size: str, task: str):
    """The torch model with the drawn parameters, and the names of those that a file has."""
    import safetensors.numpy
    import torch
    import transformers

    given = drawn.config_json(size, task)
    no_dropout = {
        "bert": dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        "albert": dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0),
        "distilbert": dict(dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, qa_dropout=0.0),
        "electra": dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    }[given["model_type"]]
    config = transformers.AutoConfig.for_model(**given, **no_dropout, attn_implementation="eager")
    model = getattr(transformers, drawn.class_name(size, task))(config).eval()
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        names = sorted(safetensors.numpy.load_file(f"{directory}/model.safetensors"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(value(size, name, tuple(parameter.shape))))
    return model, names


def run(size: str, task: str) -> dict[str, np.ndarray]:
    import torch

    model, names = build(size, task)
    inputs = {name: torch.tensor(values.astype(np.int64)) for name, values in drawn.batch(size).items()}
    if size.startswith("distilbert"):
        del inputs["token_type_ids"]
    if task == "MultipleChoice":
        inputs = {name: values[None] for name, values in inputs.items()}
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    if task == "PreTraining" and size.startswith("albert"):
        found = {"logits": output.prediction_logits, "pair_logits": output.sop_logits}
    else:
        found = {"logits": oracle_directory.logits_of(output)}
    if "pooler_output" in output:
        found["pooled"] = output.pooler_output
    sum((each * torch.from_numpy(drawn.weights(size, each.shape))).sum() for each in found.values()).backward()
    arrays = {name: value.detach().numpy() for name, value in found.items()}
    if (size, task) in drawn.WITH_STATES:
        arrays |= {f"hidden_states/{i}": state.detach().numpy() for i, state in enumerate(output.hidden_states)}
        arrays |= {f"attentions/{i}": maps.detach().numpy() for i, maps in enumerate(output.attentions)}
    parameters = dict(model.named_parameters())
    if drawn.is_whole(size, task):
        arrays |= {f"gradients/{name}": parameters[name].grad.numpy() for name in names}
    else:
        arrays["gradients"] = oracle_directory.gradients_of(model, names)
    shapes = {name: list(parameters[name].shape) for name in names}
    return arrays | {"shapes": np.array(json.dumps(shapes))}


def main() -> None:
    arrays = {}
    for case in drawn.CASES:
        arrays |= {f"{'/'.join(case)}/{name}": value for name, value in run(*case).items()}
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PATH
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
