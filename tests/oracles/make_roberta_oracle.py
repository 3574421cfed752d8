"""Writes roberta_oracle.npz: what transformers computes from the parameters of tests/support/random_roberta.py.

python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.24.0
oracle/bin/python tests/oracles/make_roberta_oracle.py
"""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import oracle_directory
import random_roberta

PATH = pathlib.Path(__file__).with_name("roberta_oracle.npz")


def build(size: str, name: str):
    """The torch model with the drawn parameters, all of which it has, and no other."""
    import torch
    import transformers

    config = transformers.RobertaConfig(
        **random_roberta.config_json(size, name),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    model = getattr(transformers, random_roberta.class_name(name))(config).eval()
    state = random_roberta.state(size, name)
    if name == "RobertaModel":
        state = {key.removeprefix("roberta."): value for key, value in state.items()}
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(state.pop(key)))
    assert not state, f"not set: {list(state)}"
    return model


def run(size: str, name: str) -> dict[str, np.ndarray]:
    import torch

    model, drawn = build(size, name), random_roberta.batch(size)
    inputs = {key: torch.tensor(values.astype(np.int64)) for key, values in drawn.items()}
    if name == "RobertaModel":
        output = model(**inputs, output_hidden_states=True, output_attentions=True)
        found = {f"hidden_states/{i}": state for i, state in enumerate(output.hidden_states)}
        found |= {f"attentions/{i}": maps for i, maps in enumerate(output.attentions)}
        return {key: value.detach().numpy() for key, value in found.items()} | {
            "pooled": output.pooler_output.detach().numpy()
        }
    if name == "RobertaForMultipleChoice":
        inputs = {key: values[None] for key, values in inputs.items()}
    output = model(**inputs)
    if name != "RobertaForMaskedLM":
        logits = oracle_directory.logits_of(output)
        torch.sum(torch.sin(logits[random_roberta.defined(size, name)])).backward()
        gradients = oracle_directory.gradients_of(model, random_roberta.shapes(size, name))
        return {"logits": logits.detach().numpy(), "gradients": gradients}
    places = torch.tensor(random_roberta.PLACES.astype(np.int64))
    chosen = output.logits[torch.arange(4)[:, None], places]
    words = torch.tensor(random_roberta.labels(size).astype(np.int64))
    loss = torch.nn.functional.cross_entropy(chosen.flatten(0, 1), words.flatten())
    loss.backward()
    found = {"logits": chosen.detach().numpy(), "loss": loss.detach().numpy()}
    gradients = dict(model.named_parameters())
    return found | {f"gradients/{key}": gradients[key].grad.numpy() for key in random_roberta.shapes(size, name)}


def main() -> None:
    arrays = {}
    for size in random_roberta.SIZES:
        for name in random_roberta.PARTS:
            arrays |= {f"{size}/{name}/{key}": value for key, value in run(size, name).items()}
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PATH
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
