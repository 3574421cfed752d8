"""Runs that have learned nothing, told from the rest: small tasks now and then end in a model that ignores its input."""

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.sequences.features import Features
from bert_jax.tasks.scores import matthews
from bert_jax.tasks.squad.windows import SpanFeatures


def collapsed(
    head: HeadConfig, train: Features, ignored: str | None, training_loss: float, skipped_steps: int
) -> str | None:
    """Why a finished run counts as collapsed, in words, or None.

    Args:
      ignored: what `ignores_input` says of the weights that count.
      training_loss: mean over the end of the last epoch.
      skipped_steps: updates left out because the loss or the gradient was no number.
    """
    reasons = [f"loss or gradient was not finite in {skipped_steps} steps"] if skipped_steps else []
    if ignored:
        reasons.append(ignored)
    chance = prior_loss(head, train)
    if chance is not None and not training_loss < 0.99 * chance:
        reasons.append(f"training loss at the end {training_loss:.4f}, {chance:.4f} without reading the input")
    return "; ".join(reasons) or None


def ignores_input(head: HeadConfig, dev: Features, logits: list[np.ndarray], metrics: dict[str, float]) -> str | None:
    """By what the answers to dev look as if nothing had been read, in words; None if by nothing.

    Args:
      logits: scores on `dev`, one entry a sequence.
      metrics: what they are worth.
    """
    reasons = []
    if metrics.get("NoAns_f1") == 1 and metrics.get("HasAns_f1") == 0:  # SQuAD 2.0, with the threshold best for it
        reasons.append("every question is left unanswered")
    elif answer := _constant_answer(head, dev, logits):
        reasons.append(f"every prediction is {answer}")
    if head.kind in ("classification", "choice"):
        labels, answers = np.asarray(dev.labels), np.array([row.argmax() for row in logits])
        accuracy, majority = np.mean(answers == labels), np.bincount(labels).max() / len(labels)
        correlation = matthews(labels, answers)
        # Two standard errors of guessing: where classes differ much in size, a model may be related to them and below the largest.
        if accuracy <= majority and correlation < 2 / np.sqrt(len(labels)):
            reasons.append(
                f"accuracy {accuracy:.4f} is not above the share of the largest class, {majority:.4f}, and the Matthews "
                f"correlation, {correlation:.3f}, not above that of guessing"
            )
    return "; ".join(reasons) or None


def prior_loss(head: HeadConfig, features: Features) -> float | None:
    """Loss of the best answer that ignores the input: entropy of the labels in nats, their variance for regression.

    None for spans and tags, where knowing the length or the most frequent tag is already much.
    """
    if head.kind in ("span", "tagging"):
        return None
    if head.kind == "regression":
        return float(np.var(np.asarray(features.labels)))
    shares = np.bincount(np.asarray(features.labels)) / len(features)
    return float(-np.sum(shares[shares > 0] * np.log(shares[shares > 0])))


def _constant_answer(head: HeadConfig, features: Features, logits: list[np.ndarray]) -> str | None:
    """The one answer that is given to everything, in words; None where there are two, or only one sequence."""
    if len(logits) < 2:
        return None
    if head.kind == "regression":
        return f"{np.mean(logits):.3f}" if np.std(logits) < 1e-3 else None
    if isinstance(features, SpanFeatures):
        # Of the window only: [CLS], the label of windows without the answer, may be the best of all and is no answer itself.
        places = {
            tuple(row[prefix:-1].argmax(axis=0).tolist()) for row, prefix in zip(logits, features.prefix, strict=True)
        }
        return "tokens {} to {} of the window".format(*places.pop()) if len(places) == 1 else None
    if head.kind == "tagging" and features.labels is not None:
        answers = {
            int(tag)
            for row, labels in zip(logits, features.labels, strict=True)
            for tag in row[labels >= 0].argmax(axis=-1)
        }
    else:
        answers = {int(row.argmax()) for row in logits}
    if len(answers) > 1:
        return None
    (answer,) = answers
    return repr(head.labels[answer]) if head.labels else f"candidate {answer}"
