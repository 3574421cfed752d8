"""Read directories in the layout of Hugging Face `transformers`: config, arrays, vocabulary files.

Names, layouts and config.json values are translated in both directions, with checks. PyTorch stores a kernel as
[outputs, inputs] with the attention heads side by side, and every layer separately; bert_jax has [inputs, outputs]
with a separate axis for the heads, and all layers of an encoder in one array.
"""

import collections
import dataclasses
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from absl import logging
from etils import epath

from bert_jax.config import AttentionConfig, EncoderConfig, HeadConfig
from bert_jax.config.heads import Activation, TokenVectors
from bert_jax.config.options import from_dict
from bert_jax.errors import UserError, first_lines
from bert_jax.files import REMEDY, inside, read_object
from bert_jax.formats import safetensors_files, torch_files
from bert_jax.formats.model_types import model_type
from bert_jax.formats.model_types.bert import BERT
from bert_jax.formats.model_types.definition import (
    WRITTEN_ACTIVATIONS,
    Consulted,
    HeadKind,
    ModelType,
    flag,
    rate,
    sizes_and_rates,
)
from bert_jax.formats.safetensors_files import FileTensor
from bert_jax.formats.sentence_transformers import cross_encoder_activation, read_embedding, read_token_kernel
from bert_jax.formats.stored import PADDED_TO, PARTS, Place, StoredModel, place_of, without_padding
from bert_jax.models.bert_parameters import MODEL_PARTS, POOLED, TOKEN_VECTORS, bert_parameters, reads_pooler
from bert_jax.parameters import ParameterTable
from bert_jax.tokenization.directories import carried_settings
from bert_jax.tokenization.tokenizer import read_tokenizer

FILE = "config.json"
ACTIVATIONS: dict[str, Literal["gelu_erf", "gelu_tanh", "silu", "relu_squared"]] = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu_erf",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "silu": "silu",
    "relu2": "relu_squared",
}
"""Names of the activation there, with several for the exact form and for that of a hyperbolic tangent."""


@dataclasses.dataclass(frozen=True)
class HuggingFaceConfig:
    """A config.json: the model, and what it says about a task head."""

    kind: ModelType
    model: EncoderConfig
    architecture: str | None
    problem: str | None
    activation: str | None
    """What makes the answer of a CrossEncoder, as the file says it."""
    labels: tuple[str, ...]
    """Labels in the order of the columns; () if the file names none."""
    classifier_dropout: float
    tied: bool
    reading: str = ""
    """What a task head reads, as the file says it, if the model type leaves it open."""
    of_head: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the file says about a task head, as it says it; an export of a model without one has it again."""
    others: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What nothing here reads; an export has it again."""


