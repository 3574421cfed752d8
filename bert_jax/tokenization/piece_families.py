"""How each family of models uses its SentencePiece vocabulary: special tokens, the ids of pieces, what texts become.

The ids are made the model's own by writing its pieces in their order, so that nothing else has to know the difference.
"""

import dataclasses
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import read_object
from bert_jax.tokenization import vocabulary_file
from bert_jax.tokenization.cleaning import Cleaning
from bert_jax.tokenization.piece_files import CONTROL, NORMAL, UNKNOWN, UNUSED, Piece, read_pieces, with_pieces


@dataclasses.dataclass(frozen=True)
class PieceFamily:
    """What the models of one `model_type` do with a SentencePiece model."""

    name: str
    special_names: tuple[str, ...]
    """Names of padding, unknown, class, separator and mask tokens."""
    file: str
    """Name of the file in a directory of `transformers`."""
    first: tuple[str, ...] = ()
    """Pieces with the first ids, as in fairseq."""
    dropped: int = 0
    """Number of the file's own pieces that these replace."""
    adds_mask: bool = False
    """Whether the mask has the id after the last piece, where it is none of them."""
    separators: int = 1
    class_last: bool = False
    cleaning: Cleaning = Cleaning()
    """Before SentencePiece's own normalization, unless tokenizer_config.json says otherwise."""
    apart: bool = False
    """Whether a comma never shares a piece with the digit before it."""


_TIDY = Cleaning(tidies=True, strips_accents=True)
_FAIRSEQ = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
OURS = PieceFamily("bert", vocabulary_file.SPECIAL_NAMES, vocabulary_file.SENTENCEPIECE_FILE)
"""The family of `bert-jax train-vocab`, and of a SentencePiece model that was trained with BERT's special tokens."""
FAMILIES = {
    each.name: each
    for each in (
        OURS,
        PieceFamily(
            "albert",
            ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
            "spiece.model",
            cleaning=dataclasses.replace(_TIDY, lowercase=True),
            apart=True,
        ),
        PieceFamily(
            "xlm-roberta",
            _FAIRSEQ,
            "sentencepiece.bpe.model",
            first=("<s>", "<pad>", "</s>", "<unk>"),
            dropped=3,
            adds_mask=True,
            separators=2,
        ),
        PieceFamily(
            "camembert",
            _FAIRSEQ,
            "sentencepiece.bpe.model",
            first=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
            dropped=1,
            adds_mask=True,
            separators=2,
        ),
        PieceFamily("deberta-v2", vocabulary_file.SPECIAL_NAMES, "spm.model", adds_mask=True),
        PieceFamily(
            "xlnet",
            ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
            "spiece.model",
            class_last=True,
            cleaning=_TIDY,
            apart=True,
        ),
    )
}
_CLASSES = {
    "AlbertTokenizer": "albert",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "DebertaV2Tokenizer": "deberta-v2",
    "XLNetTokenizer": "xlnet",
}


def family_of(file: epath.Path, pieces: list[Piece]) -> tuple[PieceFamily, Cleaning]:
    """Return the family of a .model file and how it cleans texts.

    tokenizer_config.json beside the file says it, or the model_type in config.json, or else the pieces.

    Raises:
      UserError: a file is damaged or contradicts itself, or nothing says which of two families it is.
    """
    config = _beside(file, vocabulary_file.CONFIG_FILE)
    name = config.get("family")
    if name is None and "kind" in config:
        return OURS, Cleaning()
    if name is None:
        name = _CLASSES.get(str(config.get("tokenizer_class")).removesuffix("Fast"))
    if name is None:
        name = _beside(file, "config.json").get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        name = _family_of_pieces({piece.text for piece in pieces}, file)
    if config.get("split_by_punct"):
        raise UserError(f"{file.parent / vocabulary_file.CONFIG_FILE} has split_by_punct=true, which is not read here")
    return FAMILIES[name], _cleaning(FAMILIES[name], config, file.parent / vocabulary_file.CONFIG_FILE)


def _beside(file: epath.Path, name: str) -> dict[str, Any]:
    other = file.parent / name
    return read_object(other) if other.exists() else {}


