"""Fine-tuning and encoding in torch and transformers, in the order and data type that are fastest there.

bert_jax is not imported here; the sequences come tokenized, in a file.
"""

# pyright: reportMissingImports=false

import contextlib
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch
import transformers
from serving import peak_memory, serve

MEGABATCH = 50  # batches that transformers' group_by_length sorts together
TRIED = 2  # units of work by which the forms are compared
HOPELESS = 3  # times as long as another form for a share of a unit: no unit of such a form is tried
SHARE = 8  # of a unit


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that does so many units of the work that the job names, and facts."""
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_num_threads(job["threads"])
    forms = (training_forms if job["work"] == "training" else encoding_forms)(job)
    first = {name: seconds(form, 1 / SHARE, 1) for name, form in forms.items()}  # bfloat16 is 100 times slower on some
    hopeful = [name for name in forms if first[name] < HOPELESS * min(first.values())]
    taken = {name: seconds(forms[name], 1, TRIED) for name in hopeful}
    chosen = min(taken, key=lambda name: taken[name])

    def work(units: int):
        for _ in range(units):
            forms[chosen](1)

    facts = {
        "form": chosen,
        "seconds_per_unit_of_each_form": taken,
        "seconds_of_first_share_of_each_form": first,
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": peak_memory(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    return work, facts


def seconds(form: Any, share: float, times: int) -> float:
    """Return the mean time of a share of a unit, after one more that is not counted."""
    form(share)
    began = time.perf_counter()
    for _ in range(times):
        form(share)
    return (time.perf_counter() - began) / times


def training_forms(job: dict[str, Any]) -> dict[str, Any]:
    """Return functions that take a share of `steps_per_unit` steps: both orders, both data types."""
    with numpy.load(job["sequences"], allow_pickle=False) as stored:
        ends = numpy.cumsum(stored["lengths"])[:-1]
        ids, types = numpy.split(stored["input_ids"], ends), numpy.split(stored["token_type_ids"], ends)
        labels = torch.from_numpy(stored["labels"])
    settings = {"problem_type": "regression"} if job["outputs"] == 1 else {}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        job["model"], num_labels=job["outputs"], dtype=torch.float32, attn_implementation="sdpa", **settings
    ).to(job["device"])
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["learning_rate"], weight_decay=0.01, fused=True)
    orders = {"plain order": plain_order(ids), "grouped by length": grouped_by_length(ids, job["batch_size"])}
    places = dict.fromkeys(orders, 0)

    def step(chosen: Any, autocast: Any):
        batch = padded([ids[i] for i in chosen], [types[i] for i in chosen], job["device"])
        with autocast:
            loss = model(**batch, labels=labels[chosen].to(job["device"])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def steps(order: Any, bfloat16: bool, share: float):
        for _ in range(round(share * job["steps_per_unit"])):
            begin = places[order] % max(1, len(ids) - job["batch_size"])
            places[order] += job["batch_size"]
            step(orders[order][begin : begin + job["batch_size"]], precision(job["device"], bfloat16))
        finish(job["device"])

    return {
        f"{order}, {'bfloat16' if bfloat16 else 'float32'}": functools.partial(steps, order, bfloat16)
        for order in orders
        for bfloat16 in (False, True)
    }


def encoding_forms(job: dict[str, Any]) -> dict[str, Any]:
    """Return functions that encode a share of the texts: sorted by length, padded to the longest of each batch."""
    with open(job["texts"], encoding="utf-8") as file:
        texts = json.load(file)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    model = transformers.AutoModel.from_pretrained(job["model"], dtype=torch.float32, attn_implementation="sdpa")
    model = model.to(job["device"]).eval()
    half = transformers.AutoModel.from_pretrained(job["model"], dtype=torch.bfloat16, attn_implementation="sdpa")
    half = half.to(job["device"]).eval()

    def encode(model: Any, bfloat16: bool, share: float):
        some = texts[: max(1, round(share * len(texts)))]
        encoded = tokenizer(some, truncation=True, max_length=job["max_length"])
        ids, types = encoded["input_ids"], encoded.get("token_type_ids")
        types = types or [[0] * len(row) for row in ids]
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        found = [None] * len(ids)
        with torch.inference_mode(), precision(job["device"], bfloat16):
            for begin in range(0, len(order), job["batch_size"]):
                chosen = order[begin : begin + job["batch_size"]]
                batch = padded([ids[i] for i in chosen], [types[i] for i in chosen], job["device"])
                states = model(**batch).last_hidden_state.float().cpu().numpy()
                for number, state in zip(chosen, states, strict=True):
                    found[number] = state[: len(ids[number])]
        return found

    return {
        "float32": functools.partial(encode, model, False),
        "bfloat16 autocast": functools.partial(encode, model, True),
        "bfloat16 weights": functools.partial(encode, half, False),
    }


def plain_order(ids: Any) -> Any:
    """Return the shuffled order that transformers' Trainer takes by default."""
    return numpy.random.default_rng(0).permutation(len(ids))


def grouped_by_length(ids: Any, batch_size: int) -> Any:
    """Return the order of transformers' group_by_length: shuffled, then sorted by length within megabatches."""
    order, size = plain_order(ids), MEGABATCH * batch_size
    lengths = numpy.array([len(row) for row in ids])
    parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return numpy.concatenate([part[numpy.argsort(-lengths[part], kind="stable")] for part in parts])


def padded(ids: Any, types: Any, device: Any) -> dict[str, Any]:
    """Return rows padded to the longest of them."""
    longest = max(map(len, ids))
    batch = {name: torch.zeros((len(ids), longest), dtype=torch.long) for name in NAMES}
    for row, (tokens, segments) in enumerate(zip(ids, types, strict=True)):
        batch["input_ids"][row, : len(tokens)] = torch.as_tensor(tokens)
        batch["token_type_ids"][row, : len(tokens)] = torch.as_tensor(segments)
        batch["attention_mask"][row, : len(tokens)] = 1
    return {name: array.to(device) for name, array in batch.items()}


NAMES = ("input_ids", "token_type_ids", "attention_mask")


def precision(device: Any, bfloat16: bool) -> Any:
    """Return the context in which the model computes."""
    return torch.autocast(device, dtype=torch.bfloat16) if bfloat16 else contextlib.nullcontext()


def finish(device: Any) -> None:
    """Wait until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    serve(prepare)