WRITTEN_ANEW = (
    *("model_type", "architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "name_or_path"),
    *("auto_map", "tokenizer_class", "legacy", "label2id"),
)
"""Keys of config.json about the file itself, and of which our own files say what is true of them."""
MULTILABEL = "multi_label_classification"
"""Value of problem_type where a text may have several labels."""
CROSS_ENCODER, OLDER_ACTIVATION = "sentence_transformers", "sbert_ce_default_activation_function"
"""Key of what sentence-transformers says of a CrossEncoder, and that of its activation before version 4."""
CROSS_ENCODER_ACTIVATIONS: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}
_OF_HEAD = ("id2label", "label2id", "problem_type", "classifier_pooling", CROSS_ENCODER, OLDER_ACTIVATION)
WITHOUT_EFFECT = (
    *("bos_token_id", "cls_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id", "sep_token_id"),
    *("chunk_size_feed_forward", "gradient_checkpointing", "is_encoder_decoder", "output_attentions", "torchscript"),
    *("output_hidden_states", "output_past", "return_dict", "use_bfloat16", "use_cache", "use_return_dict"),
    *("finetuning_task", "id2label", "language", "max_length", "model_name", "num_labels", "prefix", "problem_type"),
    *("task_specific_params", "_attn_implementation", "attn_implementation", "_attn_implementation_autoset"),
    # Of Google's BERT and ALBERT.
    *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_type"),
    *("pooler_size_per_head", "down_scale_factor", "gap_size", "layers_to_keep", "net_structure_type"),
    *("num_memory_blocks",),
    # Of DistilBERT, whose table of positions is in the file whoever made it, ELECTRA and XLNet.
    *("qa_dropout", "sinusoidal_pos_embds", "tie_weights_", "summary_last_dropout", "end_n_top", "init", "init_range"),
    *("init_std", "mem_len", "n_token", "reuse_len", "start_n_top", "untie_r", "use_mems_eval", "use_mems_train"),
    # Of ModernBERT.
    *("deterministic_flash_attn", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
    *("initializer_cutoff_factor", "layer_norm_eps", "position_embedding_type", "reference_compile"),
    *("repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction"),
    # Of EuroBERT and NeoBERT.
    *("mask_token_id", "pretraining_tp", "classifier_init_range", "dim_head", "embedding_init_range", "kwargs"),
    *("pretrained_model_name_or_path", "trust_remote_code"),
)
"""Keys of config.json with which a trained model computes the same as without them; of others a warning tells."""


def read_config(directory: epath.Path) -> HuggingFaceConfig:
    """Read config.json; raise a UserError if it is broken or describes a model that is not known here."""
    file = inside(directory, FILE)
    given = read_object(file)
    kind = model_type(given, file)
    current = {key: value for key, value in given.items() if key not in kind.older}
    values = Consulted({kind.older[key]: given[key] for key in given.keys() - current.keys()} | current)
    for key, allowed in kind.unsupported.items():
        if values.get(key) not in allowed:
            raise UserError(
                f"{file} has {key}={values[key]!r:.60}, which a model of type {kind.name} does not have here; only "
                f"{allowed[-1]!r} is supported"
            )
    activation = values.get(kind.activation, kind.usual_activation)
    if activation not in tuple(ACTIVATIONS):
        raise UserError(f"{file} has {kind.activation}={activation!r:.40}; supported are {', '.join(ACTIVATIONS)}")
    numbers = sizes_and_rates(values, kind.sizes, kind.rates, file)
    dropout, reading = kind.classifier_dropout, values.get("classifier_pooling", kind.usual_reading)
    if kind.classifier_reads and reading not in tuple(kind.classifier_reads):
        raise UserError(f"{file} has classifier_pooling={reading!r:.40}; supported are {_readings(kind)}")
    architectures = values.get("architectures") or [None]
    found = HuggingFaceConfig(
        kind=kind,
        model=from_dict(
            EncoderConfig,
            {**numbers, "activation": ACTIVATIONS[activation], **kind.read_options(values, file)},
            "model.",
        ),
        architecture=architectures[0] if isinstance(architectures, list) else None,
        problem=values.get("problem_type"),
        activation=cross_encoder_activation(directory) or _activation(values),
        labels=_labels(values.get("id2label") or {}, file),
        reading=reading if kind.classifier_reads else "",
        tied=flag(values, "tie_word_embeddings", True, file),
        classifier_dropout=numbers["hidden_dropout"] if values.get(dropout) is None else rate(values, dropout, 0, file),
    )
    others = {key: value for key, value in values.others.items() if key not in WRITTEN_ANEW}
    if unknown := sorted(key for key, value in others.items() if value and key not in WITHOUT_EFFECT):
        logging.warning("%s has %s, which nothing here reads", file, first_lines(unknown, 5))
    if "auto_map" in values:
        logging.warning("%s names Python files (auto_map), which are not run; the model is read as %s", file, kind.name)
    of_head = {key: values[key] for key in (*_OF_HEAD, dropout) if key in values}
    return dataclasses.replace(found, of_head=of_head, others=others)


def _labels(names: Any, file: epath.Path) -> tuple[str, ...]:
    """Return the values of id2label in the order of its keys, which must be "0", "1", …"""
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{file} has id2label={names!r:.80} where an object from numbers to names is expected")
    keys = [str(number) for number in range(len(names))]
    if sorted(names) != sorted(keys):
        raise UserError(
            f"{file}: the keys of id2label must be 0 to {len(names) - 1}, found {', '.join(sorted(names))[:80]}"
        )
    return tuple(names[key] for key in keys)


def _activation(values: Consulted) -> str | None:
    """Return what sentence-transformers applies to the scores of a CrossEncoder, if the file says it."""
    said = values.get(CROSS_ENCODER)
    older = values.get(OLDER_ACTIVATION)
    found = said.get("activation_fn", older) if isinstance(said, dict) else older
    return None if found is None else str(found)


def _readings(kind: ModelType) -> str:
    return ", ".join(theirs for theirs, ours in kind.classifier_reads.items() if ours is not None)


def read_head(
    config: HuggingFaceConfig, outputs: int, kinds: Sequence[HeadKind], pooled: bool, file: epath.Path
) -> HeadConfig:
    """Return the head of a fine-tuned model.

    Args:
      outputs: number of rows of its kernel.
      kinds: those of the model type whose kernel has this name.
      pooled: whether the file has a pooler, which tagging and question answering do not have.
    """
    named: list[HeadKind] = [kind for kind in kinds if config.kind.classes[kind] == config.architecture]
    fitting: list[HeadKind] = sorted(kinds, key=lambda kind: (kind in POOLED) != pooled)
    kind = (named or fitting)[0]
    if kind == "classification" and config.problem == MULTILABEL:
        kind = "multilabel"
    elif kind == "classification" and (config.problem == "regression" or (outputs == 1 and config.problem is None)):
        kind = "regression"
    pooling = config.kind.classifier_reads.get(config.reading, "cls") if kind in POOLED else "cls"
    if pooling is None:
        raise UserError(f"{file} has classifier_pooling={config.reading!r:.40}; supported are {_readings(config.kind)}")
    labels = config.labels or tuple(f"LABEL_{number}" for number in range(outputs))
    named_activations: dict[str, Activation] = {theirs: ours for ours, theirs in CROSS_ENCODER_ACTIVATIONS.items()}
    if kind == "regression" and config.activation is not None and config.activation not in named_activations:
        raise UserError(
            f"{file} makes the answers of a CrossEncoder with {config.activation[:80]}; supported are "
            f"{' and '.join(named_activations)}"
        )
    head = HeadConfig(
        kind=kind,
        labels=labels if kind in ("classification", "multilabel", "tagging") else (),
        dropout=config.classifier_dropout,
        pooling=pooling,
        activation=named_activations[config.activation] if kind == "regression" and config.activation else "identity",
    )
    if head.outputs != outputs:
        raise UserError(
            f"{file} describes a head for {kind} with {head.outputs} outputs"
            + (f" ({', '.join(labels)[:80]})" if head.labels else "")
            + f", but the weights have {outputs}"
        )
    return head


def to_json(
    model: EncoderConfig, head: HeadConfig | None, architecture: str, pad_id: int, kind: ModelType = BERT
) -> dict[str, Any]:
    """Return the contents of a config.json that `transformers` reads as this model."""
    activation = WRITTEN_ACTIVATIONS[model.activation]
    values = {
        "model_type": kind.name,
        "architectures": [architecture],
        "dtype": "float32",
        **({kind.activation: activation} if kind.activation else {}),
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
        "use_cache": True,
    }
    values |= {key: getattr(model, ours) for key, (ours, _) in {**kind.sizes, **kind.rates}.items()}
    assert isinstance(model, AttentionConfig)  # or there would be an obstacle
    values |= {key: model.feed_forward_size for key, (ours, _) in kind.sizes.items() if ours == "intermediate_size"}
    values |= kind.written_options(model)
    if head is not None and kind.classifier_reads:
        by_ours = {ours: theirs for theirs, ours in kind.classifier_reads.items()}
        values["classifier_pooling"] = by_ours[head.pooling] if head.kind in POOLED else kind.usual_reading
    if head is not None:
        values[kind.classifier_dropout] = head.dropout
        if head.kind == "regression":
            values |= {"problem_type": "regression", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
            values[CROSS_ENCODER] = {"activation_fn": CROSS_ENCODER_ACTIVATIONS[head.activation]}
        elif head.labels:
            values |= {
                "id2label": {str(number): label for number, label in enumerate(head.labels)},
                "label2id": {label: number for number, label in enumerate(head.labels)},
                **({"problem_type": MULTILABEL} if head.kind == "multilabel" else {}),
            }
    if not math.isfinite(model.layer_norm_epsilon):
        raise ValueError(f"layer_norm_epsilon={model.layer_norm_epsilon}")
    return dict(sorted(values.items()))


BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids)$")
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}  # LayerNorm's, in files converted in 2018 and 2019

