"""Definition of a model type of `transformers`: its names of arrays, and the keys of its config.json."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from etils import epath

from bert_jax.config import EncoderConfig, ModelConfig
from bert_jax.config.heads import HeadKind, HeadPooling
from bert_jax.config.model import OUTSIDE_THE_FUNCTION
from bert_jax.config.options import to_dict
from bert_jax.errors import UserError
from bert_jax.models.bert_parameters import OF_TEXTS

TASKS: dict[HeadKind, str] = {
    **dict.fromkeys(OF_TEXTS, "SequenceClassification"),
    "choice": "MultipleChoice",
    "span": "QuestionAnswering",
    "tagging": "TokenClassification",
}
_CLASSIFIER, _SPAN = {"head": "classifier"}, {"head": "qa_outputs"}
HEADS: dict[HeadKind, dict[str, str]] = {**dict.fromkeys(TASKS, _CLASSIFIER), "span": _SPAN}
OPENERS: dict[str, tuple[str, str | None]] = {
    "pretraining": ("AutoModelForPreTraining", "fill-mask"),
    "mlm": ("AutoModelForMaskedLM", "fill-mask"),
    "pairs": ("AutoModelForNextSentencePrediction", None),
    "replaced_tokens": ("AutoModelForPreTraining", None),
    "encoder": ("AutoModel", "feature-extraction"),
    **dict.fromkeys(OF_TEXTS, ("AutoModelForSequenceClassification", "text-classification")),
    "tagging": ("AutoModelForTokenClassification", "token-classification"),
    "span": ("AutoModelForQuestionAnswering", "question-answering"),
    "choice": ("AutoModelForMultipleChoice", "multiple-choice"),
}
PART_NAMES = {
    "pooler": "pooler",
    "mlm": "masked-language-model head",
    "next_sentence": "next-sentence head",
    "replaced_tokens": "replaced-token head",
    "mask_decoder": "positions of the enhanced mask decoder",
}

WRITTEN_ACTIVATIONS = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new", "silu": "silu", "relu_squared": "relu2"}
"""Ours → theirs."""
SIZES = {
    "vocab_size": ("vocab_size", 30_522),
    "hidden_size": ("hidden_size", 768),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 12),
    "intermediate_size": ("intermediate_size", 3_072),
    "max_position_embeddings": ("max_position_embeddings", 512),
    "type_vocab_size": ("type_vocab_size", 2),
}
SIZES_WITHOUT_TYPES = {key: size for key, size in SIZES.items() if key != "type_vocab_size"}
RATES = {
    "hidden_dropout_prob": ("hidden_dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
MLM_HEAD = {
    "mlm/dense": "cls.predictions.transform.dense",
    "mlm/norm": "cls.predictions.transform.LayerNorm",
    "mlm": "cls.predictions",
}
"""BERT's names of this head, which DeBERTa kept."""
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "embedding_size": (None,),
}


def usual(table: Mapping[str, tuple[str, Any]], **values: Any) -> dict[str, tuple[str, Any]]:
    """Return SIZES or RATES with other values where the key is absent from config.json."""
    return {key: (ours, values.get(key, value)) for key, (ours, value) in table.items()}


