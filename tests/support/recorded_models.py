"""Small models of transformers that an oracle has recorded: the same on both sides of a comparison.

A case has a class, its config.json, inputs and parameters, all drawn by NumPy alone. The scripts of oracles/ give them
to transformers and store what it computes, and the names and shapes of what it saves; tests of formats/ write the
directory that it would have saved.
"""

import dataclasses
import functools
import json
import math
import pathlib
import tempfile
import zlib

import numpy as np
import random_bert
import safetensors.numpy

ORACLES = pathlib.Path(__file__).parents[1] / "oracles"


@dataclasses.dataclass(frozen=True)
class Case:
    """A class of transformers with the number of real tokens of each row, negative where padding is on the left."""

    oracle: str
    name: str
    of_class: str
    config: dict
    real: tuple[int, ...]
    choices: int = 0
    """Rows of a question."""
    targets: tuple[tuple[int, ...], ...] = ()
    """Places of each row that an XLNet predicts."""
    owner: str = ""
    """Cases of one owner have the same parameters; without one, all that have a name and shape in common."""
    drawn_below: str = ""
    """What stands before the names in a file in the names that parameters are drawn for."""

    @property
    def id(self) -> str:
        return f"{self.oracle}/{self.name}"

    @functools.cached_property
    def mask(self) -> np.ndarray:
        """Bool [rows, length]: which tokens are real."""
        length, real = max(map(abs, self.real)), np.array(self.real)[:, None]
        return np.where(real > 0, np.arange(length) < real, np.arange(length) >= length + real)

    def stored(self, key: str) -> np.ndarray:
        """What the oracle has recorded."""
        return recorded(self.oracle)[f"{self.name}/{key}"]

    def has(self, key: str) -> bool:
        return f"{self.name}/{key}" in recorded(self.oracle)

    def numbered(self, key: str) -> list[np.ndarray]:
        """The arrays `key/0`, `key/1`, …"""
        return [self.stored(f"{key}/{i}") for i in range(99) if self.has(f"{key}/{i}")]

    def config_json(self) -> dict:
        """As transformers writes it, or as far as a case says it."""
        return json.loads(str(self.stored("config"))) if self.has("config") else self.config

    def state(self) -> dict[str, np.ndarray]:
        """Every array by its name there."""
        return self.draw(json.loads(str(self.stored("shapes"))))

    def draw(self, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
        return {name: value(self.drawn_below + name, tuple(shape), self.owner) for name, shape in shapes.items()}

    def save(self, directory: pathlib.Path, **changes) -> pathlib.Path:
        """Write the directory that transformers would have saved; None removes a key of config.json."""
        kept = {key: value for key, value in (self.config_json() | changes).items() if value is not None}
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(kept))
        safetensors.numpy.save_file(self.state(), directory / "model.safetensors", {"format": "pt"})
        return directory

    def inputs(self) -> dict[str, np.ndarray]:
        """input_ids, token_type_ids and attention_mask, int32 [rows, length]."""
        seed, first = DRAWN[self.oracle]
        random, mask, pad = np.random.RandomState(seed), self.mask, self.config.get("pad_token_id", 0)
        ids = np.where(mask, random.randint(first + pad, self.config["vocab_size"], mask.shape), pad)
        values = {"input_ids": ids, "token_type_ids": self._types(random), "attention_mask": mask}
        return {key: value.astype(np.int32) for key, value in values.items()}

    def _types(self, random: np.random.RandomState) -> np.ndarray:
        kinds, column = self.config.get("type_vocab_size", 0), np.arange(self.mask.shape[1])
        if self.oracle == "nomic_bert":
            return (column >= 3) & self.mask
        if self.oracle == "deberta":
            return random.randint(0, max(1, kinds), self.mask.shape) * self.mask
        if self.oracle == "xlnet":
            return np.where(self.mask, np.where(column == len(column) - 1, 2, column >= 4), 3)
        types = np.zeros(self.mask.shape, int)
        if self.oracle == "smaller_encoders" and self.config["model_type"] != "distilbert":
            types = (column >= 3) & self.mask
        if self.oracle == "roberta" and kinds > 1:
            types[2, 5:10] = 1
        return types

    def given(self) -> dict[str, np.ndarray]:
        """What transformers is given: the inputs that it reads, and what follows of the order of targets."""
        values = self.inputs()
        if self.oracle.startswith(("modernbert", "eurobert", "mpnet")) or self.config.get("model_type") == "distilbert":
            del values["token_type_ids"]
        more = orders(self) if self.targets else {}
        return values | {name: more[name] for name in ("perm_mask", "target_mapping") if more}

    def asked(self, batch: dict) -> dict:
        """Rows of arrays as the class reads them: [questions, choices, length] where it chooses."""
        if not self.choices:
            return batch
        return {key: value.reshape(-1, self.choices, value.shape[-1]) for key, value in batch.items()}

    def defined(self, shape: tuple[int, ...]) -> np.ndarray | tuple:
        """Index of the outputs of this shape that are defined: what padding gets, nobody defines."""
        if shape[:2] == self.mask.shape:
            return self.mask
        read_first = self.oracle == "roberta"  # some of its heads read the first token, and that of one row is padding
        return np.s_[:] if not read_first else np.s_[:, :3] if self.choices else np.s_[:3]

    def weights(self, shape: tuple[int, ...]) -> np.ndarray:
        """Factors of outputs of this shape in a sum whose gradients are compared; 0 at padding."""
        found = np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
        if shape[:2] == self.mask.shape:
            found[~self.mask] = 0
        return found