ABSENT = {
    "crf": "the head of this model has a CRF, and transformers has no class for that; use --to=bert_jax",
    "head/layer_": "the head of this model has a BiLSTM, and transformers has no class for that; use --to=bert_jax",
    "head/mix": "the head of this model mixes layers, and transformers has no class for that; use --to=bert_jax",
}
"""Beginnings of paths that have no counterpart there, and the reasons."""


def places(
    parameters: ParameterTable, head: HeadConfig | None = None, kind: ModelType = BERT, group: int = 1
) -> dict[str, Place]:
    """Return {our path: place} for every parameter except those below ABSENT.

    `group`: see `Place`.

    Raises:
      UserError: the model type does not name a parameter.
    """
    found, modules = {}, {**kind.modules, **_head_modules(kind, head)}
    for path, parameter in parameters.items():
        if path in kind.arrays:
            found[path] = place_of(parameter, kind.arrays[path], heads_apart=True, group=group)
            continue
        module, _, leaf = path.rpartition("/")
        if module not in modules and path.startswith(tuple(ABSENT)):
            continue
        if module not in modules:
            raise UserError(
                f"transformers has no name for the parameter {path} of a model of type {kind.name}, so this model "
                "cannot be written for it; use --to=bert_jax, or give it a name in bert_jax/formats/model_types"
            )
        name = f"{modules[module]}.{'bias' if leaf == 'bias' else 'weight'}"
        place = place_of(parameter, name, outputs_first=leaf == "kernel", group=group)
        found[path] = dataclasses.replace(place, adjacent=module in kind.adjacent)
    return found


