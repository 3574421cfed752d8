"""Opens adapters with PEFT on exported models, offline, and records what they compute.

    python open_with_peft.py REQUEST.json RESULT.npz      # in an environment with torch, transformers and peft

REQUEST: {"models": [{"base", "adapter", "class", "inputs"}]}. RESULT: by number of the model its logits, with the
adapter beside the model (beside) and merged into it (merged).
"""

import json
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import peft
import torch
import transformers


def main(request_file: str, result_file: str) -> None:
    with open(request_file) as stream:
        request = json.load(stream)
    arrays = {}
    for number, each in enumerate(request["models"]):
        model = getattr(transformers, each["class"]).from_pretrained(each["base"], num_labels=3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapted = peft.PeftModel.from_pretrained(model, each["adapter"]).eval()
        assert not [one for one in caught if "adapter keys" in str(one.message)], [str(one.message) for one in caught]
        taken = {name: torch.tensor(values) for name, values in each["inputs"].items()}
        with torch.no_grad():
            arrays[f"{number}/beside"] = adapted(**taken).logits.numpy()
            arrays[f"{number}/merged"] = adapted.merge_and_unload()(**taken).logits.numpy()
    np.savez(result_file, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
