"""Run torch and transformers as one contestant of a benchmark: `python torch_contestants.py step`.

Both come from the environment that runs this file; bert_jax is not imported there. Each function prepares the work of
one benchmark and imports what that takes.
"""

import functools
import json
import os
import sys
import time
from typing import Any

from serving import Prepared, Refusal, peak_memory, serve
from torch_step import INPUTS, precision, set_up, step, versions, wait

# pyright: reportMissingImports=false


UNITS_TRIED = 2  # of work, by which the forms of fine-tuning and encoding are compared
HOPELESS = 3  # times as long as another form for a share of a unit: no unit of such a form is tried
SHARE = 8  # of a unit
MEGABATCH = 50  # batches that transformers' group_by_length sorts together


def data(job: dict[str, Any]) -> Prepared:
    """Prepare DataCollatorForLanguageModeling, on sequences that are tokenized, paired and cut already.

    It masks and pads; our side also reads, pairs and cuts.
    """
    import numpy
    import torch
    import transformers

    torch.set_num_threads(1)  # it only copies; the processor time of more threads would be waiting
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.BertTokenizerFast.from_pretrained(job["tokenizer"])
    with numpy.load(job["sequences"], allow_pickle=False) as stored:
        examples = sequences(stored, set(tokenizer.all_special_ids))
    if job["whole_word"]:
        examples = with_offsets(examples, tokenizer)
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer,
        mlm_probability=job["rate"],
        pad_to_multiple_of=job["length"],
        return_tensors=job["form"],
        **({"whole_word_mask": True} if job["whole_word"] else {}),
    )
    rows, position = job["batch_size"], 0

    def work(units: int):
        nonlocal position
        for _ in range(units):
            collator([examples[(position + row) % len(examples)] for row in range(rows)])
            position += rows

    tokens = sum(len(example["input_ids"]) for example in examples) / len(examples) * rows
    facts = {
        "sequences": rows,
        "tokens": tokens,
        "token_share": tokens / rows / job["length"],
        "versions": versions(torch, transformers),
    }
    return work, facts


def sequences(stored: Any, special: Any) -> list[Any]:
    """Return the features of each sequence as a data set of transformers has them."""
    columns = zip(stored["input_ids"], stored["token_type_ids"], stored["lengths"], strict=True)
    return [
        {
            "input_ids": ids[:length].tolist(),
            "token_type_ids": types[:length].tolist(),
            "special_tokens_mask": [int(token in special) for token in ids[:length].tolist()],
        }
        for ids, types, length in columns
    ]


def with_offsets(examples: Any, tokenizer: Any) -> list[Any]:
    """Return the examples with the places in the text by which the collator finds words: pieces of a word touch."""
    goes_on = [token.startswith("##") for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    found = []
    for example in examples:
        offsets, end = [], 0
        for token, special in zip(example["input_ids"], example["special_tokens_mask"], strict=True):
            start = end if goes_on[token] or special else end + 1
            end = start if special else start + 2
            offsets.append((0, 0) if special else (start, end))
        found.append({**example, "offset_mapping": offsets})
    return found


def prepare(job: dict[str, Any]) -> Prepared:
    """Prepare the fast tokenizer of transformers on lines of text."""
    os.environ["RAYON_NUM_THREADS"] = "1"  # its threads, as many as ours has
    import transformers

    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.BertTokenizerFast(vocab_file=job["vocab"], do_lower_case=job["lowercase"])
    with open(job["text"], encoding="utf-8", newline="\n") as file:
        lines = file.read().removesuffix("\n").split("\n")

    def work(units: int):
        for _ in range(units):
            for begin in range(0, len(lines), job["lines"]):
                tokenizer(lines[begin : begin + job["lines"]], add_special_tokens=False, return_attention_mask=False)

    return work, {"peak_memory_bytes": peak_memory(), "versions": versions(transformers)}


def finetune(job: dict[str, Any]) -> Prepared:
    """Prepare the work that the job names, in the order, data type and library that are fastest here.

    The sequences to train on come tokenized, in a file.
    """
    import torch
    import transformers

    set_up(job["device"], job["threads"])
    transformers.utils.logging.set_verbosity_error()
    libraries = [torch, transformers, *([sentence_transformers()] if "vectors" in job else [])]
    forms = (VECTOR_FORMS if "vectors" in job else FORMS)[job["work"]](job)
    first = {name: seconds(form, 1 / SHARE, 1) for name, form in forms.items()}  # bfloat16 is 100 times slower on some
    hopeful = [name for name in forms if first[name] < HOPELESS * min(first.values())]
    taken = {name: seconds(forms[name], 1, UNITS_TRIED) for name in hopeful}
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
        "versions": versions(*libraries),
    }
    return work, facts