def _head_modules(kind: ModelType, head: HeadConfig | None) -> Mapping[str, str]:
    """Return the names of the modules of a head, by ours; vectors have no head."""
    return {} if head is None or head.kind == "vectors" else kind.heads[head.kind]


def name_table(model: EncoderConfig, head: HeadConfig | None = None, kind: ModelType = BERT) -> dict[str, Place]:
    """Return `places` for every parameter that such a model can have in `transformers`, including optional parts."""
    taken = set(_head_modules(kind, head).values())  # ModernBERT's task heads have names of its MLM head
    there = {ours.split("/")[0] for ours, theirs in kind.modules.items() if theirs in taken}
    named = {ours.split("/")[0] for ours in kind.modules}
    if model.position_table is not None:  # which has the name of the decoder's
        named -= {"mask_decoder"}
    parts = tuple(part for part in MODEL_PARTS if part in named and part not in there)
    return places(bert_parameters(model, parts, head), head, kind, group_of(model))


def group_of(model: EncoderConfig) -> int:
    """Return the number of layers of a group; 1 where layers are not in groups."""
    return getattr(model, "group_layers", 1)


def absence(parameters: ParameterTable, kind: ModelType) -> str | None:
    """Return why transformers cannot hold a model of this type with these parameters; None if it can."""
    paths = [path for path in parameters if path.rpartition("/")[0] not in kind.modules]
    return next((why for start, why in ABSENT.items() if any(path.startswith(start) for path in paths)), None)


def canonical(name: str, kind: ModelType = BERT) -> str:
    """Return the current name of a parameter in a model with a head: with the prefix, weight and bias."""
    for old, new in _OLD_ENDINGS.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    for theirs, ours in kind.renamed.items():
        name = name.removesuffix(theirs) + ours if name.endswith(theirs) else name
    for other, ours in kind.also.items():
        name = ours + name.removeprefix(other) if name.startswith(other) else name
    known = (*kind.modules.values(), *kind.arrays.values())
    bare = {theirs.removeprefix(kind.prefix).split(".")[0] for theirs in known if kind.prefix in theirs}
    return f"{kind.prefix}{name}" if name.split(".")[0] in bare else name


def written(name: str, kind: ModelType) -> str:
    """Return the name in a file of an array that `places` names."""
    for theirs, ours in kind.renamed.items():
        name = name.removesuffix(ours) + theirs if name.endswith(ours) else name
    return name


def prefix_of_all(names: Collection[str], kind: ModelType) -> str:
    """Return what all names begin with before those of the model type, such as "module."; "" if there is nothing.

    Wrappers put it there: those of data-parallel training, of a compiled model, or of a model within another.
    """
    before = kind.layer_names
    for start in (before, before.removeprefix(kind.prefix)):
        for name in names:
            first, there, _ = f".{name}".partition(f".{start}")
            if there:
                found = f"{first}."[1:]
                return found if all(name.startswith(found) for name in names) else ""
    return ""


def with_shared(names: dict[str, str], kind: ModelType, tied: bool) -> dict[str, str]:
    """Return `names`, stored → canonical, where an array that is there under its second name alone has its first.

    The table of words counts only if it is `tied` to the head's.
    """
    first = {
        copy: original
        for copy, original in kind.tied.items()
        if original not in names.values() and (tied or not copy.endswith(".weight"))
    }
    return {stored: first.get(name, name) for stored, name in names.items()}


def repeated(names: dict[str, str]) -> list[tuple[str, str]]:
    """Return pairs of stored names of the same parameter; `names`: stored name → canonical name."""
    meanings = collections.defaultdict(list)
    for stored, name in names.items():
        meanings[name].append(stored)
    return [(stored[0], stored[1]) for stored in meanings.values() if len(stored) > 1]


