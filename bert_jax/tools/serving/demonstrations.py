"""What a model shows of itself, for the page of playground.py: each kind of question, and its answer as plain values.

A question is a dataclass whose fields are those of the JSON that the page sends. Its `answer` takes a loaded model and
returns a dict for JSON, computed by the functions of the library that train, answer and analyse. Texts, lines and
tokens are bounded, so that an answer takes a fraction of a second and fits on a page.
"""

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import entr

from bert_jax.analysis.attention_maps import attention
from bert_jax.analysis.head_behaviour import scaled_map
from bert_jax.analysis.layers import units
from bert_jax.analysis.words import WordFinder, single_word, spelled, word_senses
from bert_jax.config import DataConfig, MaskedWords, MaskingConfig, Phase
from bert_jax.config.pretraining import MaskUnit
from bert_jax.corpus.blocks import Block, Position, Source
from bert_jax.corpus.text import make_splitter
from bert_jax.data.examples import StoreExamples
from bert_jax.data.manifest import Options
from bert_jax.data.masking import replacement
from bert_jax.data.preparation.encoding import Encoder, TextReader
from bert_jax.data.store import MemoryStore
from bert_jax.errors import UserError
from bert_jax.pretrained.answers import candidates, check_fills_masks, mask_logits
from bert_jax.pretrained.model import PretrainedModel
from bert_jax.pretrained.runner import softmax
from bert_jax.tokenization.tokenizer import assembled, check_utf8, sequence_length
from bert_jax.tools.search.vectors import FORMS

MOST_CHARACTERS = 4_000
"""Of a text, or of all lines together."""
MOST_PIECES = 64
"""Of a text whose attention or states are drawn, special ones included."""
MOST_LINES = 64
"""Lines among which neighbours are sought, or sentences of a paragraph."""
MOST_CONTEXTS = 12
"""Sentences with a word whose vectors are compared."""
MOST_CANDIDATES = 50
STRIP = 48
"""Values of a vector that are drawn, its first ones."""
MOST_ROWS = 4
"""Training examples that are drawn."""
DIGITS = 5


def plain(values: Any) -> Any:
    """Return an array as lists of numbers of `DIGITS` places, with None for what is not finite."""
    if isinstance(values, list | np.ndarray):
        return [plain(each) for each in (values.tolist() if isinstance(values, np.ndarray) else values)]
    return round(float(values), DIGITS) if math.isfinite(values) else None


def checked(text: str, what: str = "text") -> str:
    """Return a text; raise a UserError if it is blank, too long or no UTF-8."""
    if not text.strip():
        raise UserError(f"the {what} is empty; type some words")
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"the {what} has {len(text):,} characters and may have {MOST_CHARACTERS:,}; shorten it")
    check_utf8(text)
    return text


def lines_of(text: str, most: int, what: str) -> list[str]:
    """Return the lines of a text that are not blank; raise a UserError if there are more than `most`."""
    lines = [line.strip() for line in checked(text, what).splitlines() if line.strip()]
    if len(lines) > most:
        raise UserError(f"there are {len(lines)} lines and may be {most}; leave some out")
    return lines


def pieces_of(model: PretrainedModel, text: str, most: int | None = None) -> list[int]:
    """Return the ids of a text without special tokens, in which [MASK] is the mask token.

    Raises:
      UserError: there are none, or more than the model reads, or than `most` with two special tokens.
    """
    tokenizer, longest = model.need_tokenizer(), model.config.longest_sequence
    limit = longest if most is None else min(most, longest)
    ids = tokenizer.encode_masked(checked(text))
    if not ids:
        raise UserError("the text has no word piece; type some words")
    if len(ids) + 2 > limit:
        raise UserError(f"the text has {len(ids)} word pieces and may have {limit - 2} here; shorten it")
    return ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pieces:
    """How a text is divided into word pieces."""

    text: str

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        tokenizer = model.need_tokenizer()
        ids = tokenizer.encode_masked(checked(self.text))
        continues = tokenizer.continues_word()
        tokens = [tokenizer.tokens[number] for number in ids]
        return {
            "tokens": tokens,
            "ids": ids,
            "continues": [bool(continues[number]) for number in ids],
            "unknown": [number == tokenizer.unk_id for number in ids],
            "special": [number in tokenizer.special_ids for number in ids],
            "vocabulary": tokenizer.vocab_size,
            "read": model.config.longest_sequence,
        }


