#!/usr/bin/env python3
"""How much has the discriminator of a replaced-token run learned? Its figures next to those of a constant answer.

    python scripts/measure_discriminator.py RUN [--rows=1024]

RUN is the work directory of a pre-training with objective.name=replaced_tokens. Prints, for held-out rows at its
newest step, the share of the tokens that the generator has replaced, accuracy and loss of the discriminator, those of
an answer that does not look at the text (no token is replaced; the share as the probability of every token), the
share of the replaced tokens that it finds, and the area under its ROC curve (0.5: chance).
"""

import argparse
import math
import sys

import jax
import numpy as np
from etils import epath
from scipy import stats

from bert_jax.checkpoints.checkpoint import Checkpoints
from bert_jax.checkpoints.workdir import read_json
from bert_jax.config import resolve_phases
from bert_jax.errors import UserError
from bert_jax.objectives.replaced_tokens import ReplacedTokensObjective, replaced, sampled_words
from bert_jax.ownership import need_run
from bert_jax.tools.study_plan import described_learner
from bert_jax.training_data import held_out_examples, open_corpus, read_config

AT_ONCE = 32
"""Rows."""


def judged(run: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each token of the rows whether it was replaced, bool [N], and its logit, float32 [N]."""
    need_run(run)
    config, learner = described_learner(read_config(run), jax.devices()[:1])
    (objective,) = learner.objectives
    if not isinstance(objective, ReplacedTokensObjective):
        raise UserError(f"{run} was trained with objective.name={config.objective.name}; give one of replaced_tokens")
    run_id = read_json(epath.Path(run, "run.json"))["run_id"]
    checkpoints = Checkpoints(f"{run}/checkpoints", read_only=True, run_id=run_id)
    params = checkpoints.read(checkpoints.latest_step(), learner.abstract).state.params
    (examples,) = held_out_examples(config, resolve_phases(config)[-1], open_corpus(config).held_out).values()

    @jax.jit
    def judge(params, batch):
        written, labels = replaced(batch, sampled_words(objective.model.mlm_logits(params, batch, None), batch))
        return labels, objective.model.replaced_token_logits(params, written, None)

    labels, logits = [], []
    for begin in range(0, rows, AT_ONCE):
        batch = examples.batch(np.arange(begin, begin + AT_ONCE))
        real = batch["attention_mask"] > 0
        for whole, found in zip((labels, logits), judge(params, batch), strict=True):
            whole.append(np.asarray(found)[real])
    return np.concatenate(labels), np.concatenate(logits)


def figures(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Return what is printed, by name, of labels, bool [N], and logits, float32 [N]."""
    share, count = labels.mean(), labels.sum()
    return {
        "replaced": share,
        "accuracy": ((logits > 0) == labels).mean(),
        "loss": np.logaddexp(0, np.where(labels, -logits, logits)).mean(),
        "entropy": -(share * math.log(share) + (1 - share) * math.log(1 - share)),
        "found": (logits[labels] > 0).mean(),
        "area": (stats.rankdata(logits)[labels].sum() - count * (count + 1) / 2) / (count * (len(labels) - count)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--rows", type=int, default=1024, help="Number of rows.")
    options = parser.parse_args()
    labels, logits = judged(options.run, options.rows)
    found = figures(labels, logits)
    print(f"{len(labels):,} tokens, {found['replaced']:.2%} replaced")
    print(f"accuracy {found['accuracy']:.2%}, of none is replaced {1 - found['replaced']:.2%}")
    print(f"loss {found['loss']:.4f}, of the share alone {found['entropy']:.4f}")
    print(f"found {found['found']:.2%} of the replaced; area under the curve {found['area']:.3f}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