def sentence_transformers() -> Any:
    """Return the library, if there is one."""
    try:
        import sentence_transformers
    except ImportError as error:
        lacks = f"this environment has no sentence-transformers ({error}), the peer of the task vectors"
        raise Refusal(f"{lacks}; install it there with: pip install sentence-transformers") from None
    return sentence_transformers


def seconds(form: Any, share: float, times: int) -> float:
    """Return the mean time of a share of a unit, after one more that is not counted."""
    form(share)
    began = time.perf_counter()
    for _ in range(times):
        form(share)
    return (time.perf_counter() - began) / times


def training_forms(job: dict[str, Any]) -> dict[str, Any]:
    """Return the forms of the steps of a classifier."""
    import torch
    import transformers

    ids, types, labels = stored_sequences(job)
    settings = {"problem_type": "regression"} if job["outputs"] == 1 else {}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        job["model"], num_labels=job["outputs"], dtype=torch.float32, attn_implementation="sdpa", **settings
    ).to(job["device"])

    def loss_of(chosen: Any) -> Any:
        batch = padded([ids[i] for i in chosen], [types[i] for i in chosen], job["device"])
        return model(**batch, labels=labels[chosen].to(job["device"])).loss

    return forms_of_steps(job, model, loss_of, ids)


def stored_sequences(job: dict[str, Any]) -> Any:
    """Return the ids and the segments of each sequence, and all labels."""
    import numpy
    import torch

    with numpy.load(job["sequences"], allow_pickle=False) as stored:
        ends = numpy.cumsum(stored["lengths"])[:-1]
        ids, types = numpy.split(stored["input_ids"], ends), numpy.split(stored["token_type_ids"], ends)
        return ids, types, torch.from_numpy(stored["labels"])


def forms_of_steps(job: dict[str, Any], model: Any, loss_of: Any, examples: Any) -> dict[str, Any]:
    """Return functions that take a share of `steps_per_unit` steps: both orders, both data types.

    Args:
      job: says how.
      model: is trained.
      loss_of: returns the loss of the examples whose numbers it gets.
      examples: as long as the longest sequence of each.
    """
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["learning_rate"], weight_decay=0.01, fused=True)
    orders = {"plain order": plain_order(examples), "grouped by length": grouped_by_length(examples, job["batch_size"])}
    places = dict.fromkeys(orders, 0)

    def take(chosen: Any, autocast: Any):
        with autocast:
            loss = loss_of(chosen)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def steps(order: Any, bfloat16: bool, share: float):
        for _ in range(round(share * job["steps_per_unit"])):
            begin = places[order] % max(1, len(examples) - job["batch_size"])
            places[order] += job["batch_size"]
            take(orders[order][begin : begin + job["batch_size"]], precision(job["device"], bfloat16))
        wait(job["device"])

    return {
        f"{order}, {'bfloat16' if bfloat16 else 'float32'}": functools.partial(steps, order, bfloat16)
        for order in orders
        for bfloat16 in (False, True)
    }


def encoding_forms(job: dict[str, Any]) -> dict[str, Any]:
    """Return functions that encode a share of the texts: sorted by length, padded to the longest of each batch."""
    import torch
    import transformers

    with open(job["texts"], encoding="utf-8") as file:
        texts = json.load(file)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    whole, half = (
        transformers.AutoModel.from_pretrained(job["model"], dtype=dtype, attn_implementation="sdpa")
        .to(job["device"])
        .eval()
        for dtype in (torch.float32, torch.bfloat16)
    )

    def encode(model: Any, bfloat16: bool, share: float):
        some = part_of(texts, share)
        found = [None] * len(some)
        with torch.inference_mode(), precision(job["device"], bfloat16):
            for chosen, batch in sorted_batches(tokenizer, some, job):
                states = model(**batch).last_hidden_state.float().cpu().numpy()
                sizes = batch["attention_mask"].sum(1).tolist()
                for number, state, size in zip(chosen, states, sizes, strict=True):
                    found[number] = state[:size]
        return found

    return {
        "float32": functools.partial(encode, whole, False),
        "bfloat16 autocast": functools.partial(encode, whole, True),
        "bfloat16 weights": functools.partial(encode, half, False),
    }


