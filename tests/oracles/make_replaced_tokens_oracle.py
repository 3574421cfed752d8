"""Writes replaced_tokens_oracle.npz: the loss of ELECTRA on a fixed sample, in torch, and its gradients.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.23.0
    oracle/bin/python tests/oracles/make_replaced_tokens_oracle.py

The losses are those that ElectraForMaskedLM and ElectraForPreTraining of transformers return for labels; the second is
weighted by 50. Parameters, batch and sample are drawn again by tests/support/recorded_models.py.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import recorded_models as drawn

PATH = pathlib.Path(__file__).with_name("replaced_tokens_oracle.npz")


def build(part: str) -> torch.nn.Module:
    given = {name: value for name, value in drawn.PARTS[part].items() if name != "architectures"}
    config = transformers.AutoConfig.for_model(**given, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = getattr(transformers, drawn.PARTS[part]["architectures"][0])(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(drawn.value(name, tuple(parameter.shape), part)))
    return model


def labels_and_inputs() -> tuple[dict, torch.Tensor, dict, torch.Tensor]:
    """What both parts read, and their labels, by loops over the places of a row."""
    batch, sample = drawn.masked_batch(), drawn.sample()
    words = np.full(batch["input_ids"].shape, -100)
    written, replaced = batch["input_ids"].copy(), np.zeros(batch["input_ids"].shape)
    for row, slot in np.argwhere(batch["masked_weights"] > 0):
        place, original = batch["masked_positions"][row, slot], batch["masked_ids"][row, slot]
        words[row, place], written[row, place] = original, sample[row, slot]
        replaced[row, place] = sample[row, slot] != original
    inputs = {name: torch.tensor(batch[name].astype(np.int64)) for name in ("token_type_ids", "attention_mask")}
    seen, judged = (torch.tensor(ids.astype(np.int64)) for ids in (batch["input_ids"], written))
    return (
        inputs | {"input_ids": seen},
        torch.tensor(words),
        inputs | {"input_ids": judged},
        torch.tensor(replaced).long(),
    )


def run(embeddings: str) -> dict[str, np.ndarray]:
    generator, discriminator = build("generator"), build("discriminator")
    seen, words, judged, replaced = labels_and_inputs()
    differences = {}
    if embeddings == "shared":
        generator.electra.embeddings = discriminator.electra.embeddings
        generator.tie_weights()
    if embeddings == "disentangled":
        tables = {name: p for name, p in generator.named_parameters() if name.endswith("_embeddings.weight")}
        differences = {
            name: torch.from_numpy(drawn.value(name, tuple(table.shape), "difference")).requires_grad_()
            for name, table in tables.items()
        }
        whole = {name: tables[name].detach() + difference for name, difference in differences.items()}
        loss = torch.func.functional_call(discriminator, whole, kwargs=judged | {"labels": replaced}).loss
    else:
        loss = discriminator(**judged, labels=replaced).loss
    of_words = generator(**seen, labels=words).loss
    (of_words + 50 * loss).backward()
    arrays = {"mlm_loss": of_words.detach().numpy(), "replaced_tokens_loss": loss.detach().numpy()}
    parts = {"generator": generator.named_parameters(), "discriminator": discriminator.named_parameters()}
    for part, parameters in parts.items():
        for name, parameter in parameters:
            found = differences.get(name, parameter) if part == "discriminator" else parameter
            arrays[f"gradients/{part}/{name}"] = found.grad.numpy()
    return arrays


def main() -> None:
    arrays = {}
    for embeddings in ("shared", "own", "disentangled"):
        arrays |= {f"{embeddings}/{name}": value for name, value in run(embeddings).items()}
    shapes = {
        part: {name: list(parameter.shape) for name, parameter in build(part).named_parameters()}
        for part in drawn.PARTS
    }
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PATH
    np.savez_compressed(path, shapes=np.array(json.dumps(shapes)), **arrays)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