ROWS_AT_ONCE = 4_096  # of a word table that is being compared


def open_weights(directory: epath.Path) -> dict[str, FileTensor]:
    """Return the arrays of a directory: those of safetensors if there are any, or else those that torch saved.

    Raises:
      UserError: there are neither, or a file is damaged.
    """
    for kind in (safetensors_files, torch_files):
        if (directory / kind.FILE).exists() or (directory / kind.INDEX).exists():
            return kind.open_directory(directory)
    raise UserError(f"{directory} has neither {safetensors_files.FILE} nor {torch_files.FILE}, and no index of either")


def open_huggingface(path: str | os.PathLike[str]) -> StoredModel:
    """Describe the BERT in a directory with config.json and model.safetensors, or pytorch_model.bin, or shards of
    either; read none of its arrays.

    Accepts BertModel, with and without pooler, BertForPreTraining, MaskedLM, NextSentencePrediction,
    SequenceClassification, TokenClassification, QuestionAnswering and MultipleChoice, and the older names of
    parameters.

    Args:
      path: local or remote; a remote file of arrays is copied to the local temporary directory.

    Raises:
      UserError: it is a different kind of model, a file is damaged, or weights do not fit config.json or the
        vocabulary.
    """
    directory = epath.Path(path)
    config = read_config(directory)
    stored, kind = open_weights(directory), config.kind
    tensors = _known(stored, config, directory)
    head = _head(config, tensors, directory)
    layers = len({match.groups() for name in tensors if (match := kind.layer.match(name))})
    if layers != (sets := config.model.parameter_sets):
        shared = "" if sets == config.model.num_layers else f" that share the parameters of {sets}"
        raise UserError(
            f"{directory / FILE} has num_hidden_layers={config.model.num_layers}{shared}, but the weights have "
            f"{layers} layers"
        )
    places = name_table(config.model, head, kind)
    needed = {"pooler"} if head is not None and reads_pooler(config.model, head) else set()
    present = {place.part for place in places.values() if place.name in tensors}
    absent = {*PARTS} - needed - present
    if "mlm" in absent:  # the head that reads it
        absent.add("mask_decoder")
    places = {path: place for path, place in places.items() if place.part not in absent}
    _check_fit(places, tensors, directory)
    _check_tied(config, tensors, "mlm" not in absent, directory)
    tokenizer = read_tokenizer(directory)
    model = without_padding(config.model, tokenizer, directory, (*PADDED_TO, *kind.padded_to))
    wanted = {name for place in places.values() for name in place.names} | set(kind.tied)
    unread = sorted(name for name in tensors if name not in wanted)
    _check_class(config, unread, directory)
    embedding = read_embedding(directory, model.hidden_size, model.longest_sequence)
    arrays = {
        path: place.array(lambda name, index: tensors[name].read(index))
        for path, place in name_table(model, head, kind).items()
        if path in places
    }
    if isinstance(embedding.form, TokenVectors):
        arrays[f"{TOKEN_VECTORS}/kernel"] = read_token_kernel(directory)
    return StoredModel(
        kind="huggingface",
        path=os.fspath(path),
        model=model,
        tokenizer=tokenizer,
        head=head,
        embedding=embedding,
        arrays=arrays,
        ignored=tuple(unread),
        doubt="" if "mlm" in absent else kind.doubt(model, tensors),
        history={
            "source": {
                "kind": "huggingface",
                "path": os.fspath(path),
                "architecture": config.architecture,
                "carried": _carried(config, head, directory),
            }
        },
    )


def _carried(config: HuggingFaceConfig, head: HeadConfig | None, directory: epath.Path) -> dict[str, dict[str, Any]]:
    """Return what an export of this model has again of the source: name of a file → keys that nothing here reads."""
    unread = config.others | (config.of_head if head is None else {})
    found = {FILE: {"model_type": config.kind.name, **unread}, **carried_settings(directory)}
    return {file: values for file, values in found.items() if values}


