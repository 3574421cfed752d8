"""Writes family_pieces_oracle.json: ids that transformers gives with the models of tests/support/family_pieces.py.

python -m venv oracle && oracle/bin/pip install transformers==5.23.0 sentencepiece==0.2.3 protobuf==7.36.2
oracle/bin/python tests/oracles/make_family_pieces_oracle.py

Of each family there is its class, "auto", from a directory with the .model and a config.json, and "published": what the
converter makes of the .model, which is what the tokenizer.json of the published directories holds. The pieces are
stored too, so that the test does not depend on what another version of SentencePiece learns.
"""

import importlib
import json
import pathlib
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import family_pieces
import sentencepiece
import transformers

PATH = pathlib.Path(__file__).with_name("family_pieces_oracle.json")
PAIR = ("the gardener", "before noon, 25,")


def pieces(model: bytes) -> list:
    """[text, score, kind] of each piece."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    return [[piece.piece, piece.score, piece.type] for piece in proto.pieces]


def published(family: str, file: pathlib.Path):
    name = {"xlm-roberta": "XLMRoberta", "deberta-v2": "DebertaV2", "xlnet": "XLNet"}.get(family, family.title())
    original = types.SimpleNamespace(
        vocab_file=str(file),
        keep_accents=False,
        do_lower_case=family == "albert",
        split_by_punct=False,
        convert_tokens_to_ids=lambda token: 0,
    )
    return getattr(importlib.import_module("transformers.convert_slow_tokenizer"), f"{name}Converter")(
        original
    ).converted()


def readings(family: str, model: bytes) -> dict:
    with tempfile.TemporaryDirectory() as place:
        directory = pathlib.Path(place)
        file = directory / family_pieces.FILES[family]
        file.write_bytes(model)
        (directory / "config.json").write_text(json.dumps({"model_type": family}))
        auto, fast = transformers.AutoTokenizer.from_pretrained(directory), published(family, file)
    texts = [text for text in family_pieces.texts() if family_pieces.reads_alike(text, family)]
    pair = auto(*PAIR, return_token_type_ids=True)
    return {
        "pieces": pieces(model),
        "special": [
            auto.convert_tokens_to_ids(getattr(auto, f"{name}_token")) for name in ("pad", "unk", "cls", "sep", "mask")
        ],
        "published": [fast.encode(text, add_special_tokens=False).ids for text in texts],
        "auto": [
            auto.encode(text, add_special_tokens=False) if family_pieces.class_reads_alike(text, family) else None
            for text in texts
        ],
        "pair": {"ids": pair["input_ids"], "types": pair["token_type_ids"]},
    }


if __name__ == "__main__":
    assert sentencepiece.__version__ == "0.2.3" and transformers.__version__ == "5.23.0"
    found = {family: readings(family, family_pieces.train(family)) for family in family_pieces.OPTIONS}
    PATH.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    for family, values in found.items():
        seen = sum(row is not None for row in values["auto"])
        print(family, len(values["pieces"]), "pieces,", len(values["published"]), "texts,", seen, "by its class")
