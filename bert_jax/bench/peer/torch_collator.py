"""DataCollatorForLanguageModeling of transformers, on sequences that are tokenized, paired and cut already.

It masks and pads; our side also reads, pairs and cuts. bert_jax is not imported here.
"""

# pyright: reportMissingImports=false

from collections.abc import Callable
from typing import Any

import numpy
import torch
import transformers
from serving import serve


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that collates so many batches, and facts."""
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
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
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


if __name__ == "__main__":
    serve(prepare)
