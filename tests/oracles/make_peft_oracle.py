"""What PEFT saves of an adapted model, and what that computes: peft_oracle.npz.

    python make_peft_oracle.py [OUTPUT]      # in an environment with torch, transformers and peft

The base is the tiny model of support/random_bert.py with a classifier. Recorded are adapter_config.json, the arrays of
adapter_model.safetensors, and the logits of a batch, of the base with its adapter beside it.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import peft
import safetensors.numpy
import torch
import transformers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
import random_bert  # noqa: E402


def main(output: str) -> None:
    sizes = random_bert.sizes("tiny")
    config = transformers.BertConfig(**random_bert.config_json(sizes, "gelu_erf") | {"num_labels": 3})
    model = transformers.BertForSequenceClassification(config).eval()
    state = {
        name: torch.tensor(value)
        for name, value in random_bert.to_hugging_face(random_bert.draw_parameters(sizes)).items()
    }
    missing, _ = model.load_state_dict(
        {name: value for name, value in state.items() if name.startswith("bert.")}, strict=False
    )
    assert all(name.startswith("classifier") or "position_ids" in name for name in missing), missing
    options = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=3,
        lora_alpha=5,
        target_modules=["query", "value", "output.dense"],
        rank_pattern={"layer.0.attention.self.query": 2},
        alpha_pattern={"value": 7},
        use_rslora=True,
    )
    model.config._name_or_path = "base"
    adapted, random = peft.get_peft_model(model, options).eval(), np.random.RandomState(7)
    with torch.no_grad():
        for _, parameter in sorted(adapted.named_parameters()):
            if parameter.requires_grad:
                parameter.copy_(torch.tensor(random.standard_normal(parameter.shape).astype(np.float32) * 0.3))
        batch = random_bert.draw_batch(sizes)
        inputs = {name: torch.tensor(batch[name]).long() for name in ("input_ids", "token_type_ids", "attention_mask")}
        logits = adapted(**inputs).logits.numpy()
    with tempfile.TemporaryDirectory() as place:
        adapted.save_pretrained(place)
        arrays = safetensors.numpy.load_file(pathlib.Path(place) / "adapter_model.safetensors")
        told = json.loads((pathlib.Path(place) / "adapter_config.json").read_text())
    told |= {
        name: sorted(value) for name, value in told.items() if name in ("target_modules", "modules_to_save") and value
    }
    facts = {"config": told, "peft": peft.__version__, "torch": torch.__version__}
    np.savez_compressed(
        output, logits=logits, facts=json.dumps(facts), **{f"array/{name}": value for name, value in arrays.items()}
    )


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else str(HERE / "peft_oracle.npz"))
