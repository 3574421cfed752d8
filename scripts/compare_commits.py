"""Trains the same small models at two commits, and compares every logged number and every saved array bit for bit.

    python scripts/compare_commits.py BEFORE [AFTER]
    python scripts/compare_commits.py COMMIT --write=RESULTS.json
    python scripts/compare_commits.py BEFORE --only="two phases"    # to find the commit with which a result changed

BEFORE and AFTER are commits, directories with a checkout, or results that the second form wrote on the same machine;
without AFTER it is this checkout as it is. Both are run at the same time. Pre-training runs for 50 steps with both
objectives, with one, with micro-batches, over two phases, on a mesh of virtual devices, and with dropout, which the
others leave out; for 30 steps by shipped configurations of the family, in small; fine-tuning for 30 steps of
classification, of tagging with a CRF, and of features. Only commands and files that never change their names are used,
so the two may differ in every module. Exits with 1 if anything differs.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import documents  # noqa: E402

CONFIG = """
from bert_jax.config import Config, DataConfig, EvaluationConfig, ModelConfig, OptimizerConfig, PhaseConfig

def get_config():
    sizes = dict(hidden_size=32, num_heads=2, num_layers=2, max_position_embeddings=64,
                 hidden_dropout=0.0, attention_dropout=0.0)
    phase = dict(sequence_length=32, batch_size=16, learning_rate=1e-3)
    return Config(model=ModelConfig(**sizes), phases={phases}, optimizer=OptimizerConfig(name={optimizer!r}),
                  data=DataConfig(sentence_pairs={pairs!r}, held_out=0.1, loader="plain"),
                  evaluation=EvaluationConfig(every_steps=25, sequences=32, batch_size=16), log_every_steps=1)
