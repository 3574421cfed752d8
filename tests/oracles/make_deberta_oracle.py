"""Writes deberta_oracle.npz: small DeBERTas of transformers on parameters drawn by NumPy from their names.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.24.0
    oracle/bin/python tests/oracles/make_deberta_oracle.py [OTHER.npz]

Of each case: config.json and the names and shapes of the arrays as transformers saves them, outputs at the positions of
real tokens in float32, and norm and samples of every gradient.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import deberta_cases
import oracle_directory

PATH = pathlib.Path(__file__).with_name("deberta_oracle.npz")


def saved_shapes(model) -> dict[str, list[int]]:
    """Name and shape of every array that save_pretrained writes."""
    import safetensors.numpy

    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        arrays = safetensors.numpy.load_file(f"{directory}/model.safetensors")
    return {name: list(values.shape) for name, values in sorted(arrays.items())}


def decoded(model, states, mask):
    """The two passes of the enhanced mask decoder, by the layer of transformers that takes queries of its own."""
    import torch

    encoder, table = model.encoder, torch.from_numpy(deberta_cases.absolute_positions(states.shape[-1]))
    queries = states + table[None, : states.shape[1]]
    for _ in range(2):
        queries = encoder.layer[-1](
            states,
            encoder.get_attention_mask(mask),
            query_states=queries,
            relative_pos=encoder.get_rel_pos(states),
            rel_embeddings=encoder.get_rel_embedding(),
        )[0]
    return queries


def record(name: str) -> dict[str, np.ndarray]:
    import torch
    import transformers

    case = deberta_cases.CASES[name]
    family = "DebertaV2" if case["class"].startswith("DebertaV2") else "Deberta"
    config = getattr(transformers, f"{family}Config")(**case["config"], attn_implementation="eager")
    model = getattr(transformers, case["class"])(config).eval()
    shapes = saved_shapes(model)
    drawn = {key: torch.from_numpy(value) for key, value in oracle_directory.draw(shapes).items()}
    _, unexpected = model.load_state_dict(drawn, strict=False)
    assert not unexpected, unexpected
    model.tie_weights()
    ids, types, mask = (torch.tensor(array) for array in deberta_cases.inputs(name))
    tensors = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    output = model(**oracle_directory.asked(case, tensors), output_hidden_states=True, output_attentions=True)
    real = mask.bool()
    logits = oracle_directory.logits_of(output)
    rows = logits[real] if logits.shape[:2] == real.shape else logits
    torch.sum(torch.sin(rows)).backward()
    arrays = {f"states/{index}": state[real] for index, state in enumerate(output.hidden_states)}
    arrays |= {f"attentions/{index}": maps for index, maps in enumerate(output.attentions)}
    arrays["logits"] = rows
    if name == deberta_cases.DECODED:
        arrays["decoded"] = decoded(model.deberta, output.hidden_states[-2], mask)[real]
    arrays = {key: value.detach().numpy() for key, value in arrays.items()}
    arrays["gradients"] = oracle_directory.gradients_of(model, shapes)
    config.architectures = [case["class"]]
    arrays["config"] = np.array(json.dumps(config.to_dict()))
    arrays["shapes"] = np.array(json.dumps(shapes))
    return {f"{name}/{key}": value for key, value in arrays.items()}


if __name__ == "__main__":
    oracle_directory.record_all(deberta_cases.CASES, record, PATH)
