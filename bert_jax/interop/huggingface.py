"""Directories in the layout of Hugging Face `transformers`: config.json, model.safetensors, vocabulary files."""

import dataclasses
import os

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.interop import huggingface_config, huggingface_names as names, safetensors_files
from bert_jax.interop.safetensors_files import FileTensor
from bert_jax.interop.tokenizer_files import read_tokenizer
from bert_jax.stored import PARTS, StoredArray, StoredModel
from bert_jax.tokenization import Tokenizer

ROWS_AT_ONCE = 4_096  # of a word table that is compared


def open_huggingface(path: str | os.PathLike) -> StoredModel:
    """Describes the BERT in a directory with config.json and model.safetensors (or its shards); reads none of its arrays.

    Understands BertModel, with and without pooler, BertForPreTraining, MaskedLM, NextSentencePrediction,
    SequenceClassification, TokenClassification, QuestionAnswering and MultipleChoice, and the older names of parameters.

    Args:
      path: local or remote; a remote file of arrays is copied to the local temporary directory.

    Raises:
      UserError: another kind of model, a damaged file, weights that do not fit config.json or the vocabulary.
    """
    directory = epath.Path(path)
    _refuse_pickles(directory)
    config = huggingface_config.read_config(directory)
    stored = safetensors_files.open_directory(directory)
    tensors, ignored = _known(stored, directory)
    head = _head(config, tensors, directory)
    layers = names.number_of_layers(tensors)
    if layers != config.model.num_layers:
        raise UserError(f"{directory / huggingface_config.FILE} has num_hidden_layers={config.model.num_layers}, but the "
                        f"weights are those of {layers} layers")
    places = names.table(config.model, head)
    needed = {"pooler"} if head is not None and head.kind in ("classification", "regression", "choice") else set()
    absent = {part for part in PARTS if part not in needed and not _has(tensors, places, part)}
    places = {path: place for path, place in places.items() if path.split("/")[0] not in absent}
    _check_fit(places, tensors, directory)
    _check_tied(config, tensors, "mlm" not in absent, directory)
    tokenizer = read_tokenizer(directory)
    model = _cut_vocabulary(config.model, tokenizer, directory)
    wanted = {name for place in places.values() for name in place.names} | {names.DECODER_TABLE}
    return StoredModel(
        kind="huggingface", path=os.fspath(path), model=model, tokenizer=tokenizer, head=head,
        arrays={path: _stored_array(place, tensors) for path, place in names.table(model, head).items() if path in places},
        ignored=(*ignored, *sorted(name for name in tensors if name not in wanted)),
        history={"source": {"kind": "huggingface", "path": os.fspath(path), "architecture": config.architecture}})


def _refuse_pickles(directory: epath.Path) -> None:
    if (directory / safetensors_files.FILE).exists() or (directory / safetensors_files.INDEX).exists():
        return
    pickles = sorted(file.name for file in directory.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"))
    if pickles:
        raise UserError(f"{directory} has its weights in {pickles[0]}, a Python pickle, which can run any code when it is opened: "
                        "it is not read. Where you trust its source, save it with transformers as safetensors: "
                        "AutoModelForPreTraining.from_pretrained(…).save_pretrained(…)")


def _known(stored: dict[str, FileTensor], directory: epath.Path) -> tuple[dict[str, FileTensor], list[str]]:
    """Arrays by their names of today, and the names of buffers, which hold nothing learned."""
    meanings = {name: names.canonical(name) for name in stored if not names.BUFFERS.search(name)}
    if names.DECODER_BIAS in meanings and "cls.predictions.bias" not in meanings.values():
        meanings[names.DECODER_BIAS] = "cls.predictions.bias"
    if twice := names.repeated(meanings):
        raise UserError(f"{directory} holds one parameter under two names, {twice[0][0]} and {twice[0][1]}; "
                        f"{safetensors_files.AWAY}")
    return {name: stored[old] for old, name in meanings.items()}, sorted(name for name in stored if name not in meanings)


def _has(tensors: dict[str, FileTensor], places: dict[str, names.Place], part: str) -> bool:
    return any(place.name in tensors for path, place in places.items() if path.startswith(part + "/"))


def _head(config: huggingface_config.HuggingFaceConfig, tensors: dict[str, FileTensor], directory: epath.Path):
    kernels = [name for name in ("classifier.weight", "qa_outputs.weight") if name in tensors]
    if not kernels:
        return None
    shape = tensors[kernels[0]].shape
    return huggingface_config.read_head(config, outputs=shape[0] if shape else 0, spans=kernels[0] == "qa_outputs.weight",
                                        pooled="bert.pooler.dense.weight" in tensors, file=directory / huggingface_config.FILE)


def _check_fit(places: dict[str, names.Place], tensors: dict[str, FileTensor], directory: epath.Path) -> None:
    """UserError that names the first arrays which are not there, have other shapes, or are no numbers with a fraction."""
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
        more = f"; and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise UserError(f"the weights in {directory} do not fit its {huggingface_config.FILE}: {'; '.join(lines[:3])}{more}")


def _check_tied(config: huggingface_config.HuggingFaceConfig, tensors: dict[str, FileTensor], has_mlm: bool,
                directory: epath.Path) -> None:
    """The output table of the masked-language-model head must be the word table: BERT has one for both."""
    decoder, words = tensors.get(names.DECODER_TABLE), tensors[names.WORD_TABLE]
    if decoder is None:
        if has_mlm and not config.tied:
            raise UserError(f"{directory} has tie_word_embeddings=false but no {names.DECODER_TABLE}; {safetensors_files.AWAY}")
        return
    equal = decoder.shape == words.shape and decoder.dtype in safetensors_files.FLOATS and all(
        np.array_equal(*(tensor.read((slice(row, row + ROWS_AT_ONCE), slice(None))) for tensor in (decoder, words)),
                       equal_nan=True)
        for row in range(0, words.shape[0], ROWS_AT_ONCE))
    if not equal:
        raise UserError(f"{directory}: {names.DECODER_TABLE} differs from {names.WORD_TABLE}; BERT uses one table for both, "
                        "and a model with two cannot be loaded. For its encoder alone, save it as BertModel first")


def _cut_vocabulary(model, tokenizer: Tokenizer | None, directory: epath.Path):
    """`model` with the tokenizer's number of words; the rows beyond are padding."""
    if tokenizer is None:
        return model
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(f"{directory} has a vocabulary of {tokenizer.vocab_size:,} entries, but vocab_size={model.vocab_size:,} "
                        f"in its {huggingface_config.FILE}; they do not belong together")
    return dataclasses.replace(model, vocab_size=tokenizer.vocab_size)


def _stored_array(place: names.Place, tensors: dict[str, FileTensor]) -> StoredArray:
    return StoredArray(place.shape, np.dtype(np.float32), lambda index: place.read(tensors, index))