"""
ONE_PHASE = "(PhaseConfig(steps=50, **phase),)"
TWO_PHASES = """(PhaseConfig(steps=30, **phase),
    PhaseConfig(steps=20, sequence_length=64, batch_size=8, micro_batches=2, learning_rate=5e-4, moments="reset"))"""
PRETRAINING = {  # name: phases, optimizer, sentence pairs, further options
    "both objectives": (ONE_PHASE, "adamw", "nsp", []),
    "masked words only": (ONE_PHASE, "adamw_bert", "none", ["--model.norm_position=pre", "--compute.layers=loop"]),
    "micro-batches, LAMB": (ONE_PHASE, "lamb", "sop", ["--phases.0.micro_batches=4", "--compute.remat=dots"]),
    "two phases": (TWO_PHASES, "adamw", "nsp", []),
    "mesh 2x2x2": (ONE_PHASE, "adamw", "nsp", ["--mesh.data=2", "--mesh.fsdp=2", "--mesh.tensor=2"]),
    "dropout": (ONE_PHASE, "adamw", "nsp", ["--model.hidden_dropout=0.1", "--model.attention_dropout=0.1"]),
}
FAMILY = {  # name: shipped configuration, further options; @ is the directory of all runs
    "ELECTRA": ("electra_mini", ["--objective.generator.hidden_size=32"]),
    "XLNet": ("xlnet_mini", []),
    "DeBERTa v3": ("deberta_v3_mini", ["--objective.generator.hidden_size=32"]),
    "distillation": ("distilbert_mini", ["--objective.distillation.teacher=@/pretraining0", "--init_from_layers="]),
    "ELMo": ("elmo_mini", []),
}
SMALL = ["--model.hidden_size=32", "--model.num_layers=2", "--model.max_position_embeddings=64", "--sequence_length=32",
         "--batch_size=16", "--steps=30", "--learning_rate=1e-3", "--warmup_steps=0", "--log_every_steps=1",
         "--data.held_out=0.1", "--data.loader=plain", "--evaluation.every_steps=15", "--evaluation.sequences=32",
         "--evaluation.batch_size=16"]  # fmt: skip
FINETUNING = {  # name: task, further options; 240 examples are 30 steps per epoch of 8
    "classification": ("text", ["--layer_decay=0.9", "--reinitialize_layers=1"]),
    "tagging, CRF": ("ner", ["--crf=True"]),
    "tagging, features": ("ner", ["--features=weighted_all", "--lstm_size=16", "--learning_rate=1e-3"]),
}
TIMING = {"steps_per_second", "sequences_per_second", "tokens_per_second", "token_share", "seconds_left", "mfu"}


@contextlib.contextmanager
def checkout(name: str):
    """Yield the directory of a commit, or `name` itself where it is a directory."""
    if pathlib.Path(name).is_dir():
        yield pathlib.Path(name).resolve()
        return
    with tempfile.TemporaryDirectory() as place:
        tree = pathlib.Path(place) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "--quiet", tree, name], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def run_commands(tree: pathlib.Path, place: pathlib.Path, commands: list[tuple], devices: int) -> dict[str, dict]:
    """Run commands with the package in `tree`, in the directory `place`; return the arrays of each by its name."""
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "GLIBC_TUNABLES": "glibc.malloc.arena_max=1",  # a command would replace the process by one that has this
        "NPROC": str(os.cpu_count()),  # and this
    }
    listed, log, found = place / f"commands{devices}.json", place / f"log{devices}.txt", {}
    listed.write_text(
        json.dumps([(name, [*map(str, words)], workdir and str(workdir)) for name, words, workdir in commands])
    )
    words = [sys.executable, ROOT / "scripts" / "run_commands.py", listed]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            words, env=environment, cwd=place, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        for done in map(json.loads, process.stdout):
            found[done["name"]] = done["arrays"]
            print(f"{tree}: {done['name']}, {done['seconds']:.0f} s", file=sys.stderr)
    if process.returncode:
        sys.exit(f"{tree}: {commands[len(found)][0]} failed:\n{log.read_text()[-3000:]}")
    return found


def preparation(place: pathlib.Path) -> list[tuple]:
    """Write corpus and examples into `place`; return the commands that make a vocabulary and a token store of it."""
    text = documents.write(place / "corpus.txt", 300)
    random = np.random.default_rng(3)
    topics = list(documents.TOPICS)
    for split, count in (("train", 240), ("dev", 40)):
        rows, sentences = [], []
        for _ in range(count):
            topic = topics[random.integers(len(topics))]
            nouns, verbs = documents.TOPICS[topic]
            words = [nouns[random.integers(5)], verbs[random.integers(5)], nouns[random.integers(5)]]
            rows.append(f"{' '.join(words)}\t{topic}")
            sentences.append("".join(f"{word} {'B-NOUN' if word in nouns else 'O'}\n" for word in words))
        (place / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
        (place / f"{split}.conll").write_text("\n".join(sentences))
    files = [f"--vocab={place}/vocab.txt", f"--output={place}/store"]
    return [
        ("train-vocab", ["train-vocab", f"--input={text}", f"--output={place}/vocab.txt", "--size=200"], None),
        ("prepare", ["prepare", f"--input={text}", "--sentences=lines", "--workers=1", *files], None),
    ]


def sizes(config: str) -> list[str]:
    """Return the options that make a configuration of the family small."""
    return SMALL if config == "elmo_mini" else [*SMALL, "--model.num_heads=2", "--model.intermediate_size=48"]


def trainings(place: pathlib.Path, further: list[str]) -> list[tuple]:
    """Write the configurations into `place`; return the commands that train, each with its work directory."""
    commands = []
    for number, (name, (phases, optimizer, pairs, options)) in enumerate(PRETRAINING.items()):
        config, workdir = place / f"config{number}.py", place / f"pretraining{number}"
        config.write_text(CONFIG.format(phases=phases, optimizer=optimizer, pairs=pairs))
        words = ["pretrain", config, f"--data.path={place}/store", f"--workdir={workdir}", *options, *further]
        commands.append((f"pretrain: {name}", words, workdir))
    for number, (name, (config, options)) in enumerate(FAMILY.items()):
        workdir, options = place / f"family{number}", [word.replace("@", str(place)) for word in options]
        words = ["pretrain", config, f"--data.path={place}/store", f"--workdir={workdir}"]
        commands.append((f"pretrain: {name}", [*words, *sizes(config), *options, *further], workdir))
    for number, (name, (task, options)) in enumerate(FINETUNING.items()):
        workdir, suffix = place / f"finetuning{number}", "tsv" if task == "text" else "conll"
        words = ["finetune", task, f"--init_from={place}/pretraining0", f"--workdir={workdir}",
                 f"--data.train={place}/train.{suffix}", f"--data.dev={place}/dev.{suffix}",
                 "--epochs=1", "--batch_size=8", "--log_every_steps=1", "--eval_batch_size=8",
                 "--head_dropout=0", "--options.max_length=32", *options, *further]  # fmt: skip
        commands.append((f"finetune: {name}", words, workdir))
    return commands


def run_all(tree: pathlib.Path, place: pathlib.Path, only: str, further: list[str]) -> dict[str, dict]:
    """Return, by the name of each run, its rows of metrics, its arrays as loaded, and those of its checkpoints."""
    everything = trainings(place, further)
    chosen = [command for command in everything if re.search(only, command[0])]
    starts = everything[:1] if any(re.search("finetune|distillation", name) for name, _, _ in chosen) else []
    commands = starts + [command for command in chosen if command not in starts]
    meshes = [command for command in commands if "mesh" in command[0]]
    alone = [command for command in commands if command not in meshes]
    arrays = run_commands(tree, place, preparation(place) + alone, devices=1)
    arrays |= run_commands(tree, place, meshes, devices=8) if meshes else {}
    return {name: {"parameters": arrays[name], **written(workdir)} for name, _, workdir in commands}


def written(workdir: pathlib.Path) -> dict:
    """Return the rows of every metrics.jsonl, and the fingerprints of every array in every checkpoint."""
    rows = []
    for file in sorted(workdir.glob("**/metrics.jsonl")):
        for row in map(json.loads, file.read_text().splitlines()):
            if row["kind"] != "time":
                rows.append({name: value for name, value in row.items() if name not in TIMING})
    recorded = {}
    for file in sorted(workdir.glob("**/record/metadata")):
        content = json.loads(file.read_text())["content"]
        recorded[f"step {content['step']}"] = content["arrays"]
    return {"metrics": rows, "checkpoints": recorded}


def differences(before, after, path: str = "") -> list[str]:
    """Return a line for every leaf in which two trees of JSON differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [line for name in sorted({*before, *after}, key=str)
                for line in differences(before.get(name), after.get(name), f"{path}/{name}")]  # fmt: skip
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [line for number, pair in enumerate(zip(before, after, strict=True))
                for line in differences(*pair, f"{path}[{number}]")]  # fmt: skip
    return [] if before == after else [f"{path}: {str(before):.80} → {str(after):.80}"]


