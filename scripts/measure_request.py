"""Measure where the time of a request with one text goes: the client, HTTP, the engine, the tokenizer and the program.

    python scripts/measure_request.py MODEL [--words=8,20,36,100,200] [--times=60] [--onnx=DIRECTORY]

MODEL is one of single vectors. Texts of so many words are asked for one after the other, by a client in this process.
Each part is measured alone, in turns, and medians are printed: what remains of a request after the engine is HTTP and
JSON, and of the engine after tokenizer and program, threads and pooling. With DIRECTORY, which `bert-jax convert
--to=onnx` wrote of MODEL, also what onnxruntime takes for the same ids in place of the program.
"""

import argparse
import asyncio
import http.client
import json
import pathlib
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

import bert_jax
from bert_jax.pretrained.outputs import row_width
from bert_jax.tools.serving.notebook import Served
from bert_jax.tools.serving.questions import Embed

WORD = "water "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--words", default="8,20,36,100,200")
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--onnx", default="", help="Directory with model.onnx, which adds onnxruntime.")
    options = parser.parse_args()
    model = bert_jax.load(options.model)
    with bert_jax.serve({"model": model}) as served:
        engine = served._server.engine
        while engine.warmed[0] < engine.warmed[1]:
            time.sleep(0.1)
        heads = (
            "tokens",
            "width",
            "request",
            "engine",
            "tokenizer",
            "program",
            *(["onnxruntime"] * bool(options.onnx)),
        )
        print("| " + " | ".join(heads) + " |\n|" + "---:|" * len(heads))
        for count in map(int, options.words.split(",")):
            parts, tokens, width = of_text(model, served, WORD * count, options.onnx)
            taken = medians(parts, options.times)
            print(f"| {tokens} | {width} | " + " | ".join(f"{1e3 * each:.2f}" for each in taken) + " |", flush=True)


def of_text(
    model: bert_jax.PretrainedModel, served: Served, text: str, onnx: str
) -> tuple[list[Callable[[], object]], int, int]:
    """Return what is measured for a text, its tokens, and the width of its row."""
    tokenizer, longest = model.need_tokenizer(), model.config.longest_sequence
    ids = model.tokenizer([text], model.embedding.max_length or longest)["input_ids"] if model.tokenizer else None
    assert ids is not None
    width = row_width(ids.shape[1], longest)
    row = np.zeros((1, width), np.int32)
    row[:, : ids.shape[1]] = ids
    batch = {"input_ids": row, "token_type_ids": np.zeros_like(row), "attention_mask": (row > 0).astype(np.int32)}
    host = served.url.removeprefix("http://")
    connection, body = http.client.HTTPConnection(host), json.dumps({"inputs": text})

    def request() -> bytes:
        connection.request("POST", "/embed", body, {"Content-Type": "application/json"})
        return connection.getresponse().read()

    loop, engine = asyncio.new_event_loop(), served._server.engine
    parts: list[Callable[[], object]] = [
        request,
        lambda: loop.run_until_complete(engine.ask("model", Embed([text], normalize=True))),
        lambda: tokenizer.encode(text),
        lambda: jax.block_until_ready(model.runner.states(batch, collect="last", decoded=False)),
    ]
    if onnx:
        import onnxruntime

        session = onnxruntime.InferenceSession(pathlib.Path(onnx) / "model.onnx", providers=["CPUExecutionProvider"])
        every = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        given = {found.name: every[found.name].astype(np.int64) for found in session.get_inputs()}
        parts.append(lambda: session.run(["sentence_embedding"], given))
    return parts, ids.shape[1], width


def medians(parts: list[Callable[[], object]], times: int) -> list[float]:
    """Return the median seconds of each part, measured in turns."""
    taken: list[list[float]] = [[] for _ in parts]
    for _ in range(times):
        for part, seconds in zip(parts, taken, strict=True):
            began = time.perf_counter()
            part()
            seconds.append(time.perf_counter() - began)
    return [statistics.median(each[len(each) // 4 :]) for each in taken]


if __name__ == "__main__":
    main()
