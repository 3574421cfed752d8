"""The questions of `bert-jax serve` and, under the names that its clients use, of text-embeddings-inference.

Each question is a body, a dataclass, and a function that answers it. `inputs` is one or a list, and so is the answer,
except for /embed, which answers with a list always, as in text-embeddings-inference. Its /predict takes [a, b] for a
pair, where the other routes take it for two texts.
"""

import asyncio
import dataclasses
import math
from typing import Annotated, Any, Literal

import numpy as np

from bert_jax.pretrained.answers import Answer, Candidate, Choice, Label, Labels, TaggedWord
from bert_jax.pretrained.encodings import with_prompt
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.tokenization.tokenizer import Tokenizer, assembled, text_start
from bert_jax.tools.serving import service as of
from bert_jax.tools.serving.bodies import Range, Refusal
from bert_jax.tools.serving.questions import (
    Embed,
    FillMask,
    NextSentence,
    Predict,
    Question,
    Rank,
    Similarity,
    longest_text,
)
from bert_jax.tools.serving.service import Counted, Route, Service

Model = Annotated[str | None, "Name of the model; null: the first that can answer."]
Truncate = Annotated[
    bool | None, "Whether texts with more tokens than the model reads are cut, or refused (false); null: they are cut."
]
Direction = Annotated[Literal["Right", "right"], "The end at which a text is cut."]
Text = str | tuple[str, str]
"""A text, or a pair of texts."""
Vector = list[float]
MOST_CANDIDATES = 100_000
"""Of the masks of a request, of which each may have a thousand."""


@dataclasses.dataclass(frozen=True)
class FillMaskBody:
    """Texts with masks."""

    inputs: Annotated[str | list[str], "A text with at least one [MASK], as the vocabulary spells it, or several."]
    top_k: Annotated[int, "Number of candidates for each mask.", Range(1, 1000)] = 5
    model: Model = None


async def fill_mask(
    service: Service, name: str, body: FillMaskBody
) -> list[list[Candidate]] | list[list[list[Candidate]]]:
    """The most likely pieces for each [MASK] of a text, the best first."""
    inputs, tokenizer = _list(body.inputs), service.engine.models[name].need_tokenizer()
    service.several(inputs, "inputs")
    count = body.top_k * sum(text.count(tokenizer.tokens[tokenizer.mask_id]) for text in inputs)
    if count > MOST_CANDIDATES:
        raise Refusal(
            413, f"there are {count} candidates for all masks, and at most {MOST_CANDIDATES} are given", "top_k"
        )
    found = await service.ask(name, FillMask(inputs, body.top_k))
    return found if isinstance(body.inputs, list) else found[0]


@dataclasses.dataclass(frozen=True)
class TextsBody:
    """Texts, or pairs of texts for a model of pairs."""

    inputs: Annotated[str | list[Text], "A text, or a list of texts and pairs: [[first, second], …]."]
    model: Model = None


async def classify(service: Service, name: str, body: TextsBody) -> Label | Labels | list[Label | Labels]:
    """The class of each text and the probabilities of all, or the labels that it has and their probabilities."""
    inputs = _list(body.inputs)
    service.several(inputs, "inputs")
    found = await service.ask(name, Predict(inputs))
    return found if isinstance(body.inputs, list) else found[0]


@dataclasses.dataclass(frozen=True)
class TagBody:
    """Sentences."""

    inputs: Annotated[str | list[str | list[str]], "A sentence, or several, each a text or a list of words."]
    model: Model = None


@dataclasses.dataclass(frozen=True)
class Tagged:
    """A word and its tag."""

    word: str
    tag: str
    start: Annotated[int | None, "First character of the word in the text; null where words were given."] = None
    end: Annotated[int | None, "Character after the word's last."] = None


async def tag(service: Service, name: str, body: TagBody) -> list[Tagged] | list[list[Tagged]]:
    """A tag for each word."""
    inputs = [tuple(each) if isinstance(each, list) else each for each in _list(body.inputs)]
    service.several(inputs, "inputs")
    found = [[_tagged(word) for word in words] for words in await service.ask(name, Predict(inputs))]
    return found if isinstance(body.inputs, list) else found[0]