def results(name: str, only: str, further: list[str]) -> dict[str, dict]:
    """Return the results of a commit or directory, or those in a file."""
    if name.endswith(".json"):
        return json.loads(pathlib.Path(name).read_text())
    with checkout(name) as tree, tempfile.TemporaryDirectory() as place:
        return run_all(tree, pathlib.Path(place), only, further)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default=str(ROOT))
    parser.add_argument("--only", default="", help="a regular expression: the names of the runs")
    parser.add_argument("--after_option", action="append", default=[], help="an option of the runs of AFTER alone")
    parser.add_argument("--write", type=pathlib.Path, help="write the results of one commit to this file")
    options = parser.parse_args()
    if options.write:
        options.write.write_text(json.dumps(results(options.before, options.only, options.after_option)))
        return
    with concurrent.futures.ThreadPoolExecutor() as both:  # most of the time one core compiles, or starts
        before, after = both.map(
            results, (options.before, options.after), (options.only,) * 2, ([], options.after_option)
        )
    different = False
    for name in before:
        lines = differences(before[name], after[name])
        different = different or bool(lines)
        sizes = ", ".join(f"{len(before[name][part])} {part}" for part in ("metrics", "parameters", "checkpoints"))
        print(f"{name} ({sizes}): " + (f"{len(lines)} DIFFERENCES" if lines else "equal to the last bit"))
        for line in lines[:8]:
            print(f"    {line}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
