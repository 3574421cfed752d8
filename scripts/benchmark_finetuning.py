"""Sequences a second of fine-tuning a bert-mini on SST-2: ours beside torch with transformers, in turns, in one run.

    python scripts/benchmark_finetuning.py SST-2 VOCAB [--peer=PYTHON] [--rounds=6] [--steps=40]

SST-2 is the directory with train.tsv, VOCAB a vocab.txt. Weights are random, float32, dropout 0.1, batch 32, AdamW,
clipping; both sides get the same token ids. Ours: batches, step and learning rate as `bert-jax finetune` makes them.
The peer (a Python that has torch and transformers): batches padded to their longest row, in plain shuffled order, as
its Trainer does by default, and sorted by length within windows, as ours are. Compilation and the first steps are not
timed; what runs beside it is.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

BATCH, RATE, WINDOW, MINI = 32, 3e-4, 4, dict(hidden_size=256, num_layers=4, num_heads=4)


def ours(directory: str, vocab: str, arrays: str):
    """Tokenizes, writes what the peer reads to `arrays`, and returns a function that takes `steps` steps."""
    import jax

    from bert_jax.config import HeadConfig, MeshConfig, ModelConfig
    from bert_jax.config.finetuning import FinetuneConfig, TaskDataConfig, TaskOptions
    from bert_jax.data.sequences.batching import TrainingBatches
    from bert_jax.devices import sharding
    from bert_jax.finetuning.programs import make_programs
    from bert_jax.tasks import glue
    from bert_jax.tokenization.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(vocab)
    examples = glue.load("sst2", TaskDataConfig(dir=directory), "train")
    features = glue.features(examples, tokenizer, TaskOptions())
    batches = TrainingBatches(features, BATCH, window=WINDOW)
    lengths = [len(ids) for ids in features.input_ids]
    np.savez(
        arrays,
        ids=np.concatenate(features.input_ids),
        lengths=lengths,
        labels=features.labels,
        vocab_size=tokenizer.vocab_size,
        sorted=np.concatenate([batches.indices(step) for step in range(batches.steps_per_epoch)]),
    )
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    head = HeadConfig(labels=examples.labels)
    programs = make_programs(FinetuneConfig(), ModelConfig(vocab_size=tokenizer.vocab_size, **MINI), head, mesh)
    state, done = programs.fresh_state(np.uint32(0)), 0

    def run(steps: int) -> float:
        nonlocal state, done
        began = time.perf_counter()
        for _ in range(steps):
            batch = sharding.to_global(mesh, batches.batch(done % batches.steps_per_epoch), BATCH)
            state, values = programs.train_step(state, batch, np.float32(RATE), np.uint32(0))
            done += 1
        jax.block_until_ready(values)
        return time.perf_counter() - began

    seen = set()
    for done in range(200):  # every rung once
        shape = batches.batch(done)["input_ids"].shape
        if shape not in seen:
            seen.add(shape)
            run(1)
    print(f"ours: {len(seen)} shapes, {', '.join(str(length) for _, length in sorted(seen))} tokens", flush=True)
    done = 0
    return run


def peer(arrays: str) -> None:
    """Reads lines {"steps": n, "order": "plain" | "sorted"} and answers each with the seconds that it took."""
    import torch
    import transformers

    with np.load(arrays) as stored:
        sequences = np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1])
        labels, vocab_size, by_length = stored["labels"], int(stored["vocab_size"]), stored["sorted"]
    orders = {"plain": np.random.default_rng(0).permutation(len(sequences)), "sorted": by_length}
    config = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=MINI["hidden_size"],
        num_attention_heads=MINI["num_heads"],
        num_hidden_layers=MINI["num_layers"],
        intermediate_size=4 * MINI["hidden_size"],
    )
    model = transformers.BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-6, weight_decay=0.01)
    position = 0

    def step(chosen: np.ndarray) -> None:
        longest = max(len(sequences[index]) for index in chosen)
        ids = torch.zeros((len(chosen), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, index in enumerate(chosen):
            ids[row, : len(sequences[index])] = torch.from_numpy(sequences[index].astype(np.int64))
            mask[row, : len(sequences[index])] = 1
        loss = model(input_ids=ids, attention_mask=mask, labels=torch.from_numpy(labels[chosen].astype(np.int64))).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads",
        flush=True,
    )
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        for number in range(position, position + request["steps"]):
            step(orders[request["order"]][number * BATCH : (number + 1) * BATCH])
        print(json.dumps(time.perf_counter() - began), flush=True)
        position += (
            request["steps"] if request["order"] == "sorted" else 0
        )  # both orders see the same part of the epoch


def main() -> None:
    options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
    if "serve" in options:
        return peer(options["serve"])
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if len(words) != 2:
        sys.exit(__doc__)
    rounds, steps = int(options.get("rounds", 6)), int(options.get("steps", 40))
    with tempfile.TemporaryDirectory() as place:
        arrays = str(pathlib.Path(place) / "arrays.npz")
        run = ours(*words, arrays)
        rates: dict[str, list[float]] = {"ours": []}
        other = None
        if "peer" in options:
            other = subprocess.Popen(
                [options["peer"], __file__, f"--serve={arrays}"],
                stdin=subprocess.PIPE,
                text=True,
                stdout=subprocess.PIPE,
            )
            print("peer:", other.stdout.readline().strip(), flush=True)
            rates |= {"plain": [], "sorted": []}

        def timed(side: str, count: int) -> float:
            if side == "ours":
                return run(count)
            other.stdin.write(json.dumps({"steps": count, "order": side}) + "\n")
            other.stdin.flush()
            return json.loads(other.stdout.readline())

        for side in rates:
            timed(side, 5)
        for number in range(rounds):
            for side in rates:
                rates[side].append(steps * BATCH / timed(side, steps))
            shown = ", ".join(f"{side} {values[-1]:.0f}" for side, values in rates.items())
            print(f"round {number + 1}: {shown} sequences/s", flush=True)
        if other is not None:
            other.stdin.close()
            other.wait()
    for side, values in rates.items():
        name = "ours" if side == "ours" else f"transformers, {side} order"
        ratio = statistics.median(a / b for a, b in zip(rates["ours"], values, strict=True))
        print(
            f"{name}: median {statistics.median(values):.0f} sequences/s, {min(values):.0f} to {max(values):.0f}; "
            f"ours is {ratio:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