def _tagged(word: tuple[str, str]) -> Tagged:
    places = (word.start, word.end) if isinstance(word, TaggedWord) else (None, None)
    return Tagged(*word, *places)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question on a context, or one with candidates."""

    question: str
    context: Annotated[str | None, "Text that has the answer, for a model of spans."] = None
    candidates: Annotated[list[str] | None, "Possible answers, for a model of choices."] = None


@dataclasses.dataclass(frozen=True)
class AnswerBody:
    """Questions."""

    inputs: Asked | list[Asked]
    model: Model = None


async def answer(service: Service, name: str, body: AnswerBody) -> Answer | Choice | list[Answer | Choice]:
    """The part of the context that answers each question, or the number of the candidate that does."""
    asked = _list(body.inputs)
    service.several(asked, "inputs")
    head = service.engine.models[name].head
    field = "context" if head is not None and head.kind == "span" else "candidates"
    if sum(each.candidates is not None for each in asked) != len(asked) * (field == "candidates") or any(
        getattr(each, field) is None for each in asked
    ):
        raise Refusal(422, f"{name} answers a question with its {field}, and nothing else", f"inputs.{field}")
    found = await service.ask(name, Predict([(each.question, getattr(each, field)) for each in asked]))
    return found if isinstance(body.inputs, list) else found[0]


@dataclasses.dataclass(frozen=True)
class EmbedBody:
    """Texts to be turned into vectors."""

    inputs: Annotated[str | list[str] | list[int] | list[list[int]], "Texts, or ids of tokens."]
    normalize: Annotated[
        bool | None, "Whether vectors have length 1; null: as the model says. Ignored where each token has a vector."
    ] = True
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: Annotated[
        Literal["query", "document"] | None, "What the texts are, where the model has a prompt for it."
    ] = None
    dimensions: Annotated[
        int | None, "Number of the first values to keep (Matryoshka), before vectors get length 1."
    ] = None
    model: Model = None


@dataclasses.dataclass(frozen=True)
class Weight:
    """A word's weight in a sparse vector."""

    index: int
    value: float


async def embed(service: Service, name: str, body: EmbedBody) -> list[Vector] | list[list[Vector]] | list[list[Weight]]:
    """A vector for each text; a list of vectors, or of weights of words, from a model with such."""
    vectors, _ = await vectors_of(service, name, body)
    return vectors


async def vectors_of(service: Service, name: str, body: EmbedBody) -> tuple[Any, list[int]]:
    """Return the vectors of texts, an item for each, and the number of tokens that the model has read of each."""
    model = service.engine.models[name]
    texts = await texts_of(service, model, body.inputs)
    if body.dimensions is not None and body.dimensions < 1:
        raise Refusal(422, f"dimensions={body.dimensions} must be at least 1", "dimensions")
    normalize = body.normalize if model.vector_form == "single" else None
    question = Embed(texts, body.prompt_name, normalize, body.dimensions)
    counted = with_prompt(texts, model.embedding, body.prompt_name)
    vectors, sizes = await service.ask(name, _counted(question, counted, model, body.truncate))
    if model.vector_form == "words":
        rows = [vectors[number] for number in range(len(texts))]
        vectors = [[Weight(int(i), float(v)) for i, v in zip(row.indices, row.data, strict=True)] for row in rows]
    return vectors, sizes


def _counted(question: Question, texts: Any, model: PretrainedModel, truncate: bool | None) -> Counted:
    return Counted(question, texts, longest_text(model), truncate is not False)


async def texts_of(service: Service, model: PretrainedModel, inputs: Any) -> list[str]:
    """Return the texts of a request, which may also be ids of tokens, one list or several.

    Ids are turned into text, as in text-embeddings-inference, so that special tokens are in their places.
    """
    if isinstance(inputs, list) and inputs and isinstance(inputs[0], int):
        inputs = [inputs]
    found, tokenizer = _list(inputs), model.need_tokenizer()
    service.several(found, "inputs")
    if isinstance(found[0], str):
        return found
    _check_ids(found, tokenizer, "inputs")
    texts = await asyncio.to_thread(_decoded, tokenizer, found, without_specials=True)
    if (longest := max(map(len, texts))) > service.config.max_characters:
        most = service.config.max_characters
        raise Refusal(413, f"the text of inputs has {longest} characters, and at most {most} are read", "inputs")
    return texts