@dataclasses.dataclass(frozen=True)
class ModelType:
    """One value of `model_type` in config.json."""

    name: str
    family: str
    """The same in text, such as RoBERTa."""
    prefix: str
    """Beginning of the names of the encoder's arrays, with a dot; those of a bare encoder lack it."""
    modules: Mapping[str, str]
    """Our modules → theirs, with {} for the layer."""
    heads: Mapping[HeadKind, Mapping[str, str]]
    """Kind of task head → the modules that have other names then, "head" always among them."""
    class_name: str
    """Beginning of the names of their classes, such as Roberta."""
    decoder: str
    """Name of the output layer of the masked-language-model head: a second name of the word table and of a bias; "" if
    it has a table of its own."""
    obstacles: Callable[[EncoderConfig], tuple[str, ...]]
    """Returns the options of a model, such as "positions", whose values it does not have; (): it computes the same."""
    other_classes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Those of `classes` that are not named as the others are."""
    sizes: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=lambda: SIZES)
    """Key of config.json → field of EncoderConfig, and what `transformers` takes where the key is absent."""
    rates: Mapping[str, tuple[str, float]] = dataclasses.field(default_factory=lambda: RATES)
    """The same for numbers from 0 to 1."""
    unsupported: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=lambda: UNSUPPORTED)
    """Key → values that mean this model; with any other the directory is refused."""
    read_options: Callable[[dict[str, Any], epath.Path], dict[str, Any]] = lambda values, file: {}
    """Returns the further fields of EncoderConfig, from the contents of config.json, the file."""
    written_options: Callable[[Any], dict[str, Any]] = lambda model: {}
    """Returns the further contents of config.json."""
    arrays: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Our path → their name of an array that is not the weight or bias of a module, with {} for the layer; heads are an
    axis of their own in it, and the hidden features come before them."""
    fused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Last part of the name of a module there → number of our modules in it, which `modules` calls name:0, …"""
    by_head: Collection[str] = ()
    """Those of `fused` whose modules take turns head by head, instead of one following the other whole."""
    adjacent: Collection[str] = ()
    """Our modules whose rotary positions turn neighbouring features 2i and 2i + 1 of a head there, which ours turn as
    features i and i + D/2."""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """End of the name of an array there → what `modules` would call it."""
    also: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Beginning of a name that some directories have there → that of the same array in `modules`; read, not written."""
    older: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Key of config.json in older files → the key that means the same; read where the latter is absent."""
    activation: str = "hidden_act"
    """Key of the activation function in config.json; "" if there is none."""
    usual_activation: str = "gelu"
    """What `transformers` takes where that key is absent."""
    classifier_dropout: str = "classifier_dropout"
    """Key of the dropout rate on the input of a task head."""
    has_pooler: bool = True
    """Whether the class of a bare encoder with a pooler among `modules` has it unless told otherwise."""
    padded_to: tuple[int, ...] = ()
    """Multiples in addition to `stored.PADDED_TO` to which published models have rounded up the rows of their word
    table."""
    classifier_reads: Mapping[str, HeadPooling | None] = dataclasses.field(default_factory=dict)
    """Values of classifier_pooling in config.json → what a head of texts reads, None if it cannot do so here; empty if
    the file does not say it."""
    usual_reading: str = "cls"
    """What `transformers` takes where that key is absent."""
    remote_code: bool = False
    """Whether the classes are in Python files that their authors publish with a model, and not in `transformers`."""
    openers: Mapping[str, tuple[str, str | None]] = dataclasses.field(default_factory=lambda: OPENERS)
    """Key of `classes` → the Auto class that opens it, and its task on the hub, if the hub has one for it."""
    part_names: Mapping[str, str] = dataclasses.field(default_factory=lambda: PART_NAMES)
    """What a part of the parameter tree other than a task head is, in text."""
    doubt: Callable[[EncoderConfig, Collection[str]], str] = lambda model, names: ""
    """Returns why the words will be poor that the masked-language-model head of a directory with arrays of these names
    predicts; "" if there is no reason."""

    @property
    def classes(self) -> dict[str, str]:
        """Kind of task head, or "pretraining", "mlm", "pairs", "replaced_tokens" or "encoder" for models without one →
        their class."""
        tasks = {kind: f"{self.class_name}For{theirs}" for kind, theirs in TASKS.items() if kind in self.heads}
        names = {**tasks, **self.other_classes}
        usual = {"mlm": f"{self.class_name}ForMaskedLM", "encoder": f"{self.class_name}Model"}
        return names | {key: name for key, name in usual.items() if key not in names}

    @property
    def tied(self) -> dict[str, str]:
        """Second names of one array → the first."""
        if not self.decoder:
            return {}
        return {
            f"{self.decoder}.weight": f"{self.modules['embeddings/word']}.weight",
            f"{self.decoder}.bias": f"{self.modules['mlm']}.bias",
        }

    @property
    def layer_names(self) -> str:
        """Beginning of the names of all layers' arrays, before the number of the layer."""
        return self.modules["encoder/attention_norm"].partition("{}")[0]

    @property
    def layer(self) -> re.Pattern[str]:
        """Matches the names of a layer's arrays; its groups are its number, or those of its group and in it."""
        before = self.modules["encoder/attention_norm"].split("{}")[:-1]
        return re.compile("".join(rf"{re.escape(part)}(\d+)" for part in before) + r"\.")


