"""Serve the vectors of one model by bert_jax, onnxruntime and transformers behind the same web application, in turns.

    python scripts/compare_serving.py MODEL TEXTS [--onnx=DIRECTORY] [--peer_python=PYTHON] [--output=FILE.json]

MODEL is a directory that transformers opens too, TEXTS a file with a text per line. DIRECTORY is what `bert-jax convert
--to=onnx` wrote of MODEL, and adds onnxruntime; PYTHON has torch and transformers, and adds these. Each contestant is a
server of its own, and all are up at the same time; only one is asked at a time. In each round, each is asked for
`--seconds` by so many clients at once as each of `--clients` says, with one text per request and the next request as
soon as the answer is there. Every answer is compared with the vector that `bert_jax.load(MODEL).embed` gives.

onnxruntime and transformers compute what is waiting, up to 64 texts, sorted by length into batches of 32 that are
padded to their longest, as sentence-transformers does.
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import pathlib
import queue
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from absl import logging

import bert_jax
from bert_jax.config.serving import EngineOptions, ServeConfig
from bert_jax.tools.serving.engine import Engine, Observed
from bert_jax.tools.serving.questions import Question

AT_ONCE, BATCH = 64, 32
WORKER = pathlib.Path(__file__).with_name("embed_with_transformers.py")
CONTESTANTS = ("bert_jax", "onnxruntime", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("texts", metavar="TEXTS", type=pathlib.Path)
    parser.add_argument("--onnx", default="", help="Directory with model.onnx, which adds onnxruntime.")
    parser.add_argument("--peer_python", default="", help="Python with torch and transformers, which adds these.")
    parser.add_argument("--clients", default="1,8,32,128", help="Numbers of clients at once.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="Length of each turn.")
    parser.add_argument("--output", type=pathlib.Path, help="File for all figures, in JSON.")
    parser.add_argument("--serve", choices=CONTESTANTS, help=argparse.SUPPRESS)  # a server that this script starts
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.set_verbosity(logging.ERROR)  # a line for each answer would cost as much as the answer
    serve(options) if options.serve else compare(options)


# The contestants.


class Embedding:
    """A loaded model whose vectors are computed elsewhere."""

    def __init__(self, model: bert_jax.PretrainedModel, embed: Callable[..., np.ndarray]):
        self._model, self.embed = model, embed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Batching:
    """Answer as an `Engine` does, for one model of vectors, with any function from texts to vectors."""

    def __init__(self, model: bert_jax.PretrainedModel, compute: Callable[[Sequence[str]], np.ndarray]):
        self.models: dict[str, Any] = {"model": Embedding(model, self._embed)}
        self.options: EngineOptions = EngineOptions()
        self.ready: bool = False
        self.draining: bool = False
        self.warmed: tuple[int, int] = (0, 0)
        self._compute = compute
        self._waiting: queue.SimpleQueue[tuple[str, Future[np.ndarray]]] = queue.SimpleQueue()
        self._requests: ThreadPoolExecutor = ThreadPoolExecutor(self.options.threads)

    @property
    def waiting(self) -> int:
        return self._waiting.qsize()

    def start(self) -> None:
        self._compute(["a first text"])
        threading.Thread(target=self._run, daemon=True).start()
        self.ready = True

    def observed(self) -> Observed:
        return Observed()

    async def ask(self, name: str, question: Question, *, deadline: float | None = None) -> Any:
        return await asyncio.wrap_future(self._requests.submit(question.answer, self.models[name]))

    def _embed(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        futures: list[Future[np.ndarray]] = [Future() for _ in texts]
        for text, future in zip(texts, futures, strict=True):
            self._waiting.put((text, future))
        return np.stack([future.result() for future in futures])

    def _run(self) -> None:
        while True:
            taken = [self._waiting.get()]
            while len(taken) < AT_ONCE and not self._waiting.empty():
                taken.append(self._waiting.get())
            vectors = self._compute([text for text, _ in taken])
            for (_, future), vector in zip(taken, vectors, strict=True):
                future.set_result(vector)


def by_onnxruntime(model: bert_jax.PretrainedModel, directory: str) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function from texts to vectors by the file model.onnx of a directory."""
    import onnxruntime

    session = onnxruntime.InferenceSession(pathlib.Path(directory) / "model.onnx", providers=["CPUExecutionProvider"])
    names = [found.name for found in session.get_inputs()]
    tokenizer, longest = model.need_tokenizer(), model.embedding.max_length or model.config.longest_sequence

    def compute(texts: Sequence[str]) -> np.ndarray:
        rows = [(ids, [0] * len(ids)) for ids in (tokenizer.encode(text)[: longest - 2] for text in texts)]
        rows = [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids, _ in rows]
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
        found = np.zeros((len(rows), model.config.hidden_size), np.float32)
        for begin in range(0, len(rows), BATCH):
            numbers = order[begin : begin + BATCH]
            length = len(rows[numbers[0]])
            ids = np.full((len(numbers), length), tokenizer.pad_id, np.int64)
            mask = np.zeros_like(ids)
            for row, number in enumerate(numbers):
                ids[row, : len(rows[number])] = rows[number]
                mask[row, : len(rows[number])] = 1
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            found[numbers] = session.run(["sentence_embedding"], {name: given[name] for name in names})[0]
        return found

    return compute