def _check_ids(rows: list[list[int]], tokenizer: Tokenizer, field: str) -> None:
    most = tokenizer.vocab_size
    if any(not ids or not 0 <= min(ids) <= max(ids) < most for ids in rows):
        raise Refusal(422, f"ids of tokens are from 0 to {most - 1}, at least one", field)


def _decoded(tokenizer: Tokenizer, rows: list[list[int]], without_specials: bool) -> list[str]:
    left_out = set(tokenizer.special_ids) if without_specials else ()
    return [tokenizer.decode(each for each in ids if each not in left_out) for ids in rows]


@dataclasses.dataclass(frozen=True)
class RankBody:
    """A query and documents."""

    query: str
    documents: list[str]
    top: Annotated[
        int | None,
        "Number of documents to return; null: all.",
    ] = None
    return_text: Annotated[bool, "Whether each document is returned too."] = False
    model: Model = None


@dataclasses.dataclass(frozen=True)
class RerankBody:
    """A query and texts, as in text-embeddings-inference."""

    query: str
    texts: list[str]
    raw_scores: Annotated[bool, "Whether the scores are those of the head, without a sigmoid."] = False
    return_text: Annotated[bool, "Whether each text is returned too."] = False
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    model: Model = None


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A document's number in the request, from 0, and how well it answers the query."""

    index: int
    score: float
    text: str | None = None


async def rank(service: Service, name: str, body: RankBody) -> list[Ranked]:
    """The documents, the best answer to the query first, with a head's score or the product of vectors."""
    service.several(body.documents, "documents")
    if body.top is not None and body.top < 1:
        raise Refusal(422, f"top={body.top} must be at least 1", "top")
    found = await service.ask(name, Rank(body.query, body.documents))
    return _ranked(found, body.documents if body.return_text else None)[: body.top]


async def rerank(service: Service, name: str, body: RerankBody) -> list[Ranked]:
    """The texts, the best answer to the query first. Scores of a head with one number are through a sigmoid."""
    service.several(body.texts, "texts")
    model = service.engine.models[name]
    pairs = [(body.query, text) for text in body.texts]
    found, _ = await service.ask(name, _counted(Rank(body.query, body.texts), pairs, model, body.truncate))
    if model.head is not None and model.head.kind == "regression":
        found = [_activated(model, score, body.raw_scores) for score in found]
    return _ranked(found, body.texts if body.return_text else None)


def _ranked(scores: list[float], texts: list[str] | None) -> list[Ranked]:
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    return [Ranked(number, float(scores[number]), texts[number] if texts else None) for number in order]


def _activated(model: PretrainedModel, score: float, raw: bool) -> float:
    """Return what a head with one number says, before or after a sigmoid, whichever the model ends with itself."""
    squashed = model.head is not None and model.head.activation == "sigmoid"
    if squashed == (not raw):
        return score
    if raw:
        share = min(max(score, 1e-12), 1 - 1e-7)
        return math.log(share / (1 - share))
    return 1 / (1 + math.exp(-score)) if score > -700 else 0.0


