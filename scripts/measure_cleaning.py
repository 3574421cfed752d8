"""CPU seconds and memory of every step of the cleaning, beside the tokenizer, on the first blocks of a corpus.

    python scripts/measure_cleaning.py CORPUS --vocab=vocab.txt [--decontaminate=FILES] [--megabytes=16] [--rounds=3]

Each step has a process of its own, which reads the blocks once and then works through them `rounds` times: the least
CPU seconds of a round count, as on a shared machine the least is the least disturbed. Memory is the peak of that
process less that of one that only reads: for a step, the library, its model and its tables.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable

STEPS = {
    "read and parsed only": None,
    "tokenizer": None,
    "sentences and tokenizer": None,
    "unicode=repair": {"unicode": "repair"},
    "languages=en": {"languages": ("en",)},
    "quality=gopher": {"quality": ("gopher",)},
    "quality=c4": {"quality": ("c4",)},
    "decontaminate": {"decontaminate": ""},
    "contacts=remove": {"contacts": "remove"},
    "all of them": {
        "unicode": "repair",
        "languages": ("en",),
        "quality": ("gopher", "c4"),
        "decontaminate": "",
        "contacts": "remove",
    },
}
"""What is measured: options of CleaningConfig, or None for what is not cleaning."""

Documents = list[list[str]]
"""The paragraphs of each document of a block."""

Work = Callable[[Documents], list]
"""What is done to a block; it returns records of what was removed."""


def main() -> None:
    options = parsed()
    if options.step:
        print(json.dumps(measure(options)))
        return
    names = [name for name in STEPS if name != "decontaminate" or options.decontaminate]
    found = {}
    for name in names:
        command = [sys.executable, *sys.argv, f"--step={name}"]
        found[name] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    print(table(found))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--decontaminate", default="")
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> dict:
    """Return what one step takes and removes; runs in a process of its own."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    blocks = read(options.corpus, options.megabytes)
    work = work_of(options)
    seconds, records = [], []
    for _ in range(options.rounds):
        began = time.process_time()
        records = [record for documents in blocks for record in work(documents)]
        seconds.append(time.process_time() - began)
    return {
        "seconds": min(seconds),
        "peak": peak_bytes(),
        "text": sum(len(line.encode()) for documents in blocks for lines in documents for line in lines),
        "documents": sum(map(len, blocks)),
        "removed": [sum(getattr(each, what) for each in records) for what in ("documents", "paragraphs", "characters")],
    }


def peak_bytes() -> int:
    """Return the peak of resident memory of this process; getrusage would inherit that of the one that started it."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def read(corpus: str, megabytes: int) -> list[Documents]:
    """Return the first blocks of a corpus."""
    from bert_jax.data.corpus.parsing import parse_block
    from bert_jax.data.corpus.readers import find_sources
    from bert_jax.data.corpus.text_blocks import read_blocks

    blocks, size = [], 0
    for source in find_sources(corpus):
        for block in read_blocks(source):
            if size >= megabytes * 1e6:
                return blocks
            blocks.append([lines for lines in parse_block(block).pieces if lines])
            size += len(block.payload)
    return blocks


def work_of(options: argparse.Namespace) -> Work:
    """Return the function of one block that `options.step` names, everything loaded."""
    if (changes := STEPS[options.step]) is not None:
        from bert_jax.config.corpus_cleaning import CleaningConfig
        from bert_jax.data.cleaning.cleaner import Cleaner

        if "decontaminate" in changes:
            changes = changes | {"decontaminate": options.decontaminate}
        cleaner = Cleaner(CleaningConfig(**changes), language="en")
        cleaner(["A model that is read when it is first needed."])
        return lambda documents: [record for lines in documents for record in cleaner(lines).records]
    if options.step == "read and parsed only":
        return lambda documents: []
    from bert_jax.data.corpus.sentences import make_splitter
    from bert_jax.tokenization.tokenizer import load_tokenizer

    tokenizer, split = load_tokenizer(options.vocab), make_splitter("split", "en")
    if options.step == "tokenizer":
        split = list  # a paragraph at a time

    def encode(documents: Documents) -> list:
        tokenizer.encode_flat([sentence for lines in documents for sentence in split(lines)])
        return []

    return encode


def table(found: dict[str, dict]) -> str:
    """Return a table of Markdown with the machine above it."""
    first, tokenizer = found["read and parsed only"], found["tokenizer"]
    megabytes = first["text"] / 1e6
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores; {megabytes:.1f} MB of text, {first['documents']:,} documents",
        "",
        "| step | CPU s | MB/s per core | tokenizer = 1 | memory, MB | documents · paragraphs · characters gone |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in found.items():
        if name == "read and parsed only":
            continue
        gone = " · ".join(f"{number:,}" for number in each["removed"])
        lines.append(
            f"| {name} | {each['seconds']:.2f} | {megabytes / each['seconds']:.1f} | "
            f"{each['seconds'] / tokenizer['seconds']:.2f} | {(each['peak'] - first['peak']) / 1e6:.0f} | {gone} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