def by_transformers(model: str, python: str, size: int) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function from texts to vectors by a process of another environment."""
    worker = subprocess.Popen([python, WORKER, model, str(BATCH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin and worker.stdout

    def compute(texts: Sequence[str]) -> np.ndarray:
        worker.stdin.write(json.dumps(list(texts)).encode() + b"\n")
        worker.stdin.flush()
        wanted = len(texts) * size * 4
        found = worker.stdout.read(wanted)
        if len(found) < wanted:
            sys.exit("the process with transformers has ended; its message is above")
        return np.frombuffer(found, np.float32).reshape(len(texts), size)

    return compute


def serve(options: argparse.Namespace) -> None:
    """Run one contestant as a server on a port of this machine, until the process is ended."""
    import uvicorn

    from bert_jax.tools.serving.app import make_app

    model = bert_jax.load(options.model)
    engine: Any
    if options.serve == "bert_jax":
        engine = Engine({"model": model}, EngineOptions(compile_first="all"))
    elif options.serve == "onnxruntime":
        engine = Batching(model, by_onnxruntime(model, options.onnx))
    else:
        engine = Batching(model, by_transformers(options.model, options.peer_python, model.config.hidden_size))
    engine.start()
    config = ServeConfig(port=options.port, rate=0, playground=False, access_log=False)
    uvicorn.run(make_app(engine, config), host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


# The clients.


@dataclasses.dataclass
class Turn:
    """What clients have seen in one turn."""

    latencies: list[float] = dataclasses.field(default_factory=list)
    """Seconds of each request."""
    seconds: float = 0.0
    largest: float = 0.0
    """Largest difference of a value from the library's."""
    equal: int = 0
    """Answers that have the library's bits."""


async def turn(port: int, clients: int, seconds: float, texts: Iterator[str], expected: dict[str, np.ndarray]) -> Turn:
    """Ask the server at `port` for so many seconds, and wait for the last answers."""
    found, began = Turn(), time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() - began < seconds:
            text, sent = next(texts), time.perf_counter()
            body = json.dumps({"inputs": text}).encode()
            head = f"POST /embed HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
            content = await reader.readexactly(int(length[1]) if length else 0)
            found.latencies.append(time.perf_counter() - sent)
            if not answer.startswith(b"HTTP/1.1 200"):
                sys.exit(f"the server at {port} answered {answer.splitlines()[0].decode()}: {content.decode():.200}")
            vector = np.array(json.loads(content), np.float32)[0]
            found.largest = max(found.largest, float(np.abs(vector - expected[text]).max()))
            found.equal += bool((vector == expected[text]).all())
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    found.seconds = time.perf_counter() - began
    return found