def _family_of_pieces(texts: set[str], file: epath.Path) -> str:
    if "<cls>" in texts:
        return "xlnet"
    if "[CLS]" in texts and file.name == FAMILIES["albert"].file:
        return "albert"
    if "[CLS]" in texts and "[MASK]" not in texts:
        return "deberta-v2"
    if "[CLS]" not in texts and file.name == FAMILIES["camembert"].file:
        raise UserError(
            f"{file} belongs to XLM-RoBERTa or to CamemBERT, which give its pieces different ids; put the config.json "
            'of the model next to it, or one with {"model_type": "xlm-roberta"} or {"model_type": "camembert"}'
        )
    return OURS.name


def _cleaning(family: PieceFamily, config: dict[str, Any], file: epath.Path) -> Cleaning:
    """Return the steps of a family with what tokenizer_config.json says of case and accents."""
    usual = family.cleaning
    said = {
        "do_lower_case": usual.lowercase,
        "keep_accents": not usual.strips_accents,
        "remove_space": usual.tidies,
    } | {name: config[name] for name in ("do_lower_case", "keep_accents", "remove_space") if name in config}
    if wrong := [name for name, value in said.items() if not isinstance(value, bool)]:
        raise UserError(f"{file} has {wrong[0]}={said[wrong[0]]!r:.40}; expected true or false")
    if family is OURS or family.first:
        return usual
    if not usual.tidies:
        return Cleaning(lowercase=said["do_lower_case"])
    if not said["remove_space"]:
        raise UserError(f"{file} has remove_space=false, which is not read here; models were published with true")
    return Cleaning(tidies=True, strips_accents=not said["keep_accents"], lowercase=said["do_lower_case"])


def in_order_of_ids(model: bytes, family: PieceFamily, file: epath.Path) -> tuple[bytes, tuple[int, ...]]:
    """Return the .model file with each piece at the place of its id, and the ids of the five special tokens.

    Raises:
      UserError: it lacks a special token, or does not begin as those of its family.
    """
    own = read_pieces(model)
    pieces = _in_order(own, family, file)
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    if family is OURS:
        ids = {"[PAD]": ids.get("<pad>"), **ids}
    unknown = next((i for i, piece in enumerate(pieces) if piece.kind == UNKNOWN), None)
    special_ids = [unknown if number == 1 else ids.get(name) for number, name in enumerate(family.special_names)]
    found = tuple(i for i in special_ids if i is not None)
    if len(found) < len(special_ids):
        missing = [name for name, i in zip(family.special_names, special_ids, strict=True) if i is None]
        way_out = (
            "train it with control_symbols=[CLS],[SEP],[MASK] and pad_id=0, or with `bert-jax train-vocab "
            "--method=unigram`"
            if family is OURS
            else f"put the file there that a model of type {family.name} was trained with"
        )
        raise UserError(f"{file} has no {', '.join(missing)}; {way_out}")
    return model if pieces == own else with_pieces(model, pieces), found


def _in_order(pieces: list[Piece], family: PieceFamily, file: epath.Path) -> list[Piece]:
    """Return the pieces by their ids, those that the family adds among them."""
    if family.first:
        begins = [piece.text for piece in pieces[:3]]
        if begins != ["<unk>", "<s>", "</s>"]:
            raise UserError(
                f"{file} begins with {', '.join(begins)[:60]!r}, not with <unk>, <s>, </s> as the SentencePiece models "
                f"of {family.name}; put the file there that the model was trained with"
            )
        made = [Piece(name, kind=UNKNOWN if name == "<unk>" else CONTROL) for name in family.first]
        pieces = made + pieces[family.dropped :]
    if family.apart:
        pieces = [dataclasses.replace(piece, kind=UNUSED) if _is_number(piece) else piece for piece in pieces]
    mask = Piece(family.special_names[-1])
    return [*pieces, mask] if family.adds_mask and all(piece.text != mask.text for piece in pieces) else pieces


def in_order_of_file(pieces: list[Piece], family: PieceFamily) -> list[Piece]:
    """Return pieces in the order of a family's ids as its .model has them: the inverse of `in_order_of_ids`."""
    begins = [Piece("<unk>", kind=UNKNOWN), Piece("<s>"), Piece("</s>")][: family.dropped]
    last = len(pieces)
    if family.adds_mask and pieces and pieces[-1].text == family.special_names[-1]:
        last -= 1
    return begins + pieces[len(family.first) : last]


def _is_number(piece: Piece) -> bool:
    """Return whether a piece ends with a digit and a comma."""
    return piece.kind == NORMAL and piece.text[-1:] == "," and piece.text[-2:-1].isdigit()
