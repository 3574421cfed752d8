"""Read directories in the layout of Hugging Face `transformers`: config.json, model.safetensors, vocabulary files."""

import os

import numpy as np
from etils import epath

from bert_jax.config.json_form import first_lines
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.formats import huggingface_config, safetensors_files
from bert_jax.formats import huggingface_names as names
from bert_jax.formats.model_types.definition import HeadKind
from bert_jax.formats.places import Place
from bert_jax.formats.safetensors_files import FileTensor
from bert_jax.formats.sentence_transformers import read_embedding
from bert_jax.formats.stored import PADDED_TO, PARTS, StoredModel, without_padding
from bert_jax.formats.tokenizer_files import read_tokenizer
from bert_jax.models.bert_parameters import reads_pooler

ROWS_AT_ONCE = 4_096  # of a word table that is being compared


def open_huggingface(path: str | os.PathLike[str]) -> StoredModel:
    """Describe the BERT in a directory with config.json and model.safetensors (or shards); read none of its arrays.

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
    config = huggingface_config.read_config(directory)
    stored = safetensors_files.open_directory(directory)
    kind = config.kind
    tensors, ignored = _known(stored, config, directory)
    head = _head(config, tensors, directory)
    layers = names.number_of_layers(tensors, kind)
    if layers != config.model.parameter_sets:
        raise UserError(
            f"{directory / huggingface_config.FILE} has num_hidden_layers={config.model.num_layers}, but the "
            f"weights have {layers} layers"
        )
    places = names.table(config.model, head, kind)
    needed = {"pooler"} if head is not None and reads_pooler(config.model, head) else set()
    absent = {part for part in PARTS if part not in needed and not _has(tensors, places, part)}
    places = {path: place for path, place in places.items() if path.split("/")[0] not in absent}
    _check_fit(places, tensors, directory)
    _check_tied(config, tensors, "mlm" not in absent, directory)
    tokenizer = read_tokenizer(directory)
    model = without_padding(config.model, tokenizer, directory, (*PADDED_TO, *kind.padded_to))
    wanted = {name for place in places.values() for name in place.names} | set(kind.tied)
    unread = sorted(name for name in tensors if name not in wanted)
    _check_class(config, unread, directory)
    return StoredModel(
        kind="huggingface",
        path=os.fspath(path),
        model=model,
        tokenizer=tokenizer,
        head=head,
        embedding=read_embedding(directory, model.hidden_size, model.longest_sequence),
        arrays={
            path: _stored_array(place, tensors)
            for path, place in names.table(model, head, kind).items()
            if path in places
        },
        ignored=(*ignored, *unread),
        history={"source": {"kind": "huggingface", "path": os.fspath(path), "architecture": config.architecture}},
    )


def _known(
    stored: dict[str, FileTensor], config: huggingface_config.HuggingFaceConfig, directory: epath.Path
) -> tuple[dict[str, FileTensor], list[str]]:
    """Return the arrays by their current names, and the names of buffers, which hold nothing learned."""
    kind, heads = config.kind, config.model.num_heads if config.kind.by_head else 1
    meanings = {name: names.canonical(name, kind) for name in stored if not names.BUFFERS.search(name)}
    bias = f"{kind.decoder}.bias"
    if bias in meanings and kind.tied[bias] not in meanings.values():
        meanings[bias] = kind.tied[bias]
    if twice := names.repeated(meanings):
        raise UserError(
            f"{directory} holds one parameter under two names, {twice[0][0]} and {twice[0][1]}; "
            f"{safetensors_files.AWAY}"
        )
    found = {name: stored[old] for old, name in meanings.items()}
    for fused, count in kind.fused.items():
        for name in [name for name in found if f".{fused}." in name]:
            _check_divisible(name, found[name], count * heads, directory)
            parts = found.pop(name).parts(count, heads)
            found |= {name.replace(f".{fused}.", f".{fused}:{number}."): part for number, part in enumerate(parts)}
    return found, sorted(name for name in stored if name not in meanings)


def _check_divisible(name: str, tensor: FileTensor, count: int, directory: epath.Path) -> None:
    if not tensor.shape or tensor.shape[0] % count:
        raise UserError(f"{directory}: {name} is {list(tensor.shape)} and should hold {count} arrays of equal height")


def _has(tensors: dict[str, FileTensor], places: dict[str, Place], part: str) -> bool:
    return any(place.name in tensors for path, place in places.items() if path.startswith(part + "/"))


def _head(config: huggingface_config.HuggingFaceConfig, tensors: dict[str, FileTensor], directory: epath.Path):
    """Return the task head, which the names of the arrays show; None if there is none."""
    heads = config.kind.heads
    found: list[HeadKind] = [kind for kind, modules in heads.items() if f"{modules['head']}.weight" in tensors]
    if not found:
        return None
    modules = {**config.kind.modules, **heads[found[0]]}
    kinds: list[HeadKind] = [kind for kind in found if heads[kind]["head"] == modules["head"]]
    shape = tensors[f"{modules['head']}.weight"].shape
    return huggingface_config.read_head(
        config,
        outputs=shape[0] if shape else 0,
        kinds=kinds,
        pooled="pooler" in modules and f"{modules['pooler']}.weight" in tensors,
        file=directory / huggingface_config.FILE,
    )


def _check_class(config: huggingface_config.HuggingFaceConfig, unread: list[str], directory: epath.Path) -> None:
    """Raise a UserError if the class is one of a task that is not known here, and its head would be dropped."""
    known = dict.fromkeys(config.kind.classes.values())
    if unread and config.architecture not in (None, *known) and "For" in str(config.architecture):
        raise UserError(
            f"{directory / huggingface_config.FILE} says {config.architecture!r:.60}, whose head "
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
        raise UserError(f"the weights in {directory} do not fit its {huggingface_config.FILE}: {first_lines(lines, 3)}")


def _check_tied(
    config: huggingface_config.HuggingFaceConfig, tensors: dict[str, FileTensor], has_mlm: bool, directory: epath.Path
) -> None:
    """Check that the output table of the masked-language-model head is the word table: BERT has one for both."""
    table = f"{config.kind.decoder}.weight"
    if has_mlm and not config.tied and table not in tensors:
        raise UserError(f"{directory} has tie_word_embeddings=false but no {table}; {safetensors_files.AWAY}")
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


def _stored_array(place: Place, tensors: dict[str, FileTensor]) -> StoredArray:
    def read_part(name: str, index: tuple[slice, ...]) -> np.ndarray:
        return tensors[name].read(index)

    return StoredArray(place.shape, np.dtype(np.float32), lambda index: place.read(read_part, index))