def _known(stored: dict[str, FileTensor], config: HuggingFaceConfig, directory: epath.Path) -> dict[str, FileTensor]:
    """Return the arrays by their current names, without buffers, which hold nothing learned."""
    kind = config.kind
    if before := prefix_of_all(stored, kind):
        logging.warning("%s: the names of all arrays begin with %s, which is left out", directory, before)
        stored = {name.removeprefix(before): tensor for name, tensor in stored.items()}
    meanings = {name: canonical(name, kind) for name in stored if not BUFFERS.search(name)}
    meanings = with_shared(meanings, kind, config.tied)
    if twice := repeated(meanings):
        raise UserError(f"{directory} holds one parameter under two names, {twice[0][0]} and {twice[0][1]}; {REMEDY}")
    found = {name: stored[old] for old, name in meanings.items()}
    for fused, count in kind.fused.items():
        heads = config.model.attention_heads if fused in kind.by_head else 1
        for name in [name for name in found if f".{fused}." in name]:
            shape, height = found[name].shape, count * heads
            if not shape or shape[0] % height:
                raise UserError(f"{directory}: {name} is {list(shape)} and should hold {height} arrays of equal height")
            parts = found.pop(name).parts(count, heads)
            found |= {name.replace(f".{fused}.", f".{fused}:{number}."): part for number, part in enumerate(parts)}
    return found


def _head(config: HuggingFaceConfig, tensors: dict[str, FileTensor], directory: epath.Path):
    """Return the task head, which the names of the arrays show; None if there is none."""
    heads = config.kind.heads
    found: list[HeadKind] = [kind for kind, modules in heads.items() if f"{modules['head']}.weight" in tensors]
    if not found:
        return None
    modules = {**config.kind.modules, **heads[found[0]]}
    kinds: list[HeadKind] = [kind for kind in found if heads[kind]["head"] == modules["head"]]
    shape = tensors[f"{modules['head']}.weight"].shape
    return read_head(
        config,
        outputs=shape[0] if shape else 0,
        kinds=kinds,
        pooled="pooler" in modules and f"{modules['pooler']}.weight" in tensors,
        file=directory / FILE,
    )


def _check_class(config: HuggingFaceConfig, unread: list[str], directory: epath.Path) -> None:
    """Raise a UserError if the class is one of a task that is not known here, and its head would be dropped."""
    known = dict.fromkeys(config.kind.classes.values())
    if unread and config.architecture not in (None, *known) and "For" in str(config.architecture):
        raise UserError(
            f"{directory / FILE} says {config.architecture!r:.60}, whose head "
            f"({first_lines(unread, 3)}) cannot be expressed here; the classes that can are {', '.join(known)}. To "
            f"load only its encoder, save it as {config.kind.classes['encoder']} first"
        )


def _check_fit(places: dict[str, Place], tensors: dict[str, FileTensor], directory: epath.Path) -> None:
    """Raise a UserError that names the first arrays that are missing, of the wrong shape, or not floating-point."""
    lines = []
    for place in places.values():
        for name in place.names:
            tensor = tensors.get(name)
            if tensor is None:
                lines.append(f"{name} is missing")
            elif tensor.shape != place.their_shape:
                lines.append(f"{name} is {list(tensor.shape)} where {list(place.their_shape)} is expected")
            elif tensor.dtype not in safetensors_files.FLOATS:
                lines.append(f"{name} is of type {tensor.dtype}, not {', '.join(safetensors_files.FLOATS)}")
    if lines:
        raise UserError(f"the weights in {directory} do not fit its {FILE}: {first_lines(lines, 3)}")


def _check_tied(
    config: HuggingFaceConfig, tensors: dict[str, FileTensor], has_mlm: bool, directory: epath.Path
) -> None:
    """Check that the output table of the masked-language-model head is the word table: BERT has one for both."""
    table = f"{config.kind.decoder}.weight"
    if config.kind.tied and has_mlm and not config.tied and table not in tensors:
        raise UserError(f"{directory} has tie_word_embeddings=false but no {table}; {REMEDY}")
    for copy, original in config.kind.tied.items():
        if copy in tensors and not _equal(tensors[copy], tensors.get(original, tensors[copy])):
            raise UserError(
                f"{directory}: {copy} differs from {original}; BERT uses one array for both, and a model with two "
                "cannot be loaded. To load only its encoder, save it as BertModel first"
            )


def _equal(one: FileTensor, other: FileTensor) -> bool:
    """Return whether two arrays hold the same values, comparing some rows at a time."""
    if one.shape != other.shape or not {one.dtype, other.dtype} <= set(safetensors_files.FLOATS) or not one.shape:
        return False
    bounds = (
        (slice(row, min(row + ROWS_AT_ONCE, one.shape[0])), *(slice(None) for _ in one.shape[1:]))
        for row in range(0, one.shape[0], ROWS_AT_ONCE)
    )
    return all(np.array_equal(one.read(index), other.read(index), equal_nan=True) for index in bounds)