OF_BERT = (
    *("hidden_size", "num_layers", "num_heads", "intermediate_size", "type_vocab_size"),
    *("activation", "layer_norm_epsilon", "norm_position", "padding_id"),
)
"""Options in which BERT, RoBERTa and their like differ."""


def unlike_bert(model: EncoderConfig) -> tuple[str, ...]:
    """Return the options whose values make an encoder different from BERT, RoBERTa and their like."""
    defaults = to_dict(type(model)()) | to_dict(ModelConfig())
    names = defaults.keys() - {*OUTSIDE_THE_FUNCTION, *OF_BERT}
    if isinstance(model, ModelConfig) and model.key_heads == model.num_heads:
        names -= {"key_value_heads"}  # as many as without it
    return tuple(name for name, value in to_dict(model).items() if name in names and value != defaults[name])


def beyond_bert(model: EncoderConfig, *differing: str) -> tuple[str, ...]:
    """Return the options other than these in which a model differs from BERT."""
    others = true_options(padding_id=model.padding_id is not None, norm_position=model.norm_position != "post")
    names = [name for name in (*unlike_bert(model), *others) if name not in differing]
    return tuple("disentangled.terms" if name == "disentangled" else name for name in names)


def true_options(**present: bool) -> tuple[str, ...]:
    """Return the names of those that are true."""
    return tuple(name for name, value in present.items() if value)


class Consulted(dict[str, Any]):
    """A JSON object that knows which of its keys were asked for."""

    def __init__(self, values: Mapping[str, Any]):
        super().__init__(values)
        self._asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._asked.add(key)
        return super().get(key, default)

    @property
    def others(self) -> dict[str, Any]:
        """What nobody asked for."""
        return {key: value for key, value in self.items() if key not in self._asked}


def flag(values: dict[str, Any], key: str, usual: bool, file: epath.Path) -> bool:
    """Return a value of a JSON object that must be true or false, `usual` where it is missing.

    Raises:
      UserError: it is something else; names `file`, which the object was read from.
    """
    found = values.get(key, usual)
    if not isinstance(found, bool):
        raise UserError(f"{file} has {key}={found!r:.40} where true or false is expected")
    return found


def whole(
    values: dict[str, Any],
    key: str,
    usual: int | None,
    file: epath.Path,
    wanted: str = "a positive whole number",
    least: int = 1,
) -> int:
    """Return a value of a JSON object that must be a whole number from `least` on, `usual` where it is missing.

    Raises:
      UserError: it is something else; names `file`, which the object was read from, and what is `wanted`.
    """
    found = values.get(key, usual)
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found < 2**31:
        raise UserError(f"{file} has {key}={found!r:.40} where {wanted} is expected")
    return found


def rate(values: dict[str, Any], key: str, usual: float, file: epath.Path) -> float:
    """Return the same of a number from 0 to 1."""
    found = values.get(key, usual)
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < 1:
        raise UserError(f"{file} has {key}={found!r:.40} where a number from 0 to 1 is expected")
    return float(found)


def sizes_and_rates(
    values: dict[str, Any],
    sizes: Mapping[str, tuple[str, int]],
    rates: Mapping[str, tuple[str, float]],
    file: epath.Path,
) -> dict[str, Any]:
    """Return fields of EncoderConfig from a JSON object and tables such as SIZES and RATES.

    Raises:
      UserError: a value is not of its kind, or the heads do not divide the hidden size; names `file`.
    """
    found: dict[str, Any] = {ours: whole(values, key, value, file) for key, (ours, value) in sizes.items()}
    found |= {ours: rate(values, key, value, file) for key, (ours, value) in rates.items()}
    if found["hidden_size"] % found["num_heads"]:
        raise UserError(
            f"{file} has hidden_size={found['hidden_size']}, not divisible by num_attention_heads={found['num_heads']}"
        )
    return found
