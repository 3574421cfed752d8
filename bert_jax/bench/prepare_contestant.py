"""Our contestants in `bert-jax bench prepare`: the whole command with one worker, and its tokenizer alone."""

import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from bert_jax.bench.peer.serving import peak_memory, serve
from bert_jax.config import PrepareConfig
from bert_jax.config.json_form import from_dict
from bert_jax.data.preparation.prepare import run_prepare
from bert_jax.errors import UserError
from bert_jax.tokenization.tokenizer import load_tokenizer


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that prepares, or tokenizes, the text so many times, and facts."""
    config = from_dict(PrepareConfig, job["config"])
    tokenizer = load_tokenizer(config.vocab, config.lowercase)
    lines = pathlib.Path(config.input).read_text(encoding="utf-8").splitlines()

    def tokenize(units: int) -> None:
        for _ in range(units):
            for begin in range(0, len(lines), job["lines"]):
                tokenizer.encode_batch(lines[begin : begin + job["lines"]])

    def whole(units: int) -> None:
        for _ in range(units):
            place = tempfile.mkdtemp(dir=job["directory"])
            run_prepare(from_dict(PrepareConfig, {**job["config"], "output": f"{place}/store"}))
            shutil.rmtree(place)

    return (whole if job["whole"] else tokenize), {"peak_memory_bytes": peak_memory()}


if __name__ == "__main__":
    serve(prepare, UserError)