def embedding_forms(job: dict[str, Any]) -> dict[str, Any]:
    """Return functions that make a vector of each text of a share: the mean of its states, as `encoding_forms` does.

    Where sentence-transformers is installed, its own `encode` is among them.
    """
    import torch
    import transformers

    with open(job["texts"], encoding="utf-8") as file:
        texts = json.load(file)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    model = transformers.AutoModel.from_pretrained(job["model"], attn_implementation="sdpa").to(job["device"]).eval()

    def pooled(bfloat16: bool, share: float):
        some = part_of(texts, share)
        found = torch.zeros(len(some), model.config.hidden_size)
        with torch.inference_mode(), precision(job["device"], bfloat16):
            for chosen, batch in sorted_batches(tokenizer, some, job):
                states, mask = model(**batch).last_hidden_state.float(), batch["attention_mask"][..., None]
                found[chosen] = ((states * mask).sum(1) / mask.sum(1)).cpu()
        return found.numpy()

    def of_sentence_transformers(sentences: Any, bfloat16: bool, share: float):
        with precision(job["device"], bfloat16):
            return sentences.encode(part_of(texts, share), batch_size=job["batch_size"], show_progress_bar=False)

    forms = {"float32": functools.partial(pooled, False), "bfloat16": functools.partial(pooled, True)}
    try:
        from sentence_transformers import SentenceTransformer, models
    except ImportError:
        return forms
    words = models.Transformer(job["model"], max_seq_length=job["max_length"])
    pooling = models.Pooling(model.config.hidden_size, "mean")
    sentences = SentenceTransformer(modules=[words, pooling], device=job["device"])
    ours = functools.partial(of_sentence_transformers, sentences)
    return forms | {
        "sentence-transformers, float32": functools.partial(ours, False),
        "sentence-transformers, bfloat16": functools.partial(ours, True),
    }


POOLINGS = {"cls": "cls", "mean": "mean", "max": "max", "mean_sqrt_len": "mean_sqrt_len_tokens"}


def sentence_model(job: dict[str, Any], dtype: Any) -> Any:
    """Return the model of sentence-transformers that makes vectors as the job says."""
    from sentence_transformers import SentenceTransformer, models

    made = job["vectors"]
    words = models.Transformer(job["model"], max_seq_length=job["max_length"], model_kwargs={"dtype": dtype})
    size = words.auto_model.config.hidden_size
    modules = [words, models.Pooling(size, POOLINGS[made["pooling"]]), *[models.Normalize()] * bool(made["normalize"])]
    return SentenceTransformer(modules=modules, device=job["device"])


def vector_training_forms(job: dict[str, Any]) -> dict[str, Any]:
    """Return the forms of the steps of sentence-transformers, which pads each column of a batch to its longest text."""
    import torch
    from sentence_transformers import losses, util

    ids, types, labels = stored_sequences(job)
    texts, loss = len(ids) // len(labels), job["vectors"]["loss"]
    sentences = sentence_model(job, torch.float32)
    if loss["name"] == "cosent":
        criterion = losses.CoSENTLoss(sentences, scale=loss["scale"])
    else:
        compared = {"cosine": util.cos_sim, "dot": util.dot_score}[loss["similarity"]]
        criterion = losses.MultipleNegativesRankingLoss(sentences, scale=loss["scale"], similarity_fct=compared)

    def loss_of(chosen: Any) -> Any:
        columns = [[texts * i + column for i in chosen] for column in range(texts)]
        batches = [padded([ids[i] for i in each], [types[i] for i in each], job["device"]) for each in columns]
        return criterion(batches, labels[chosen].to(job["device"]))

    longest = [max(ids[first : first + texts], key=len) for first in range(0, len(ids), texts)]
    return forms_of_steps(job, sentences, loss_of, longest)


def vector_embedding_forms(job: dict[str, Any]) -> dict[str, Any]:
    """Return functions that make a vector of each text of a share with `encode`, which sorts the texts by length."""
    import torch

    with open(job["texts"], encoding="utf-8") as file:
        texts = json.load(file)
    whole, half = (sentence_model(job, dtype) for dtype in (torch.float32, torch.bfloat16))

    def encode(sentences: Any, bfloat16: bool, share: float):
        with precision(job["device"], bfloat16):
            return sentences.encode(part_of(texts, share), batch_size=job["batch_size"], show_progress_bar=False)

    return {
        "float32": functools.partial(encode, whole, False),
        "bfloat16 autocast": functools.partial(encode, whole, True),
        "bfloat16 weights": functools.partial(encode, half, False),
    }


