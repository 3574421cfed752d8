"""The fast tokenizer of transformers on lines of text."""

# pyright: reportMissingImports=false

import os
from collections.abc import Callable
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"  # its threads, as many as ours has

import transformers
from serving import peak_memory, serve


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that tokenizes the text so many times, and facts."""
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.BertTokenizerFast(vocab_file=job["vocab"], do_lower_case=job["lowercase"])
    with open(job["text"], encoding="utf-8") as file:
        lines = file.read().splitlines()

    def work(units: int):
        for _ in range(units):
            for begin in range(0, len(lines), job["lines"]):
                tokenizer(lines[begin : begin + job["lines"]], add_special_tokens=False, return_attention_mask=False)

    return work, {"peak_memory_bytes": peak_memory(), "versions": {"transformers": transformers.__version__}}


if __name__ == "__main__":
    serve(prepare)