def _guessed(model: PretrainedModel, logits: np.ndarray, original: int, top_k: int) -> dict[str, Any]:
    """Return the best candidates for one mask from its logits [V], and how probable the original was."""
    tokenizer, shares = model.need_tokenizer(), softmax(logits)
    best = candidates(logits[None], tokenizer, min(top_k, tokenizer.vocab_size))[0]
    return {
        "original": tokenizer.tokens[original],
        "probability": float(shares[original]),
        "rank": 1 + int((logits > logits[original]).sum()),
        "entropy": float(entr(shares).sum()),
        "candidates": [dataclasses.asdict(each) for each in best],
    }


def _check_top(top_k: int) -> None:
    if not 1 <= top_k <= MOST_CANDIDATES:
        raise UserError(f"top_k={top_k} must be from 1 to {MOST_CANDIDATES}")


def _check_places(places: list[int], count: int) -> None:
    if not places or not all(0 <= place < count for place in places) or len(set(places)) < len(places):
        raise UserError(f"the places to mask are {places!r:.60}; give one or more of 0 to {count - 1}, each once")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masks:
    """What a model writes in place of word pieces, by their places in the text."""

    text: str
    places: list[int]
    top_k: int = 8

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        _check_top(self.top_k)
        tokenizer, ids = model.need_tokenizer(), pieces_of(model, self.text)
        _check_places(self.places, len(ids))
        hidden = [tokenizer.mask_id if place in self.places else number for place, number in enumerate(ids)]
        places = [place for place, number in enumerate(hidden) if number == tokenizer.mask_id]
        (logits,) = mask_logits(model, [assembled(tokenizer, hidden)])
        found = {place: _guessed(model, row, ids[place], self.top_k) for place, row in zip(places, logits, strict=True)}
        return {"masks": [{"place": place, **found[place]} for place in sorted(self.places)]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sides:
    """A word piece predicted from both sides, and from what is left of it alone."""

    text: str
    place: int
    top_k: int = 8

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        _check_top(self.top_k)
        tokenizer, ids = model.need_tokenizer(), pieces_of(model, self.text)
        _check_places([self.place], len(ids))
        both, types = assembled(tokenizer, ids)
        at = self.place + (0 if tokenizer.class_last else 1)
        before = int((both[:at] == tokenizer.mask_id).sum())  # masks of the text itself
        both[at] = tokenizer.mask_id
        read = [(both, types), (both[: at + 1], types[: at + 1])]  # the second ends with the mask
        found = [_guessed(model, logits[before], ids[self.place], self.top_k) for logits in mask_logits(model, read)]
        tokens = [[tokenizer.tokens[number] for number in row] for row, _ in read]
        return {"both": {"read": tokens[0], **found[0]}, "left": {"read": tokens[1], **found[1]}, "place": at}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextSentences:
    """Pairs of sentences of a paragraph: a coin decides whether the second is the next one or any other."""

    text: str
    seed: int = 0

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        sentences = make_splitter("split")(lines_of(self.text, MOST_LINES, "paragraph"))
        if not 3 <= len(sentences) <= MOST_LINES:
            raise UserError(
                f"the paragraph has {len(sentences)} sentences; give 3 to {MOST_LINES}, so that others can be drawn"
            )
        draw, pairs = random.Random(self.seed), []
        for number in range(min(len(sentences) - 1, 8)):
            others = [other for other in range(len(sentences)) if other not in (number, number + 1)]
            is_next = draw.random() < 0.5
            pairs.append((number, number + 1 if is_next else draw.choice(others), is_next))
        texts = [(sentences[first], sentences[second]) for first, second, _ in pairs]
        shares = model.next_sentence([first for first, _ in texts], [second for _, second in texts])
        found = [
            {"first": first, "second": second, "is_next": is_next, "probability": share}
            for (first, second), (_, _, is_next), share in zip(texts, pairs, shares, strict=True)
        ]
        right = sum((each["probability"] > 0.5) == each["is_next"] for each in found)
        return {"pairs": found, "right": right}


def _embedding_parts(model: PretrainedModel, ids: np.ndarray, types: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the first layer's input is the sum of, before norm and projection: [L, E] by name."""
    tables = model.params["embeddings"]
    parts = {"word": np.asarray(tables["word"]["table"])[ids]}
    if "position" in tables:
        padding = getattr(model.config, "padding_id", None)  # its row comes first, then those of tokens
        first = 0 if padding is None else padding + 1
        parts["position"] = np.asarray(tables["position"]["table"])[first + np.arange(len(ids))]
    if "token_type" in tables:
        parts["segment"] = np.asarray(tables["token_type"]["table"])[types]
    if len(parts) > 1:
        parts["sum"] = np.sum(list(parts.values()), axis=0)
    return parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Journey:
    """The vectors of the tokens of a text, from the tables of the embeddings to the last layer."""

    text: str

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        pieces_of(model, self.text, MOST_PIECES)
        found = model.encode([self.text], layers="all")
        start, before = units(found.hidden_states[0][0]), None
        ids, types = found.input_ids[0], found.token_type_ids[0]
        stages = [
            {"name": f"{name} embedding" if name != "sum" else "sum of the embeddings", **_drawn(values)}
            for name, values in _embedding_parts(model, ids, types).items()
        ]
        for number, (states,) in enumerate(found.hidden_states):
            stage = {"name": f"after layer {number}" if number else "input of layer 1", **_drawn(states)}
            stage["to_start"] = plain((units(states) * start).sum(axis=1))
            stage["to_before"] = None if before is None else plain((units(states) * before).sum(axis=1))
            stages.append(stage)
            before = units(states)
        return {"tokens": found.tokens[0], "stages": stages, "width": int(found.hidden_states[0].shape[-1])}


def _drawn(states: np.ndarray) -> dict[str, Any]:
    """Return the first values of vectors [L, H], and their lengths."""
    return {"values": plain(states[:, :STRIP]), "norms": plain(np.linalg.norm(states, axis=1))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention of all heads of a layer in a text or pair, and how spread that of every head is."""

    text: str
    second: str = ""
    layer: int = 0

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        if not 0 <= self.layer < max(model.config.num_layers, 1):
            raise UserError(f"layer={self.layer} must be from 0 to {model.config.num_layers - 1}")
        first, most = pieces_of(model, self.text, MOST_PIECES), min(MOST_PIECES, model.config.longest_sequence)
        pair = checked(self.second, "second text") if self.second.strip() else None
        second = None if pair is None else model.need_tokenizer().encode_masked(pair)
        if (size := sequence_length(model.need_tokenizer(), first, second)) > most:
            raise UserError(f"the two texts have {size} tokens with [CLS] and [SEP] and may have {most}; shorten them")
        maps = attention(model, self.text, pair, max_length=most)
        entropies = entr(maps.weights).sum(axis=-1)
        return {
            "tokens": maps.tokens,
            "segments": maps.segments,
            "weights": plain(maps.weights[self.layer]),
            "entropies": plain(entropies[self.layer]),
            "heads": plain(entropies.mean(axis=-1)),
            "most": math.log(len(maps.tokens)),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Senses:
    """The vectors of one word in several sentences, by layer."""

    word: str
    text: str

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        word, lines = checked(self.word, "word").strip(), lines_of(self.text, MOST_LINES, "list of sentences")
        finder, wanted, tokenizer = WordFinder.of(model), single_word(model, word), model.need_tokenizer()
        room, texts = model.config.longest_sequence - 2, []
        for line in lines:
            ids = np.array(tokenizer.encode(line)[:room], np.int64)
            if any(spelled(ids, span) == wanted for span in finder.find(ids)):
                texts.append(line)
        if not 2 <= len(texts) <= MOST_CONTEXTS:
            raise UserError(f"{word!r} is in {len(texts)} of the {len(lines)} lines; give 2 to {MOST_CONTEXTS} with it")
        found = word_senses(model, word, texts)
        table = np.asarray(model.params["embeddings"]["word"]["table"])
        static = units(np.stack([table[list(wanted)].mean(axis=0)] * len(texts)))
        different = ~np.eye(len(texts), dtype=bool)
        return {
            "word": word,
            "texts": texts,
            "left_out": len(lines) - len(texts),
            "static": plain((static @ static.T)[different].mean()),
            "means": plain(found.cosines[:, different].mean(axis=1)),
            "baseline": plain(found.baseline),
            "cosines": plain(found.cosines),
            "maps": [plain(scaled_map(np.maximum(2 - 2 * each, 0.0))) for each in found.cosines],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The lines of a text, the nearest to a query first."""

    query: str
    text: str

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        query, lines = checked(self.query, "query"), lines_of(self.text, MOST_LINES, "list of lines")
        form, normalize = FORMS[model.vector_form], True if model.vector_form == "single" else None
        of_query = model.embed([query], prompt="query", normalize=normalize)
        of_lines = model.embed(lines, prompt="document", normalize=normalize)
        scores = form.scores(of_query, of_lines)
        order = np.argsort(-scores, kind="stable")
        return {
            "hits": [{"score": float(scores[number]), "text": lines[number]} for number in order],
            "measure": "cosine" if model.vector_form == "single" else "score",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """The way of documents into training examples: sentences, pieces, pairs and masks."""

    text: str
    seed: int = 0
    again: int = 0
    """Number of the drawing of masks, for the same pairs."""
    length: int = 48
    unit: MaskUnit = "token"

    def answer(self, model: PretrainedModel) -> dict[str, Any]:
        most = min(128, model.config.longest_sequence)
        if not 8 <= self.length <= most:
            raise UserError(f"length={self.length} must be from 8 to {most}")
        if not 0 <= self.again < 2**31 or not 0 <= self.seed < 2**31:
            raise UserError(f"seed={self.seed} and again={self.again} must be from 0 to {2**31 - 1:,}")
        tokenizer, payload = model.need_tokenizer(), checked(self.text).encode()
        options = Options(sentences="split", language="en", text_field="text", bad_utf8="error")
        encoder = Encoder(tokenizer, make_splitter("split"), TextReader(options))
        end = Position(len(payload))
        block = Block(Source("text", "text", len(payload), ""), Position(), end, payload, len(payload))
        documents = [sentences for lines in encoder.read(block).pieces if (sentences := encoder.split(lines))]
        encoded = encoder(block)
        if not encoded.tokens.size:
            raise UserError("the text has no word piece; type some words")
        store = MemoryStore(
            tokenizer, encoded.tokens, encoded.sentence_lengths, encoded.piece_lengths[encoded.piece_lengths > 0]
        )
        shown = [
            [
                {"text": sentence, "pieces": [tokenizer.tokens[number] for number in ids]}
                for sentence, ids in zip(sentences, tokenizer.encode_words(sentences), strict=True)
            ]
            for sentences in documents
        ]
        return {"documents": shown, **self._examples(model, store)}

    def _examples(self, model: PretrainedModel, store: MemoryStore) -> dict[str, Any]:
        tokenizer, objective, masking = model.need_tokenizer(), MaskedWords(), MaskingConfig(unit=self.unit)
        examples = StoreExamples(
            store,
            tokenizer,
            _phase(self.length, objective, masking),
            DataConfig(),
            masking,
            objective,
            "all",
            self.seed,
        )
        count = examples.num_examples(0)
        indices = np.arange(min(count, MOST_ROWS))
        epochs = np.zeros(len(indices), np.int64)
        rows, batch = examples.rows(epochs, indices), examples.examples_at(epochs, indices, self.again)
        assert rows.labels is not None, "pairs of the next sentence have labels"
        return {
            "examples": [
                {
                    "is_next": int(rows.labels[row]) == 0,
                    "cut": int(rows.truncated[row]),
                    "places": self.length,
                    "tokens": _tokens(batch, row, tokenizer.tokens, tokenizer.mask_id, tokenizer.special_ids),
                }
                for row in range(len(indices))
            ],
            "count": count,
            "shares": [masking.rate, masking.mask_share, masking.random_share],
        }


def _phase(length: int, objective: MaskedWords, masking: MaskingConfig) -> Phase:
    """Return a phase of which only the length of its rows and the number of its predictions say anything here."""
    return Phase(
        index=0,
        begin=0,
        steps=1,
        sequence_length=length,
        batch_size=MOST_ROWS,
        micro_batches=1,
        max_predictions=objective.predictions(length, None, masking.rate),
        learning_rate=0.0,
        schedule_begin=0,
        schedule_length=1,
        warmup_steps=0,
        resets_moments=False,
        packed=False,
        data_seed=0,
    )


def _tokens(
    batch: dict[str, np.ndarray], row: int, names: list[str], mask_id: int, special_ids: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Return the tokens of a training row: what is there, in which segment, and what became of those predicted."""
    used = batch["masked_weights"][row] > 0
    places, ids = (batch[name][row, used].tolist() for name in ("masked_positions", "masked_ids"))
    originals, found = dict(zip(places, ids, strict=True)), []
    for place in range(int(batch["attention_mask"][row].sum())):
        token = int(batch["input_ids"][row, place])
        each: dict[str, Any] = {"token": names[token], "segment": int(batch["token_type_ids"][row, place])}
        if place in originals:
            original = originals[place]
            each |= {"original": names[original], "became": replacement(token, original, mask_id)}
        elif token in special_ids:
            each["special"] = True
        found.append(each)
    return found


Demonstration = Pieces | Masks | Sides | NextSentences | Journey | Attention | Senses | Neighbours | Preparation
DEMONSTRATIONS: dict[str, type[Demonstration]] = {
    "pieces": Pieces,
    "masks": Masks,
    "sides": Sides,
    "next": NextSentences,
    "journey": Journey,
    "attention": Attention,
    "senses": Senses,
    "neighbours": Neighbours,
    "preparation": Preparation,
}
"""The questions by their names in the address."""


def lacking(model: PretrainedModel) -> dict[str, str]:
    """Return why a model cannot answer a question, in a sentence, by the name of the question; "" if it can."""

    def has(part: str, words: str) -> None:
        if part not in model.network.parts:
            raise UserError(f"its checkpoint has no {words}, which pre-training makes and most fine-tuned models drop")

    def fills() -> None:
        has("mlm", "head for masked words")
        check_fills_masks(model)

    def has_segments() -> None:
        has("pooler", "pooler")
        has("next_sentence", "head for next sentences")
        if model.config.type_vocab_size == 1:
            raise UserError("this model has one segment and cannot read pairs")

    def attends() -> None:
        if reason := model.network.encoder_layers.no_attention:
            raise UserError(f"{reason} and have no attention")

    checks: dict[str, tuple[Callable[[], Any], ...]] = dict.fromkeys(DEMONSTRATIONS, (model.need_tokenizer,))
    for name, check in {
        "masks": fills,
        "sides": fills,
        "next": has_segments,
        "attention": attends,
    }.items():
        checks[name] = (*checks[name], check)
    return {name: _reason(each) for name, each in checks.items()}


def _reason(checks: tuple[Callable[[], Any], ...]) -> str:
    try:
        for check in checks:
            check()
    except UserError as error:
        return str(error)
    return ""


def described(model: PretrainedModel) -> dict[str, Any]:
    """Return what the page says of a model, and what it lacks."""
    config, tokenizer = model.config, model.tokenizer
    return {
        "layers": config.num_layers,
        "heads": config.attention_heads,
        "width": config.hidden_size,
        "read": config.longest_sequence,
        "vocabulary": None if tokenizer is None else tokenizer.vocab_size,
        "kind": None if tokenizer is None else tokenizer.kind,
        "mask": None if tokenizer is None else tokenizer.tokens[tokenizer.mask_id],
        "left_to_right": config.predicts_ahead > 0,
        "lacking": lacking(model),
    }