def part_of(texts: Any, share: float) -> Any:
    """Return the first texts, a share of all, and at least one."""
    return texts[: max(1, round(share * len(texts)))]


def sorted_batches(tokenizer: Any, texts: Any, job: dict[str, Any]) -> Any:
    """Yield batches of the texts, from the shortest to the longest, with their numbers."""
    encoded = tokenizer(texts, truncation=True, max_length=job["max_length"])
    ids, types = encoded["input_ids"], encoded.get("token_type_ids")
    types = types or [[0] * len(row) for row in ids]
    order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    for begin in range(0, len(order), job["batch_size"]):
        chosen = order[begin : begin + job["batch_size"]]
        yield chosen, padded([ids[i] for i in chosen], [types[i] for i in chosen], job["device"])


FORMS = {"training": training_forms, "encoding": encoding_forms, "embedding": embedding_forms}
VECTOR_FORMS = {"training": vector_training_forms, "embedding": vector_embedding_forms}
"""Those of sentence-transformers, for jobs that say what a vector is."""


def plain_order(ids: Any) -> Any:
    """Return the shuffled order that transformers' Trainer takes by default."""
    import numpy

    return numpy.random.default_rng(0).permutation(len(ids))


def grouped_by_length(ids: Any, batch_size: int) -> Any:
    """Return the order of transformers' group_by_length: shuffled, then sorted by length within megabatches."""
    import numpy

    order, size = plain_order(ids), MEGABATCH * batch_size
    lengths = numpy.array([len(row) for row in ids])
    parts = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return numpy.concatenate([part[numpy.argsort(-lengths[part], kind="stable")] for part in parts])


def padded(ids: Any, types: Any, device: Any) -> dict[str, Any]:
    """Return rows padded to the longest of them."""
    import torch

    longest = max(map(len, ids))
    batch = {name: torch.zeros((len(ids), longest), dtype=torch.long) for name in INPUTS}
    for row, (tokens, segments) in enumerate(zip(ids, types, strict=True)):
        batch["input_ids"][row, : len(tokens)] = torch.as_tensor(tokens)
        batch["token_type_ids"][row, : len(tokens)] = torch.as_tensor(segments)
        batch["attention_mask"][row, : len(tokens)] = 1
    return {name: array.to(device) for name, array in batch.items()}


def attention(job: dict[str, Any]) -> Prepared:
    """Prepare scaled-dot-product attention, forward and backward, on arrays like those that ours gets."""
    import torch

    set_up(job["device"], job["threads"])
    batch, length, heads, size = job["shape"]
    options = {"dtype": getattr(torch, job["dtype"]), "device": job["device"]}
    # [B, L, A, D] as projections make them; torch computes on [B, A, L, D].
    arrays = [torch.randn(batch, length, heads, size, **options).requires_grad_() for _ in range(3)]
    visible = visible_keys(job).to(job["device"])

    def work(units: int) -> None:
        for _ in range(units):
            query, key, value = (array.transpose(1, 2) for array in arrays)
            found = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=visible, dropout_p=job["dropout"]
            )
            torch.autograd.grad(found.float().square().sum(), arrays)
        wait(job["device"])

    work(1)
    facts = {"path": "torch", "peak_memory_bytes": peak_memory(), "versions": versions(torch)}
    return work, facts | {"threads": torch.get_num_threads()}


def visible_keys(job: dict[str, Any]) -> Any:
    """Return which keys each query sees, bool [1, 1, 1 or L, L]: none of the padding, and those of its window."""
    import torch

    length = job["shape"][1]
    places = torch.arange(length)
    visible = (places < length - round(length * job["padding"]))[None]
    if job["window"] is not None:
        near = (places[:, None] - places[None]).abs() <= job["window"]
        first = places < job["global_tokens"]
        visible = visible & (near | first[:, None] | first[None])
    return visible[None, None]


KINDS = {"step": step, "data": data, "prepare": prepare, "finetune": finetune, "attention": attention}

if __name__ == "__main__":
    serve(KINDS[sys.argv[1]])
