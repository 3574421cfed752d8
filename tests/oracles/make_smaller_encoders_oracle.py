"""Writes smaller_encoders_oracle.npz: transformers' ALBERT, DistilBERT and ELECTRA with drawn parameters.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.24.0
    oracle/bin/python tests/oracles/make_smaller_encoders_oracle.py

Stored of each case: the names and shapes of what save_pretrained writes, the states and attentions of every layer, the
logits, and the gradients of a sum over the logits. The parameters are drawn again by
tests/support/random_smaller_encoders.py.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
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


def weights(shape: tuple[int, ...]) -> np.ndarray:
    """Factors of the logits in the sum whose gradients are stored."""
    return np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)


def run(size: str, task: str) -> dict[str, np.ndarray]:
    import torch

    model, names = build(size, task)
    inputs = {name: torch.tensor(values.astype(np.int64)) for name, values in drawn.batch(size).items()}
    if size.startswith("distilbert"):
        del inputs["token_type_ids"]
    if task == "MultipleChoice":
        inputs = {name: values[None] for name, values in inputs.items()}
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    if task == "QuestionAnswering":
        found = {"logits": torch.stack([output.start_logits, output.end_logits], -1)}
    elif task == "PreTraining" and size.startswith("albert"):
        found = {"logits": output.prediction_logits, "pair_logits": output.sop_logits}
    else:
        found = {"logits": output.logits}
    total = sum((value * torch.from_numpy(weights(tuple(value.shape)))).sum() for value in found.values())
    if task in ("PreTraining", "SequenceClassification"):
        total.backward()
    arrays = {name: value.detach().numpy() for name, value in found.items()}
    if task == "MaskedLM":
        arrays |= {f"hidden_states/{i}": state.detach().numpy() for i, state in enumerate(output.hidden_states)}
        arrays |= {f"attentions/{i}": maps.detach().numpy() for i, maps in enumerate(output.attentions)}
    parameters = dict(model.named_parameters())
    if total.grad_fn is not None and task in ("PreTraining", "SequenceClassification"):
        arrays |= {f"gradients/{name}": parameters[name].grad.numpy() for name in names}
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
