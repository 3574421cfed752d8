"""Compare the vectors of exported models on pairs of texts: `python scripts/measure_onnx.py DIRECTORY … --sts=FILE`.

Each DIRECTORY is what `bert-jax convert --to=onnx` wrote of a model of single vectors, such as one in float32 and one
with --precision=int8. FILE has lines `text, text, score` with tabs between. Printed are the Spearman correlation of the
cosines with the scores, and the cosines of the vectors with those of the first directory.
"""

import argparse
import json
import pathlib

import numpy as np
import onnxruntime
from scipy.stats import spearmanr
from tokenizers import Tokenizer

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", metavar="DIRECTORY", nargs="+", type=pathlib.Path)
    parser.add_argument("--sts", required=True, type=pathlib.Path)
    options = parser.parse_args()
    rows = [line.split("\t") for line in options.sts.read_text(encoding="utf-8").splitlines()]
    texts, scores = [row[0] for row in rows] + [row[1] for row in rows], [float(row[2]) for row in rows]
    first = None
    for directory in options.directories:
        vectors = embed(directory, texts)
        first = vectors if first is None else first
        pairs = np.sum(vectors[: len(rows)] * vectors[len(rows) :], axis=1)
        cosines = np.sum(vectors * first, axis=1)
        spearman = 100 * spearmanr(pairs, scores).statistic
        print(f"{directory}: Spearman {spearman:.2f}, cosines {cosines.mean():.3f}, at least {cosines.min():.3f}")


def embed(directory: pathlib.Path, texts: list[str]) -> np.ndarray:
    """Return float32 [n, H], vectors of length 1."""
    session = onnxruntime.InferenceSession(directory / "model.onnx", providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(json.loads((directory / "export.json").read_text())["max_length"])
    names = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    wanted = [given.name for given in session.get_inputs()]
    found = []
    for start in range(0, len(texts), BATCH):
        read = tokenizer.encode_batch(texts[start : start + BATCH])
        arrays = {name: np.array([getattr(row, names[name]) for row in read], np.int64) for name in wanted}
        found.append(session.run(["sentence_embedding"], arrays)[0])
    vectors = np.concatenate(found)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


if __name__ == "__main__":
    main()
