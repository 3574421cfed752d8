"""Models and an engine that answer at once, so that what is about HTTP needs no compiled program."""

import asyncio
import types

import numpy as np
from pretrained_model import TOKENIZER

from bert_jax.config import EmbeddingConfig, HeadConfig
from bert_jax.config.heads import SingleVector
from bert_jax.config.serving import EngineOptions
from bert_jax.errors import UserError
from bert_jax.pretrained.answers import Answer, Candidate, Choice, Label, Labels
from bert_jax.tools.serving import questions
from bert_jax.tools.serving.engine import Observed

WIDTH = 8


def model(kind: str = "", labels: tuple[str, ...] = (), parts: tuple[str, ...] = (), **changes):
    """What the routes look at of a model: of no kind an encoder with these parts."""
    sizes = types.SimpleNamespace(hidden_size=WIDTH, num_layers=2, longest_sequence=12, two_directions=False)
    return types.SimpleNamespace(
        path="somewhere",
        network=types.SimpleNamespace(parts=parts, fills_masks="mlm" in parts),
        head=HeadConfig(kind=kind, labels=labels) if kind else None,
        config=sizes,
        embedding=changes.get("embedding", EmbeddingConfig(form=SingleVector())),
        vector_form=changes.get("form", "single"),
        history={},
        need_tokenizer=lambda: TOKENIZER,
    )


def models():
    return {
        "words": model(parts=("mlm", "next_sentence")),
        "mood": model("classification", ("bad", "good")),
        "topics": model("multilabel", ("news", "sport")),
        "stars": model("regression"),
        "names": model("tagging", ("O", "B-X")),
        "spans": model("span"),
        "best": model("choice"),
    }


def vector(text: str) -> np.ndarray:
    """A vector of length 1 that differs from text to text."""
    found = np.random.default_rng(list(text.encode())).normal(size=WIDTH).astype(np.float32)
    return found / np.linalg.norm(found)


class QuickEngine:
    """Answers like an engine, without a computation; `fails` is raised in place of an answer, after `delay` s."""

    def __init__(self, models, options=EngineOptions()):
        self.models, self.options, self.ready, self.waiting = models, options, True, 0
        self.fails, self.delay, self.cancelled, self.asked = None, 0.0, 0, []
        self.warmed, self.draining = (3, 40), False

    def observed(self):
        return Observed(batches=2, texts=2, tokens=30, positions=40)

    def start(self, told=lambda: None):
        self.ready = True

    def refuse(self):
        self.ready, self.draining = False, True

    async def drain(self, seconds):
        self.refuse()

    async def ask(self, name, question, *, deadline=None):
        self.asked.append((name, question))
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails is not None:
            raise self.fails
        own = getattr(question, "question", None)
        if own is not None:
            sizes = type(question)(_Nothing(), question.counted, question.limit, question.truncate)
            return answer(self.models[name], own), sizes.answer(self.models[name])[1]
        return answer(self.models[name], question)


class DirectEngine(QuickEngine):
    """Runs what it is given with a real model, one at a time."""

    async def run(self, name, function):
        return function(self.models[name])


class _Nothing:
    def answer(self, model):
        return None


def answer(model, question):
    match question:
        case questions.FillMask(asked=texts, top_k=most):
            for text in texts:
                if "[MASK]" not in text:
                    raise UserError(f"there is no [MASK] in {text[:60]!r}")
            return [[[Candidate("cat", 0.5), Candidate("dog", 0.25)][:most]] * text.count("[MASK]") for text in texts]
        case questions.Embed(asked=texts, dimensions=dimensions):
            found = np.stack([vector(text)[:dimensions] for text in texts])
            return found / np.linalg.norm(found, axis=1, keepdims=True)
        case questions.Rank(documents=documents):
            return [float(len(text)) for text in documents]
        case questions.NextSentence(pairs=pairs) | questions.Similarity(pairs=pairs):
            return [1 / (1 + abs(len(a) - len(b))) for a, b in pairs]
        case questions.Predict(inputs=inputs):
            return [predicted(model.head.kind, each) for each in inputs]
    return question.answer(model)


def predicted(kind: str, asked):
    match kind:
        case "classification":
            return Label("good", {"bad": 0.25, "good": 0.75})
        case "multilabel":
            return Labels(("news",), {"news": 0.9, "sport": 0.1})
        case "regression":
            return 0.5
        case "span":
            return Answer(asked[1][:3], ((asked[1][:3], 1.0),))
        case "choice":
            return Choice(1, (0.25, 0.75))
    return [(word, "O") for word in (asked.split() if isinstance(asked, str) else asked)]