@dataclasses.dataclass(frozen=True)
class PredictBody:
    """Texts, as in text-embeddings-inference: [a] is a text, [a, b] a pair, and [[a], [b, c]] a text and a pair."""

    inputs: str | list[str] | list[list[str]]
    raw_scores: Annotated[
        bool, "Whether scores are logarithms: of the probability of a class, of the odds of a label."
    ] = False
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    model: Model = None


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A class and its score."""

    score: float
    label: str


async def predict(service: Service, name: str, body: PredictBody) -> list[Prediction] | list[list[Prediction]]:
    """The score of each class, the greatest first; LABEL_0 is that of a head with one number."""
    several = isinstance(body.inputs, list) and bool(body.inputs) and isinstance(body.inputs[0], list)
    rows = body.inputs if several else [[body.inputs] if isinstance(body.inputs, str) else body.inputs]
    service.several(rows, "inputs")
    if wrong := [row for row in rows if len(row) not in (1, 2)]:
        raise Refusal(422, f"inputs has an entry of {len(wrong[0])} texts; expected one text, or two", "inputs")
    model = service.engine.models[name]
    inputs = [row[0] if len(row) == 1 else tuple(row) for row in rows]
    answered, _ = await service.ask(name, _counted(Predict(inputs), inputs, model, body.truncate))
    found = [_predictions(model, each, body.raw_scores) for each in answered]
    return found if several else found[0]


def _predictions(model: PretrainedModel, found: Label | Labels | float, raw: bool) -> list[Prediction]:
    if not isinstance(found, Label | Labels):
        return [Prediction(_activated(model, found, raw), "LABEL_0")]
    shares = np.array([*found.probabilities.values()])
    if raw:
        tiny = np.finfo(np.float32).tiny
        others = 1 if isinstance(found, Label) else np.maximum(1 - shares, tiny)
        shares = np.log(np.maximum(shares, tiny) / others)
    pairs = zip(shares.tolist(), found.probabilities, strict=True)
    return sorted((Prediction(*pair) for pair in pairs), key=lambda each: -each.score)


@dataclasses.dataclass(frozen=True)
class ScoreBody:
    """Pairs of texts; for a regression on single texts also texts."""

    inputs: Annotated[str | list[Text], "[[first, second], …]; a text, or texts, for a regression on single ones."]
    kind: Annotated[
        Literal["regression", "similarity", "next_sentence"] | None,
        "What is meant; null: the number of a regression, the likeness of vectors of a model that was trained for it, "
        "or else whether the second text follows the first, where the model has learned this.",
    ] = None
    model: Model = None


@dataclasses.dataclass(frozen=True)
class Scores:
    """A number for each input."""

    kind: str
    scores: list[float]


async def score(service: Service, name: str, body: ScoreBody) -> Scores:
    """A number for each pair: of a regression, the likeness of two vectors, or the probability that B follows A."""
    inputs = _list(body.inputs)
    service.several(inputs, "inputs")
    kinds = kinds_of_score(service.engine.models[name])
    kind = body.kind or kinds[0]
    if kind not in kinds:
        raise Refusal(422, f"kind={kind} is not among those of {name}, {', '.join(kinds)}", "kind")
    if kind != "regression" and any(isinstance(each, str) for each in inputs):
        raise Refusal(422, f"{kind} is of pairs: inputs must be [[first, second], …]", "inputs")
    question: Question = Predict(inputs)
    if kind != "regression":
        question = NextSentence(inputs) if kind == "next_sentence" else Similarity(inputs)
    found = await service.ask(name, question)
    return Scores(kind, [float(each) for each in found])


def kinds_of_score(model: PretrainedModel) -> list[str]:
    """Return what /score can mean for a model, first what it means by default."""
    if model.head is not None:
        return ["regression"]
    kinds = ["next_sentence"] if "next_sentence" in model.network.parts else []
    is_of_vectors = model.embedding != type(model.embedding)()
    return ["similarity", *kinds] if is_of_vectors else [*kinds, "similarity"]


@dataclasses.dataclass(frozen=True)
class Compared:
    """A sentence, and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """Options of a comparison."""

    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: None = None


@dataclasses.dataclass(frozen=True)
class SimilarityBody:
    """A sentence and others, as in text-embeddings-inference."""

    inputs: Compared
    parameters: CompareOptions | None = None
    model: Model = None


async def similarity(service: Service, name: str, body: SimilarityBody) -> list[float]:
    """The cosine of the vector of a sentence with that of each other."""
    asked, model = body.inputs, service.engine.models[name]
    service.several(asked.sentences, "inputs.sentences")
    pairs = [(asked.source_sentence, each) for each in asked.sentences]
    truncate = body.parameters.truncate if body.parameters else None
    counted = _counted(Similarity(pairs), [asked.source_sentence, *asked.sentences], model, truncate)
    found, _ = await service.ask(name, counted)
    return [float(each) for each in found]


