"""Fine-tune one model on a task, here and with transformers' Trainer, and compare the scores and the time.

    python scripts/compare_finetuning.py OUTPUT --peer_python=PYTHON [--examples=N] [--seeds=N] TASK [OPTIONS]

TASK and OPTIONS are those of `bert-jax finetune`, without --workdir. From each seed, both sides start from the same
weights and train on the same batches of the same token ids in the same order, at the same rates; dropout falls on other
elements, and the weights of a new head are others. With --dropout=0 and a model that has the head of the task already,
both do the same. Both are scored on dev by the same code. PYTHON has torch,
transformers and accelerate. With --examples, both train on so many examples, chosen at random (of SQuAD: on the first
articles that have so many questions). OUTPUT/TASK.json has all figures, and a run that is there is not repeated.

The time is that of the process, from its start to its end, compilation and evaluation included; the turns alternate.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

from bert_jax.config.finetuning import FinetuneConfig, check_finetune, task_defaults
from bert_jax.console import parse
from bert_jax.data.sequences import TrainingBatches
from bert_jax.finetuning.plan import learning_rates, plan
from bert_jax.formats.huggingface_export import write_huggingface
from bert_jax.formats.opening import open_stored
from bert_jax.tasks.task_data import TaskData, read_task
from bert_jax.tools.bench.finetuning import write_sequences

TRAINER = pathlib.Path(__file__).with_name("finetune_with_trainer.py")
SIDES = ("bert_jax", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", metavar="OUTPUT", type=pathlib.Path)
    parser.add_argument("--peer_python", required=True, help="Python with torch, transformers and accelerate.")
    parser.add_argument("--examples", type=int, help="Number of training examples; all by default.")
    parser.add_argument("--seeds", type=int, default=3, help="Number of runs of each side.")
    parser.add_argument("task", metavar="TASK")
    given, words = parser.parse_known_args()
    place = given.output / given.task
    place.mkdir(parents=True, exist_ok=True)
    config = parse(task_defaults(given.task), [*words, f"--workdir={place}/unused"], "compare_finetuning.py")
    if given.examples:
        config, words = cut(config, words, given.examples, place)
    config = dataclasses.replace(check_finetune(config), bucket_window=1)  # the order of shared rows, and of Trainer
    words = [*words, "--bucket_window=1"]
    stored = open_stored(config.init_from)
    data = read_task(config, stored.model, stored.need_tokenizer())
    (place / "model").mkdir(exist_ok=True)
    write_huggingface(stored, place / "model", "comparison")
    rows = []
    for seed in range(given.seeds):
        order = SIDES if seed % 2 == 0 else SIDES[::-1]
        runs = {
            "bert_jax": lambda seed=seed: ours(config, words, place / f"ours{seed}", seed),
            "transformers": lambda seed=seed: theirs(config, data, given.peer_python, place / f"theirs{seed}", seed),
        }
        rows += [{"side": side, "seed": seed, **once(place / f"{side}{seed}.json", runs[side])} for side in order]
        print(table(given.task, config, rows), flush=True)
    figures = {"task": given.task, "words": words, "examples": len(data.train.examples), "runs": rows}
    (given.output / f"{given.task}.json").write_text(json.dumps(figures, indent=1) + "\n")


def cut(config: FinetuneConfig, words: list[str], count: int, place: pathlib.Path) -> tuple[FinetuneConfig, list[str]]:
    """Write `count` of the training examples into `place`; return the options that read those, and their words."""
    directory = pathlib.Path(config.data.dir)
    source = pathlib.Path(config.data.train) if config.data.train else directory / "train.tsv"
    target = place / source.name
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".json":
        content = json.loads(text)
        kept, questions = [], 0
        for article in content["data"]:
            if questions >= count:
                break
            kept.append(article)
            questions += sum(len(paragraph["qas"]) for paragraph in article["paragraphs"])
        target.write_text(json.dumps({**content, "data": kept}), encoding="utf-8")
    else:
        first, *lines = text.removesuffix("\n").split("\n")
        chosen = np.sort(np.random.default_rng(0).permutation(len(lines))[:count])
        target.write_text("\n".join([first, *(lines[index] for index in chosen)]) + "\n", encoding="utf-8")
    dev = config.data.dev or str(directory / "dev.tsv")
    added = [f"--data.train={target}", f"--data.dev={dev}"]
    words = [word for word in words if not word.startswith(("--data.dir", "--data.train", "--data.dev"))] + added
    data = dataclasses.replace(config.data, dir="", train=str(target), dev=dev)
    return dataclasses.replace(config, data=data), words


def once(file: pathlib.Path, run) -> dict:
    """Return what `run` returns, which `file` keeps."""
    if not file.exists():
        file.write_text(json.dumps(run()) + "\n")
    return json.loads(file.read_text())


def ours(config: FinetuneConfig, words: list[str], workdir: pathlib.Path, seed: int) -> dict:
    """Fine-tune with the command; return the scores on dev and the seconds."""
    command = [sys.executable, "-m", "bert_jax", "finetune", config.task, *words]
    began = time.perf_counter()
    subprocess.run([*command, f"--seed={seed}", f"--workdir={workdir}"], check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    metrics = json.loads((workdir / "results.json").read_text())["runs"][0]["metrics"]
    return {"seconds": seconds, "metrics": metrics}


def theirs(config: FinetuneConfig, data: TaskData, python: str, place: pathlib.Path, seed: int) -> dict:
    """Fine-tune with Trainer in a process of `python`; return the scores on dev and the seconds."""
    place.mkdir(exist_ok=True)
    batches = TrainingBatches(data.train.features, config.batch_size, window=1, seed=seed)
    steps = config.epochs * batches.steps_per_epoch
    write_sequences(place / "train.npz", data.train.features, data.head.kind)
    write_sequences(place / "dev.npz", data.evaluations["dev"].features, data.head.kind)
    job = {
        "model": str(place.parent / "model"),
        "kind": data.head.kind,
        "outputs": data.head.outputs,
        "order": [batches.indices(step).tolist() for step in range(steps)],
        "batch_size": config.eval_batch_size,
        "rates": learning_rates(plan(config)[0], config.schedule, config.warmup_share, steps).tolist(),
        "epsilon": config.optimizer.epsilon,
        "weight_decay": config.optimizer.weight_decay,
        "seed": seed,
        "bfloat16": config.compute.dtype == "bfloat16",
    }
    (place / "job.json").write_text(json.dumps(job))
    began = time.perf_counter()
    subprocess.run([python, TRAINER, place], check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    split = data.evaluations["dev"]
    with np.load(place / "logits.npz", allow_pickle=False) as found:
        logits = [found["logits"][row][:length] if data.head.kind == "span" else found["logits"][row]
                  for row, length in enumerate(map(len, split.features.input_ids))]  # fmt: skip
    return {"seconds": seconds, "metrics": data.family.score(split.examples, split.features, logits)}


def table(task: str, config: FinetuneConfig, rows: list[dict]) -> str:
    """Return the mean and the standard deviation of each score, and the median time, of both sides."""
    lines = [f"{task}, {config.epochs} epochs, batch {config.batch_size}, rate {config.learning_rate:g}"]
    for side in SIDES:
        of_side = [row for row in rows if row["side"] == side]
        cells = []
        for name in of_side[0]["metrics"] if of_side else ():
            values = [100 * row["metrics"][name] for row in of_side]
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{name} {statistics.mean(values):.1f}{spread}")
        seconds = statistics.median(row["seconds"] for row in of_side) if of_side else float("nan")
        lines.append(f"{side}: {', '.join(cells)}; {seconds:.0f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