def memory(process: subprocess.Popen[Any]) -> int:
    """Return the most bytes that the process, and those that it has started, have held."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    files = [pathlib.Path(f"/proc/{pid}/status") for pid in (process.pid, *children)]
    peaks = (re.search(r"VmHWM:\s+(\d+) kB", file.read_text()) for file in files)
    return sum(1024 * int(peak[1]) for peak in peaks if peak)


def compare(options: argparse.Namespace) -> None:
    """Start every contestant, ask them in turns, and print the tables."""
    lines = list(dict.fromkeys(options.texts.read_text(encoding="utf-8").split("\n")))
    lines = [line for line in lines if line.strip()]
    model = bert_jax.load(options.model)
    expected = {line: model.embed([line])[0] for line in lines}
    lengths = sorted(len(model.need_tokenizer().encode(line)) + 2 for line in lines)
    print(f"{len(lines):,} texts of {lengths[0]} to {lengths[-1]} tokens, median {lengths[len(lengths) // 2]}")
    del model
    names = ["bert_jax", *(["onnxruntime"] if options.onnx else []), *(["transformers"] if options.peer_python else [])]
    servers = {}
    try:
        for name in names:
            port = free_port()
            words = [f"--serve={name}", f"--port={port}", f"--onnx={options.onnx}"]
            command = [sys.executable, __file__, options.model, options.texts, *words]
            servers[name] = (port, subprocess.Popen([*command, f"--peer_python={options.peer_python}"]))
            wait_for(name, *servers[name])
        turns = asyncio.run(rounds(options, lines, expected, {name: port for name, (port, _) in servers.items()}))
        peaks = {name: memory(process) for name, (_, process) in servers.items()}
    finally:
        for _, process in servers.values():
            process.terminate()
    print(table(turns, names))
    for name in names:
        largest = max(one.largest for key, each in turns.items() if key[0] == name for one in each)
        equal, asked = (
            sum(count(one) for key, each in turns.items() if key[0] == name for one in each)
            for count in (lambda one: one.equal, lambda one: len(one.latencies))
        )
        print(
            f"{name}: {equal:,} of {asked:,} answers have the library's bits, the largest difference is {largest:.1e}; "
            f"{peaks[name] / 2**20:,.0f} MiB at most"
        )
    if options.output:
        figures = {
            f"{name}/{clients}": [dataclasses.asdict(one) for one in each] for (name, clients), each in turns.items()
        }
        options.output.write_text(json.dumps({"turns": figures, "peak_memory_bytes": peaks}, indent=1) + "\n")


async def rounds(
    options: argparse.Namespace, lines: list[str], expected: dict[str, np.ndarray], ports: dict[str, int]
) -> dict[tuple[str, int], list[Turn]]:
    """Return the turns of each contestant and number of clients; a first turn of each is not counted."""
    counts = [int(word) for word in options.clients.split(",")]
    found: dict[tuple[str, int], list[Turn]] = {(name, clients): [] for clients in counts for name in ports}
    shuffled = random.Random(0).sample(lines, len(lines))
    for port in ports.values():
        await turn(port, 8, options.seconds, itertools.cycle(shuffled), expected)
    for number in range(options.rounds):
        for clients in counts:
            texts = random.Random(f"{number} {clients}").sample(lines, len(lines))  # the same for all contestants
            for name, port in ports.items():
                found[name, clients].append(
                    await turn(port, clients, options.seconds, itertools.cycle(texts), expected)
                )
        print(f"round {number + 1} of {options.rounds} is over", flush=True)
    return found


def table(turns: dict[tuple[str, int], list[Turn]], names: list[str]) -> str:
    """Return the figures as a Markdown table: medians of the rounds, and ratios of turns of one round."""
    others = [name for name in names if name != "bert_jax"]
    heads = [
        "clients",
        *(f"{name}: texts/s, p50 / p95 / p99 ms" for name in names),
        *(f"ratio to {name}" for name in others),
    ]
    rows = ["| " + " | ".join(heads) + " |", "|" + "---:|" * len(heads)]
    for clients in dict.fromkeys(clients for _, clients in turns):
        speeds = {name: [len(one.latencies) / one.seconds for one in turns[name, clients]] for name in names}
        cells = [str(clients)]
        for name in names:
            times = sorted(itertools.chain(*(one.latencies for one in turns[name, clients])))
            shares = " / ".join(
                f"{1e3 * times[min(len(times) - 1, int(share * len(times)))]:.0f}" for share in (0.5, 0.95, 0.99)
            )
            cells.append(f"{statistics.median(speeds[name]):.1f}, {shares}")
        for name in others:
            ratios = [ours / theirs for ours, theirs in zip(speeds["bert_jax"], speeds[name], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(name: str, port: int, process: subprocess.Popen[Any]) -> None:
    """Return when the server takes connections, which it does once the engine has started."""
    while process.poll() is None:
        with socket.socket() as found:
            if found.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    sys.exit(f"the server of {name} has ended; its message is above")


if __name__ == "__main__":
    main()