@functools.cache
def recorded(oracle: str) -> dict[str, np.ndarray]:
    return dict(np.load(ORACLES / f"{oracle}_oracle.npz"))


def value(name: str, shape: tuple[int, ...], owner: str = "") -> np.ndarray:
    """Values that depend on owner, name and shape alone: no bias of zero, no scale of a norm of one."""
    random = np.random.RandomState(zlib.crc32((f"{owner}/{name}" if owner else name).encode()))
    scale_of_norm = "norm" in name.lower() and name.endswith("weight")
    spread = 0.3 if owner or len(shape) == 1 else math.prod(shape[1:]) ** -0.5
    return (random.standard_normal(shape) * spread + scale_of_norm).astype(np.float32)


def _sizes(vocab: int, hidden: int, layers: int, heads: int, wide: int, positions: int, **more) -> dict:
    sizes = dict(vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads)
    return sizes | dict(intermediate_size=wide, max_position_embeddings=positions) | more


LABELS = {"id2label": {"0": "no", "1": "yes", "2": "so"}, "label2id": {"no": 0, "yes": 1, "so": 2}}
SCORE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
_PLAIN_LABELS = {"id2label": {str(i): f"LABEL_{i}" for i in range(3)}}
_PLAIN_SCORE = {"id2label": {"0": "LABEL_0"}, "problem_type": "regression"}
TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice", "Regression")

_ROBERTA = {
    "odd": _sizes(53, 15, 2, 3, 23, 16, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1),
    "segments": _sizes(61, 16, 3, 2, 21, 17, type_vocab_size=2, layer_norm_eps=1e-5, pad_token_id=3),
}
_SMALLER = {
    "bert": _sizes(53, 15, 2, 3, 23, 13, hidden_act="gelu_new"),
    "bert wider": _sizes(41, 18, 1, 2, 21, 17, type_vocab_size=3),
    "albert": _sizes(53, 15, 3, 3, 23, 13, embedding_size=7, hidden_act="gelu_new"),
    "albert unshared": _sizes(
        *(41, 16, 2, 2, 21, 17), embedding_size=16, num_hidden_groups=2, type_vocab_size=3, hidden_act="gelu_new"
    ),
    "distilbert": dict(
        vocab_size=53, dim=15, n_layers=2, n_heads=3, hidden_dim=23, max_position_embeddings=13, activation="gelu"
    ),
    "distilbert deeper": dict(
        vocab_size=41, dim=16, n_layers=3, n_heads=2, hidden_dim=21, max_position_embeddings=17, activation="gelu"
    ),
    "electra": _sizes(53, 15, 2, 3, 23, 13, embedding_size=7),
    "electra as wide": _sizes(41, 16, 3, 2, 21, 17, embedding_size=16, type_vocab_size=3),
}
_CLASSES = {
    "bert": ("MaskedLM", "NextSentencePrediction", *TASKS),  # huggingface_oracle.npz has BertForPreTraining, BertModel
    "albert": ("Model", "PreTraining", "MaskedLM", *TASKS),
    "distilbert": ("Model", "MaskedLM", *TASKS),
    "electra": ("Model", "PreTraining", "MaskedLM", *TASKS),
}
_PREFIXES = {"roberta": "Roberta", "bert": "Bert", "albert": "Albert", "distilbert": "DistilBert", "electra": "Electra"}


