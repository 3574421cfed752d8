"""Writes xlnet_oracle.npz: small XLNets of transformers on parameters drawn by NumPy from their names.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.24.0
    oracle/bin/python tests/oracles/make_xlnet_oracle.py [OTHER.npz]

Of each case: config.json and the names and shapes of the arrays as transformers saves them, outputs at the positions of
real tokens (and of targets) in float32, and norm and samples of every gradient. Of those with a memory also the states
of every segment, the attention of the last one, what is remembered after it, and gradients of the last one.
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import oracle_directory
import xlnet_cases

PATH = pathlib.Path(__file__).with_name("xlnet_oracle.npz")


def record(name: str) -> dict[str, np.ndarray]:
    import torch
    import transformers

    case = xlnet_cases.CASES[name]
    model = getattr(transformers, case["class"])(transformers.XLNetConfig(**case["config"])).eval()
    shapes = {key: list(value.shape) for key, value in model.state_dict().items() if key != "lm_loss.weight"}
    model.load_state_dict(
        {key: torch.from_numpy(value) for key, value in oracle_directory.draw(shapes).items()}, strict=False
    )
    given = xlnet_cases.inputs(name)
    real = torch.tensor(given["attention_mask"].astype(bool))
    passed = oracle_directory.asked(case, as_tensors(given))
    output = model(**passed, use_mems=False, output_hidden_states=True, output_attentions=True)
    logits = oracle_directory.logits_of(output)
    rows = logits[real] if logits.shape[:2] == real.shape else logits
    torch.sum(torch.sin(rows)).backward()
    arrays = {"logits": rows}
    if "targets" in given:
        for index, state in enumerate(output.hidden_states):
            stream, layer = ("states", "targets")[index % 2], index // 2
            arrays[f"{stream}/{layer}"] = state if index % 2 else state[real]
        places = torch.tensor(given["targets"])[:, None, :, None]
        for layer, (tokens, targets) in enumerate(output.attentions):
            arrays[f"attentions/{layer}"] = tokens
            arrays[f"target_attentions/{layer}"] = torch.take_along_dim(targets, places, 2)
    else:
        arrays |= {f"states/{index}": state[real] for index, state in enumerate(output.hidden_states)}
        arrays |= {f"attentions/{index}": maps for index, maps in enumerate(output.attentions)}
    arrays = {key: value.detach().numpy() for key, value in arrays.items()}
    arrays["gradients"] = oracle_directory.gradients_of(model, shapes)
    if name in xlnet_cases.MEMORY:
        arrays |= record_memory(model, name)
        arrays["memory/gradients"] = oracle_directory.gradients_of(model, shapes)
    model.config.architectures = [case["class"]]
    arrays["config"] = np.array(json.dumps(model.config.to_dict()))
    arrays["shapes"] = np.array(json.dumps(shapes))
    return {f"{name}/{key}": value for key, value in arrays.items()}


def as_tensors(given: dict[str, np.ndarray]) -> dict:
    import torch

    passed = {key: torch.tensor(value) for key, value in given.items() if key not in ("order", "targets")}
    return passed | {"attention_mask": passed["attention_mask"].float()}


def record_memory(model, name: str) -> dict[str, np.ndarray]:
    """Read the segments of a case one after the other, each with the memory of those before."""
    import torch

    encoder, options, mems, arrays = model.transformer, xlnet_cases.MEMORY[name], None, {}
    encoder.mem_len, encoder.reuse_len = options["mem_len"], options["reuse_len"]
    model.zero_grad()
    for number, given in enumerate(xlnet_cases.segments(name)):
        output = encoder(
            **as_tensors(given), mems=mems, use_mems=True, output_hidden_states=True, output_attentions=True
        )
        mems, states = output.mems, output.hidden_states
        if "targets" in given:
            states = [torch.cat([states[place], states[place + 1]], 1) for place in range(0, len(states), 2)]
        arrays |= {f"memory/{number}/states/{index}": state for index, state in enumerate(states)}
    torch.sum(torch.sin(states[-1][:, :1])).backward()
    maps = [each[0] if "targets" in given else each for each in output.attentions]
    arrays |= {f"memory/attentions/{index}": each for index, each in enumerate(maps)}
    arrays |= {f"memory/kept/{index}": state.transpose(0, 1) for index, state in enumerate(mems)}
    return {key: value.detach().numpy() for key, value in arrays.items()}


if __name__ == "__main__":
    oracle_directory.record_all(xlnet_cases.CASES, record, PATH)
