"""Writes huggingface_oracle.npz: BertForPreTraining of transformers on the parameters of tests/support/random_bert.py.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.23.0
    oracle/bin/python tests/oracles/make_huggingface_oracle.py

Everything is computed twice, in float64, which is taken as the truth, and in float32, whose distance from it is the
error that float32 arithmetic makes in an independent implementation. Stored of each quantity: its norm and samples in
float64, and the largest error of PyTorch's float32, at the samples and over the whole array.
"""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import random_bert

PATH = pathlib.Path(__file__).with_name("huggingface_oracle.npz")


def build(sizes: dict, activation: str, dtype: str):
    """The torch model with the drawn parameters."""
    import torch
    import transformers

    config = transformers.BertConfig(
        **random_bert.config_json(sizes, activation),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    model = transformers.BertForPreTraining(config).to(getattr(torch, dtype))
    state = random_bert.to_hugging_face(random_bert.draw_parameters(sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(state.pop(name)))
    assert not state, f"not set: {list(state)}"
    return model


def run(model, sizes: dict) -> dict[str, np.ndarray]:
    """Outputs, loss and gradients; outputs at the positions of real tokens only."""
    import torch

    batch = random_bert.draw_batch(sizes)
    rows, used = np.arange(len(batch["input_ids"]))[:, None], batch["masked_weights"] > 0
    labels = np.full(batch["input_ids"].shape, -100)
    labels[np.broadcast_to(rows, used.shape)[used], batch["masked_positions"][used]] = batch["masked_ids"][used]
    tensors = {
        name: torch.tensor(batch[name].astype(np.int64)) for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    output = model(
        **tensors,
        labels=torch.tensor(labels),
        output_hidden_states=True,
        output_attentions=True,
        next_sentence_label=torch.tensor(batch["next_sentence_labels"].astype(np.int64)),
    )
    output.loss.backward()
    real = batch["attention_mask"].astype(bool)
    result = {
        "loss": output.loss,
        "next_sentence_logits": output.seq_relationship_logits,
        "pooled": model.bert(**tensors).pooler_output,
        "mlm_logits": output.prediction_logits[torch.tensor(rows), torch.tensor(batch["masked_positions"])],
    }
    result |= {f"hidden_states/{index}": state[torch.tensor(real)] for index, state in enumerate(output.hidden_states)}
    result |= {f"attentions/{index}": maps for index, maps in enumerate(output.attentions)}
    result = {name: value.detach().numpy() for name, value in result.items()}
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    return result | {
        f"gradients/{path}": value for path, value in random_bert.from_hugging_face(gradients, sizes).items()
    }


def record(name: str, activation: str) -> dict[str, np.ndarray]:
    """{case/names, case/values [quantities, 1 + samples], case/errors [quantities, 2]}."""
    sizes = random_bert.sizes(name)
    truth = run(build(sizes, activation, "float64"), sizes)
    narrow = run(build(sizes, activation, "float32"), sizes)
    case, values, errors = f"{name}/{activation}", [], []
    for quantity, value in truth.items():
        values.append(random_bert.sample(value, quantity))
        at_samples = np.abs(random_bert.sample(narrow[quantity], quantity) - values[-1])[1:].max()
        errors.append((at_samples, np.abs(narrow[quantity] - value).max()))
    return {
        f"{case}/names": np.array(list(truth)),
        f"{case}/values": np.stack(values),
        f"{case}/errors": np.array(errors),
    }


def main() -> None:
    """All cases into PATH, or those of the sizes named after another path."""
    path, chosen = (pathlib.Path(sys.argv[1]), sys.argv[2:]) if len(sys.argv) > 1 else (PATH, random_bert.SIZES)
    arrays = {}
    for case in random_bert.CASES:
        if case[0] in chosen:
            arrays |= record(*case)
            print(*case)
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