def _with_task(oracle: str, kind: str, size: str, task: str, config: dict, *real: int) -> Case:
    """A case of a size and a class, or of Regression, whose parameters are those of the size."""
    class_name = _PREFIXES[kind] + {"Model": "Model", "Regression": "ForSequenceClassification"}.get(task, f"For{task}")
    labels = _PLAIN_LABELS if "Classification" in task else _PLAIN_SCORE if task == "Regression" else {}
    name = f"{size}/{task}" if oracle != "roberta" or task == "Regression" else f"{size}/{class_name}"
    whole = {"model_type": kind, "architectures": [class_name], **config, **labels}
    choices = len(real) if task == "MultipleChoice" else 0
    return Case(oracle, name, class_name, whole, real, choices, owner=size)


def _roberta() -> list[Case]:
    """Rows: a full one, one padded at the end, a pair in the second half, and one with padding in front."""
    cases = []
    for size, config in _ROBERTA.items():
        length = config["max_position_embeddings"] - config["pad_token_id"] - 1
        for task in ("Model", "MaskedLM", *TASKS):
            case = _with_task("roberta", "roberta", size, task, config, length, 7, 10, 2 - length)
            case.config["hidden_act"] = "gelu"
            cases.append(dataclasses.replace(case, drawn_below="roberta." if task == "Model" else ""))
    return cases


def _smaller_encoders() -> list[Case]:
    """Rows: a full one with two segments, and two with padding."""
    sizes = [(size.split()[0], size, config) for size, config in _SMALLER.items()]
    return [
        _with_task("smaller_encoders", kind, size, task, config, config["max_position_embeddings"] - 2, 7, 4)
        for kind, size, config in sizes
        for task in _CLASSES[kind]
    ]


_YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 3.0, "original_max_position_embeddings": 10}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 200.0, "factor": 2.5}
_IDS = dict(pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
_LOCAL = _sizes(41, 12, 2, 3, 9, 16, local_attention=4, **_IDS)
_MEAN = _sizes(
    *(53, 24, 7, 2, 17, 40),
    **_IDS,
    **LABELS,
    local_attention=5,
    layer_types=["full_attention", "sliding_attention"] * 3 + ["full_attention"],
    rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
    norm_bias=True,
    attention_bias=True,
    mlp_bias=True,
    classifier_bias=True,
    hidden_activation="gelu_pytorch_tanh",
    classifier_activation="gelu_pytorch_tanh",
    classifier_pooling="mean",
    norm_eps=1e-3,
)
_EVERY_SECOND = _sizes(31, 10, 3, 1, 7, 16, local_attention=2, global_attn_every_n_layers=2, norm_bias=True, **_IDS)


def _modernbert() -> list[Case]:
    def case(name: str, task: str, config: dict, *real: int, **more) -> Case:
        return Case("modernbert", name, f"ModernBert{task}", config, real, **more)

    return [
        # as published, in small: rows beyond the window, both kinds of layers, heads of 10
        case("words", "ForMaskedLM", _sizes(61, 30, 5, 3, 23, 64, local_attention=6, **_IDS), 19, 11, 14),
        case("mean", "ForSequenceClassification", _MEAN, 9, 17),  # every option otherwise
        case(
            "first", "ForSequenceClassification", _sizes(41, 12, 2, 1, 9, 16, local_attention=2) | _IDS | LABELS, 7, 4
        ),
        case("yarn", "ForMaskedLM", _LOCAL | {"rope_parameters": {"full_attention": _YARN}}, 14, 9),
        # with these every class has two shapes
        case("states", "Model", _LOCAL, 7, 4),
        case("other states", "Model", _EVERY_SECOND, 5, 9),
        case("other words", "ForMaskedLM", _EVERY_SECOND, 9, 6),
        case("tags", "ForTokenClassification", _LOCAL | LABELS, 9, 5),
        case("other tags", "ForTokenClassification", _EVERY_SECOND | LABELS, 7, 9),
        case("answers", "ForQuestionAnswering", _LOCAL, 6, 8),
        case("other answers", "ForQuestionAnswering", _EVERY_SECOND, 9, 4),
        case("choices", "ForMultipleChoice", _LOCAL, 7, 4, 5, 6, choices=2),
        case("other choices", "ForMultipleChoice", _EVERY_SECOND, 5, 9, 4, 7, 8, 6, choices=3),
        case("score", "ForSequenceClassification", _LOCAL | SCORE, 7, 4),
        case("other score", "ForSequenceClassification", _EVERY_SECOND | SCORE, 5, 9),
    ]


def _modernbert_decoder() -> list[Case]:
    def case(name: str, task: str, config: dict, *real: int) -> Case:
        return Case("modernbert_decoder", name, f"ModernBertDecoder{task}", config, real)

    return [
        case("words", "ForCausalLM", _sizes(61, 30, 5, 3, 23, 64, local_attention=6, **_IDS), 19, 11, 14),
        case("every option", "ForCausalLM", _MEAN | {"local_attention": 6}, 9, 17),
        case("states", "Model", _LOCAL, 7, 4),
        case("other states", "Model", _EVERY_SECOND | {"local_attention": 4}, 5, 9),
        case("other words", "ForCausalLM", _EVERY_SECOND | {"local_attention": 4}, 9, 6),
    ]


_NOMIC = _sizes(61, 30, 3, 3, 23, 32)
_NARROW = _sizes(41, 12, 2, 2, 9, 16, hidden_act="gelu", layer_norm_eps=1e-3, type_vocab_size=3)
_NARROW |= {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}


def _nomic_bert() -> list[Case]:
    def case(name: str, task: str, config: dict, *real: int) -> Case:
        return Case("nomic_bert", name, f"NomicBert{task}", config, real)

    return [
        case("words", "ForMaskedLM", _NOMIC, 19, 11, 14),  # as published, in small
        case("texts", "ForSequenceClassification", _NARROW | LABELS, 9, 5),  # every option otherwise
        case("states", "Model", _NARROW, 7, 4),
        case("other states", "Model", _NOMIC, 5, 9),
        case("dynamic", "ForMaskedLM", _NARROW | {"rope_parameters": _DYNAMIC, "max_position_embeddings": 6}, 9, 6),
        case("other words", "ForMaskedLM", _NARROW, 9, 6),
        case("other texts", "ForSequenceClassification", _NOMIC | LABELS, 7, 5),
        case("score", "ForSequenceClassification", _NARROW | SCORE, 7, 4),
        case("other score", "ForSequenceClassification", _NOMIC | SCORE, 5, 9),
        case("tags", "ForTokenClassification", _NARROW | LABELS, 9, 5),
        case("other tags", "ForTokenClassification", _NOMIC | LABELS, 7, 9),
    ]


_EURO = _sizes(61, 24, 3, 6, 23, 64, num_key_value_heads=2, pad_token_id=0)
_EURO |= {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
_BIASED = _sizes(41, 16, 2, 2, 9, 16, hidden_act="gelu", rms_norm_eps=1e-3, attention_bias=True, mlp_bias=True)
_BIASED |= {"rope_parameters": _YARN, "pad_token_id": 0, "num_key_value_heads": 1}


def _eurobert() -> list[Case]:
    def case(name: str, task: str, config: dict, *real: int) -> Case:
        return Case("eurobert", name, f"EuroBert{task}", config, real)

    bos = {"classifier_pooling": "bos"}
    sharper = _YARN | {"attention_factor": 1.5, "beta_fast": 8, "beta_slow": 2}
    return [
        case("words", "ForMaskedLM", _EURO, 19, 11, 14),  # as published, in small
        case("texts", "ForSequenceClassification", _BIASED | LABELS | bos, 9, 15),  # every option otherwise
        # rows longer than those of the training
        case("dynamic", "ForMaskedLM", _EURO | {"rope_parameters": _DYNAMIC, "max_position_embeddings": 12}, 19, 8),
        case("yarn", "ForMaskedLM", _EURO | {"rope_parameters": sharper}, 19, 8),
        case("states", "Model", _BIASED, 7, 4),
        case("other states", "Model", _EURO, 5, 9),
        case("other words", "ForMaskedLM", _BIASED, 9, 6),
        case("other texts", "ForSequenceClassification", _EURO | LABELS | bos, 7, 5),
        case("score", "ForSequenceClassification", _BIASED | SCORE | bos, 7, 4),
        case("other score", "ForSequenceClassification", _EURO | SCORE | bos, 5, 9),
        case("tags", "ForTokenClassification", _BIASED | LABELS, 9, 5),
        case("other tags", "ForTokenClassification", _EURO | LABELS, 7, 9),
    ]


_RELATIVE = dict(relative_attention=True, pos_att_type=["c2p", "p2c"], pad_token_id=0)
_NEAR = _RELATIVE | _sizes(37, 12, 2, 3, 11, 12, position_biased_input=False)
_ABSOLUTE = _RELATIVE | _sizes(31, 10, 1, 2, 7, 14, type_vocab_size=2)  # with absolute positions and segments
_LARGER = _RELATIVE | _sizes(61, 30, 3, 3, 23, 64, position_biased_input=False)
_PUBLISHED = _LARGER | dict(  # as versions 2 and 3 were published, in small
    max_relative_positions=12, position_buckets=6, share_att_key=True, norm_rel_ebd="layer_norm"
)
_BUCKETS = {"position_buckets": 4, "share_att_key": True}
_SEGMENTS = dict(pos_att_type=["c2p"], type_vocab_size=2, hidden_act="gelu_new", layer_norm_eps=1e-3)
_TAGS = dict(pos_att_type=["p2c"], position_biased_input=False)
_EVERY_OPTION = dict(position_buckets=7, type_vocab_size=3, pooler_hidden_act="tanh", position_biased_input=True)
_ANSWERS = dict(pos_att_type=["p2c"], norm_rel_ebd="layer_norm", position_biased_input=False)


def _deberta() -> list[Case]:
    def first(name: str, task: str, config: dict, *real: int) -> Case:
        return Case("deberta", name, f"Deberta{task}", {"max_relative_positions": 4} | config, real)

    def later(name: str, task: str, config: dict, *real: int, **more) -> Case:
        return Case("deberta", name, f"DebertaV2{task}", config, real, **more)

    texts, tags, answers = (f"For{task}" for task in TASKS[:3])
    return [
        # as version 1 was published, in small: rows beyond its distances, three heads of 10
        first("first", "ForMaskedLM", _LARGER | {"max_relative_positions": 5}, 19, 11, 14),
        # one term, absolute positions too, segments, another activation
        Case(
            "deberta",
            "segments",
            f"Deberta{texts}",
            _RELATIVE | LABELS | _sizes(41, 14, 2, 2, 17, 16) | _SEGMENTS,
            (9, 13),
        ),
        Case("deberta", "tags", f"Deberta{tags}", _RELATIVE | LABELS | _sizes(37, 9, 1, 3, 11, 12) | _TAGS, (7, 4)),
        # as version 3 was published, in small: rows beyond its buckets, and the other names of the head
        later("third", "ForMaskedLM", _PUBLISHED | {"legacy": False}, 21, 12, 5),
        # every option otherwise, and an odd number of buckets
        later("second", texts, _RELATIVE | LABELS | _sizes(41, 14, 2, 2, 17, 32) | _EVERY_OPTION, 25, 17),
        later("answers", answers, _RELATIVE | _sizes(37, 12, 1, 4, 11, 9) | _ANSWERS, 9, 5),
        # as v2-xlarge was published, in small
        later("convolved", "ForMaskedLM", _PUBLISHED | {"conv_kernel_size": 3, "conv_act": "gelu"}, 21, 12, 2),
        # wider than some texts, and the activation that a file without conv_act means
        later("convolved texts", texts, _ABSOLUTE | _BUCKETS | LABELS | {"conv_kernel_size": 7}, 9, 3, 7),
        # with these every class has two shapes
        first("states of the first", "Model", _NEAR, 7, 4),
        first("other states of the first", "Model", _ABSOLUTE, 5, 9),
        first("other words of the first", "ForMaskedLM", _ABSOLUTE, 9, 5),
        first("other texts of the first", texts, _NEAR | LABELS, 7, 5),
        first("score of the first", texts, _NEAR | SCORE, 7, 4),
        first("other score of the first", texts, _ABSOLUTE | SCORE, 6, 9),
        first("other tags of the first", tags, _ABSOLUTE | LABELS, 9, 7),
        first("answers of the first", answers, _NEAR, 8, 5),
        first("other answers of the first", answers, _ABSOLUTE, 5, 7),
        later("states", "Model", _NEAR, 7, 4),
        later("other states", "Model", _ABSOLUTE | _BUCKETS, 6, 9),
        later("other words", "ForMaskedLM", _ABSOLUTE | _BUCKETS, 9, 5),
        later("other words of one layer", "ForMaskedLM", _NEAR | {"num_hidden_layers": 1}, 9, 5),
        later("other texts", texts, _NEAR | LABELS, 7, 5),
        later("score", texts, _NEAR | SCORE, 7, 4),
        later("other score", texts, _ABSOLUTE | _BUCKETS | SCORE, 5, 9),
        later("tags of the second", tags, _NEAR | LABELS, 6, 8),
        later("other tags", tags, _ABSOLUTE | _BUCKETS | LABELS, 9, 7),
        later("other answers", answers, _ABSOLUTE | _BUCKETS, 7, 9),
        later("choices", "ForMultipleChoice", _NEAR, 7, 4, 5, 6, choices=2),
        later("other choices", "ForMultipleChoice", _ABSOLUTE | _BUCKETS, 5, 9, 4, 7, 8, 6, choices=3),
    ]


_MPNET = _sizes(61, 30, 3, 3, 23, 40, layer_norm_eps=1e-5)
_NARROW_MPNET = _sizes(41, 14, 2, 2, 11, 24)


def _mpnet() -> list[Case]:
    def case(name: str, task: str, config: dict, *real: int, **more) -> Case:
        return Case("mpnet", name, f"MPNet{task}", {"pad_token_id": 1} | config, real, **more)

    texts, tags, answers = (f"For{task}" for task in TASKS[:3])
    return [
        case("words", "ForMaskedLM", _MPNET, 37, 20, -9),  # beyond the distances that have a bucket each
        case("texts", texts, _MPNET | LABELS, 26, 7),
        case("states", "Model", _NARROW_MPNET, 19, 6),
        case("other states", "Model", _MPNET, 8, 13),
        case("other words", "ForMaskedLM", _NARROW_MPNET, 9, 15),
        case("other texts", texts, _NARROW_MPNET | LABELS, 7, 21),
        case("score", texts, _NARROW_MPNET | SCORE, 9, 12),
        case("tags", tags, _NARROW_MPNET | LABELS, 10, 17),
        case("answers", answers, _NARROW_MPNET, 18, 5),
        case("choices", "ForMultipleChoice", _NARROW_MPNET, 11, 7, 9, 5, choices=2),
    ]


DECODED = ("deberta/first", "deberta/third", "deberta/convolved", "deberta/other words of one layer")
"""The cases of which there are also the states of the enhanced mask decoder, and the logits of the head on them."""
POSITIONS = "deberta.embeddings.position_embeddings.weight"


def absolute_positions(config: dict) -> np.ndarray:
    """The decoder's table, float32 [positions, H]."""
    shape = config["max_position_embeddings"], config["hidden_size"]
    return np.random.RandomState(5).standard_normal(shape).astype(np.float32)


def logits_everywhere(model, case: Case) -> np.ndarray:
    """What a loaded model predicts at every position of the inputs of a case: float32 [rows, length, words]."""
    places = np.tile(np.arange(case.mask.shape[1], dtype=np.int32), (len(case.mask), 1))
    return model.mlm_logits(case.inputs() | {"masked_positions": places})


def save_published(case: Case, directory: pathlib.Path, **arrays: np.ndarray) -> pathlib.Path:
    """Write a DeBERTa for masked words with the decoder's table and the names that Microsoft published.

    `arrays`: further ones, by name; None leaves one out.
    """
    names = {"cls.predictions.transform.": "lm_predictions.lm_head.", "cls.predictions.": "lm_predictions.lm_head."}
    state = {POSITIONS: absolute_positions(case.config)}
    for name, values in case.state().items():
        old = next((old for old in names if name.startswith(old)), "")
        state[names.get(old, "") + name.removeprefix(old)] = values
    case.save(directory)
    state = {name: values for name, values in (state | arrays).items() if values is not None}
    safetensors.numpy.save_file(state, directory / "model.safetensors", {"format": "pt"})
    return directory


_ODD = dict(vocab_size=61, d_model=30, n_layer=3, n_head=3, d_inner=23)
_EVEN = dict(vocab_size=41, d_model=12, n_layer=2, n_head=2, d_inner=9, ff_activation="gelu_new", layer_norm_eps=1e-3)
_LEAST = dict(vocab_size=31, d_model=14, n_layer=1, n_head=2, d_inner=11)


def _xlnet() -> list[Case]:
    def case(name: str, task: str, config: dict, *real: int, **more) -> Case:
        return Case("xlnet", name, f"XLNet{task}", config, real, **more)

    return [
        # both streams, an odd length
        case("orders", "LMHeadModel", _ODD, 13, 8, 11, targets=((2, 3, 9), (4, 1, 6), (0, 10, 5))),
        case("words", "LMHeadModel", _EVEN, 7, 10),
        case("states", "Model", _EVEN, 7, 4),
        case("other states", "Model", _LEAST, -5, -9),
        case("texts", "ForSequenceClassification", _ODD | LABELS, -11, -5, -8),
        case("other texts", "ForSequenceClassification", _LEAST | LABELS, -6, -9),
        case("score", "ForSequenceClassification", _EVEN | SCORE, -7, -4),
        case("other score", "ForSequenceClassification", _LEAST | SCORE, -5, -9),
        case("tags", "ForTokenClassification", _EVEN | LABELS, 9, 5),
        case("other tags", "ForTokenClassification", _LEAST | LABELS, -7, -9),
        case("answers", "ForQuestionAnsweringSimple", _EVEN, 6, 8),
        case("other answers", "ForQuestionAnsweringSimple", _LEAST, 9, 4),
        case("choices", "ForMultipleChoice", _EVEN, -7, -4, -5, -6, choices=2),
        case("other choices", "ForMultipleChoice", _LEAST, -5, -9, -4, -7, -8, -6, choices=3),
    ]


MEMORY = {  # of some XLNets: lengths of the segments before the inputs, mem_len and reuse_len
    "xlnet/orders": {"before": (6,), "mem_len": None, "reuse_len": None},
    "xlnet/words": {"before": (7, 5), "mem_len": 9, "reuse_len": 4},
}


def segments(case: Case) -> list[dict[str, np.ndarray]]:
    """Inputs of consecutive segments without padding, of two kinds of tokens, and those of the case, the last."""
    random, found = np.random.RandomState(77), []
    for length in MEMORY[case.id]["before"]:
        ids = random.randint(3, case.config["vocab_size"], (len(case.real), length)).astype(np.int32)
        types = np.tile(np.arange(length, dtype=np.int32) % 2, (len(ids), 1))
        found.append({"input_ids": ids, "token_type_ids": types, "attention_mask": np.ones_like(ids)})
    return [*found, case.inputs()]


def orders(case: Case) -> dict[str, np.ndarray]:
    """int32 order [rows, length] and targets [rows, M], and float32 what follows of them, written out.

    perm_mask [rows, length, length] is 1 where the row's token must not see the column's; and target_mapping.
    """
    order, targets = np.zeros(case.mask.shape, np.int32), np.array(case.targets, np.int32)
    for row, places in enumerate(targets):
        order[row, places] = 1 + np.arange(len(places))  # in the order in which they are given
    order[0, 7] = 5  # one that is not predicted and has its place after all targets
    (rows, length), count = order.shape, targets.shape[1]
    hidden, mapping = (np.zeros((rows, size, length), np.float32) for size in (length, count))
    for row in range(rows):
        for i in range(length):
            for j in range(length):
                # transformers lets every token see itself in the content stream, whatever this says
                hidden[row, i, j] = order[row, j] >= order[row, i] > 0 or order[row, j] > order[row, i] == 0
        mapping[row, np.arange(count), targets[row]] = 1
    return {"order": order, "targets": targets, "perm_mask": hidden, "target_mapping": mapping}


DRAWN = {
    "roberta": (7, 1),
    "smaller_encoders": (7, 1),
    "modernbert": (2024, 3),
    "modernbert_decoder": (2024, 3),
    "nomic_bert": (2026, 3),
    "eurobert": (2025, 3),
    "deberta": (2021, 3),
    "mpnet": (2020, 1),
    "xlnet": (2024, 3),
}
"""Seed of the words of each oracle, and the first word after that of padding."""
CASES = {
    case.id: case
    for cases in (
        *(_roberta, _smaller_encoders, _modernbert, _modernbert_decoder, _nomic_bert, _eurobert, _deberta, _xlnet),
        _mpnet,
    )
    for case in cases()
}


def cases_of(oracle: str) -> list[Case]:
    return [case for case in CASES.values() if case.oracle == oracle]


PLACES = np.array([[1, 8], [2, 5], [0, 9], [3, 10]], np.int32)
"""Where the masked-language model of a RoBERTa predicts words: all real tokens."""


def words(case: Case) -> np.ndarray:
    """Those words."""
    return np.random.RandomState(11).randint(4, case.config["vocab_size"], (4, 2)).astype(np.int32)


def logits_of(output):
    """What a class of transformers says: starts and ends of answers side by side, of a bare encoder its states."""
    import torch

    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.logits if "logits" in output else output.last_hidden_state


def saved_shapes(model) -> dict[str, list[int]]:
    """Name and shape of every array that save_pretrained of transformers writes."""
    return {name: list(values.shape) for name, values in sorted(_saved(model).items())}


def _saved(model) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return safetensors.numpy.load_file(f"{directory}/model.safetensors")


def gradients_of(model, names) -> np.ndarray:
    """float32 [names, 1 + SAMPLES]: norm and samples of each parameter's gradient, by name; 0 of unused ones.

    Where a file has other names than the modules, the gradients take the place of the parameters.
    """
    parameters = dict(model.named_parameters())
    if not {*names} <= {*parameters}:
        for parameter in parameters.values():
            parameter.data = parameter.data * 0 if parameter.grad is None else parameter.grad
        arrays = _saved(model)
        return np.float32([random_bert.sample(arrays[name], name) for name in sorted(names)])
    gradients = {name: parameters[name].grad for name in sorted(names)}
    arrays = {name: 0 if gradient is None else gradient.numpy() for name, gradient in gradients.items()}
    return np.float32([random_bert.sample(array, name) for name, array in arrays.items()])


ZERO = ("key.bias", "k_lin.bias", "pos_key_proj.bias", "attn.k.bias")
"""Ends of the names of parameters whose gradients are zero in exact arithmetic."""


def check_gradients(found: dict[str, np.ndarray], expected: np.ndarray) -> None:
    """Compare arrays with what `gradients_of` gave."""
    for (name, values), (norm, *samples) in zip(sorted(found.items()), expected, strict=True):
        if name.endswith(ZERO):
            assert np.abs(values).max() < 2e-5, name
            continue
        own_norm, *own = random_bert.sample(values, name)
        assert abs(own_norm - norm) <= 1e-4 * norm, name
        np.testing.assert_allclose(own, samples, atol=1e-4 * np.abs(values).max(), err_msg=name)


def record_all(oracle: str, record, path: list[str]) -> None:
    """Write what `record` returns for each case to the path that is given, or else to the oracle's own."""
    arrays = {f"{case.name}/{key}": array for case in cases_of(oracle) for key, array in record(case).items()}
    file = pathlib.Path(*path) if path else ORACLES / f"{oracle}_oracle.npz"
    np.savez_compressed(file, **arrays)
    print(f"{file.name}: {file.stat().st_size:,} bytes, {len(arrays)} arrays")


_PARTS = {
    "discriminator": ("ElectraForPreTraining", (53, 15, 2, 3, 23, 13)),
    "generator": ("ElectraForMaskedLM", (53, 6, 2, 2, 9, 13)),
}
PARTS = {
    part: {"model_type": "electra", "architectures": [of_class], **_sizes(*sizes, embedding_size=7)}
    for part, (of_class, sizes) in _PARTS.items()
}
"""config.json of the ELECTRA of replaced_tokens_oracle.npz."""
SHARED = "electra.embeddings."
"""Beginning of the names of tables and norm; embeddings_project is another module."""


def masked_batch() -> dict[str, np.ndarray]:
    """Three rows for it: a full one, and two with padding; the last has a slot that predicts nothing."""
    random, length = np.random.RandomState(7), 11
    real = np.arange(length) < np.array([length, 8, 6])[:, None]
    ids = np.where(real, random.randint(5, 53, real.shape), 0)
    places = np.array([[1, 4, 9], [2, 3, 6], [3, 0, 0]])
    weights = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 0]], np.float32)
    originals = np.where(weights > 0, np.take_along_axis(ids, places, 1), 0)
    masked = ids.copy()
    for row, slot in np.argwhere(weights > 0)[:-2]:  # the last two stay as they are
        masked[row, places[row, slot]] = 4
    arrays = {"input_ids": masked, "token_type_ids": np.zeros_like(ids), "attention_mask": real}
    arrays |= {"masked_positions": places, "masked_ids": originals}
    return {name: array.astype(np.int32) for name, array in arrays.items()} | {"masked_weights": weights}


def sample() -> np.ndarray:
    """Words in place of the masked ones, of which the second of each row happens to be the original."""
    words = np.random.RandomState(3).randint(5, 53, (3, 3)).astype(np.int32)
    words[:, 1] = masked_batch()["masked_ids"][:, 1]
    return words
