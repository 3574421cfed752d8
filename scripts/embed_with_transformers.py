"""Turn lines of texts into vectors by transformers: `python embed_with_transformers.py MODEL BATCH`.

scripts/compare_serving.py starts it in an environment with torch and transformers; bert_jax is not imported here. Each
line of standard input is a list of texts in JSON, and is answered with their vectors in float32: the mean of the last
states of each text, of norm 1. Texts are sorted by length into batches, as sentence-transformers does.
"""

import json
import os
import sys

import torch
import transformers

# pyright: reportMissingImports=false


def main() -> None:
    path, batch = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    longest = settings(path).get("max_seq_length") or model.config.max_position_embeddings
    for line in sys.stdin:
        texts = json.loads(line)
        vectors = torch.zeros(len(texts), model.config.hidden_size)
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        for begin in range(0, len(texts), batch):
            numbers = order[begin : begin + batch]
            vectors[numbers] = embed(model, tokenizer, [texts[number] for number in numbers], longest)
        answers.write(vectors.numpy().tobytes())
        answers.flush()


def settings(path: str) -> dict:
    """Return what sentence-transformers says of the longest text, if the directory is one of it."""
    file = os.path.join(path, "sentence_bert_config.json")
    if not os.path.exists(file):
        return {}
    with open(file, encoding="utf-8") as opened:
        return json.load(opened)


@torch.inference_mode()
def embed(model: torch.nn.Module, tokenizer: object, texts: list[str], longest: int) -> torch.Tensor:
    given = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    states = model(**given).last_hidden_state
    mask = given["attention_mask"][..., None].float()
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))


if __name__ == "__main__":
    main()
