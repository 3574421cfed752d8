"""Writes modernbert_oracle.npz: small ModernBERTs of transformers on parameters drawn by NumPy from their names.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.24.0
    oracle/bin/python tests/oracles/make_modernbert_oracle.py [OTHER.npz]

Of each case: config.json and the names and shapes of the arrays as transformers saves them, outputs at the positions of
real tokens in float32, and norm and samples of every gradient.
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import modernbert_cases
import oracle_directory

PATH = pathlib.Path(__file__).with_name("modernbert_oracle.npz")


def record(name: str) -> dict[str, np.ndarray]:
    import torch
    import transformers

    case = modernbert_cases.CASES[name]
    config = transformers.ModernBertConfig(**case["config"], attn_implementation="eager")
    model = getattr(transformers, case["class"])(config).eval()
    tied = {"decoder.weight"}
    shapes = {key: list(value.shape) for key, value in model.state_dict().items() if key not in tied}
    model.load_state_dict(
        {key: torch.from_numpy(value) for key, value in oracle_directory.draw(shapes).items()}, strict=False
    )
    ids, mask = modernbert_cases.inputs(name)
    tensors = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    output = model(**oracle_directory.asked(case, tensors), output_hidden_states=True, output_attentions=True)
    real = torch.tensor(mask.astype(bool))
    logits = oracle_directory.logits_of(output)
    rows = logits[real] if logits.shape[:2] == real.shape else logits
    torch.sum(torch.sin(rows)).backward()
    arrays = {f"states/{index}": state[real] for index, state in enumerate(output.hidden_states)}
    arrays |= {f"attentions/{index}": maps for index, maps in enumerate(output.attentions)}
    arrays["logits"] = rows
    arrays = {key: value.detach().numpy() for key, value in arrays.items()}
    arrays["gradients"] = oracle_directory.gradients_of(model, shapes)
    config.architectures = [case["class"]]
    arrays["config"] = np.array(json.dumps(config.to_dict() | case.get("written", {})))
    arrays["shapes"] = np.array(json.dumps(shapes))
    return {f"{name}/{key}": value for key, value in arrays.items()}


if __name__ == "__main__":
    oracle_directory.record_all(modernbert_cases.CASES, record, PATH)