@dataclasses.dataclass(frozen=True)
class TokenizeBody:
    """Texts."""

    inputs: str | list[str]
    add_special_tokens: Annotated[bool, "Whether [CLS], [SEP] and the like are added."] = True
    prompt_name: None = None
    model: Model = None


@dataclasses.dataclass(frozen=True)
class Token:
    """A piece of a text."""

    id: int
    text: str
    special: bool
    start: Annotated[int | None, "Its first character in the text; null for special tokens."] = None
    stop: Annotated[int | None, "The character after its last."] = None


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """The pieces of texts: [[Token, …], …]."""

    asked: list[str]
    with_specials: bool

    def texts(self) -> list[str]:
        return self.asked

    def answer(self, model: PretrainedModel) -> list[list[Token]]:
        tokenizer, found = model.need_tokenizer(), []
        for text in self.asked:
            ids, places = tokenizer.encode_with_offsets(text)
            own = [Token(i, text[start:end], False, start, end) for i, (start, end) in zip(ids, places, strict=True)]
            if self.with_specials:
                whole, start = assembled(tokenizer, ids)[0].tolist(), text_start(tokenizer)
                special = [Token(i, tokenizer.tokens[i], True) for i in whole]
                own = [*special[:start], *own, *special[start + len(own) :]]
            found.append(own)
        return found


async def tokenize(service: Service, name: str, body: TokenizeBody) -> list[list[Token]]:
    """The pieces of each text, with their places in it."""
    texts, most = _list(body.inputs), service.config.max_characters
    service.several(texts, "inputs")
    if (length := sum(map(len, texts))) > most:
        raise Refusal(413, f"inputs have {length} characters, and at most {most} are read", "inputs")
    return await service.ask(name, _Pieces(texts, body.add_special_tokens))


@dataclasses.dataclass(frozen=True)
class DecodeBody:
    """Ids of tokens."""

    ids: list[int] | list[list[int]]
    skip_special_tokens: Annotated[bool, "Whether [CLS], [SEP] and the like are left out."] = True
    model: Model = None


@dataclasses.dataclass(frozen=True)
class _Decoded:
    """Texts of ids."""

    ids: list[list[int]]
    without_specials: bool

    def texts(self) -> list[list[int]]:
        return self.ids

    def answer(self, model: PretrainedModel) -> list[str]:
        return _decoded(model.need_tokenizer(), self.ids, self.without_specials)


async def decode(service: Service, name: str, body: DecodeBody) -> list[str]:
    """The text of each list of ids."""
    rows: Any = body.ids if body.ids and isinstance(body.ids[0], list) else [body.ids]
    service.several(rows, "ids")
    _check_ids(rows, service.engine.models[name].need_tokenizer(), "ids")
    return await service.ask(name, _Decoded(rows, body.skip_special_tokens))


def _list(inputs: Any) -> list[Any]:
    return inputs if isinstance(inputs, list) else [inputs]


ROUTES = (
    Route("/fill-mask", fill_mask, of.fills_masks, "a head of masked words"),
    Route("/classify", classify, of.classifies, "a head of classes or labels"),
    Route("/tag", tag, of.tags, "a head of tags"),
    Route("/answer", answer, of.answers, "a head of answers or choices"),
    Route("/embed", embed, of.embeds, "vectors, which a model with a task's head has none of"),
    Route("/embed_sparse", embed, of.embeds_words, "vectors of weights of words"),
    Route("/rank", rank, of.ranks, "vectors, a regression, or a class called 1"),
    Route("/rerank", rerank, of.ranks, "vectors, a regression, or a class called 1"),
    Route("/predict", predict, of.predicts, "a head of classes, labels or a number"),
    Route("/score", score, of.scores, "vectors or a regression"),
    Route("/similarity", similarity, of.embeds, "vectors"),
    Route("/tokenize", tokenize, of.reads, "a vocabulary"),
    Route("/decode", decode, of.reads, "a vocabulary"),
)
"""All of them but those of OpenAI."""
