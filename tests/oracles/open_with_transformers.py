"""Opens exported directories with the Auto classes of transformers, offline, and records what they say and compute.

    python open_with_transformers.py REQUEST.json RESULT.npz      # in an environment with torch and transformers

REQUEST: {"models": [{"path", "class", "options", "inputs"}], "tokenizers": [{"path", "texts"}], "inputs"}. A model
without "class" is opened by the Python in its README.md, and one without "inputs" gets those of the request.
RESULT: by number of the model its outputs, and in `report` as JSON the keys it missed or did not expect, all that was
logged, and ids.
"""

import json
import logging
import os
import pathlib
import re
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers


class Lines(logging.Handler):
    """Keeps what is logged at WARNING or above."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def open_model(request: dict, inputs: dict, number: int, arrays: dict) -> dict:
    log = Lines()
    transformers.utils.logging.get_logger("transformers").addHandler(log)
    if "class" in request:
        opener = getattr(transformers, request["class"])
        model, info = opener.from_pretrained(request["path"], output_loading_info=True, **request.get("options", {}))
    else:
        model, info = by_card(request["path"])
    transformers.utils.logging.get_logger("transformers").removeHandler(log)
    tensors = {name: torch.tensor(values) for name, values in request.get("inputs", inputs).items()}
    if "MultipleChoice" in type(model).__name__:
        tensors = {name: values[None] for name, values in tensors.items()}
    with torch.no_grad():
        output = model.eval()(**tensors)
    tensors = {name: value for name, value in output.items() if torch.is_tensor(value)}  # XLNet also returns its memory
    arrays |= {f"{number}/{name}": value.numpy() for name, value in tensors.items()}
    return {
        "class": type(model).__name__,
        "dtype": str(model.dtype),
        "log": log.lines,
        **{name: sorted(map(str, info[name])) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")},
    }


def by_card(path: str) -> tuple:
    """Run the Python of the model card; return its model, and what from_pretrained says of the model's class."""
    card, found = pathlib.Path(path, "README.md").read_text(encoding="utf-8"), {}
    (python,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(python.replace('"PATH"', repr(path)), found)
    options = {name: told == "True" for name, told in re.findall(r"(add_pooling_layer)=(\w+)", python)}
    _, info = type(found["model"]).from_pretrained(path, output_loading_info=True, **options)
    return found["model"], info


def open_tokenizer(request: dict) -> dict:
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["path"])
    pair = tokenizer("one text", "another")
    return {
        "ids": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in request["texts"]],
        "pair": [pair["input_ids"], pair.get("token_type_ids"), pair["attention_mask"]],
        "specials": [
            tokenizer.pad_token_id,
            tokenizer.unk_token_id,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.mask_token_id,
        ],
        "model_max_length": tokenizer.model_max_length,
        "decoded": tokenizer.decode(pair["input_ids"], skip_special_tokens=True),
    }


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    arrays = {}
    report = {
        "versions": [torch.__version__, transformers.__version__],
        "models": [open_model(one, request["inputs"], number, arrays) for number, one in enumerate(request["models"])],
        "tokenizers": [open_tokenizer(one) for one in request["tokenizers"]],
    }
    np.savez(sys.argv[2], report=np.array(json.dumps(report)), **arrays)


if __name__ == "__main__":
    main()
