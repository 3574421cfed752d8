"""Lists the keys that transformers writes into the files of a model, with their usual values.

    python make_configuration_keys.py RESULT.json      # in an environment with transformers

RESULT: {"config.json": {model type: {key: value}}, "tokenizer_config.json": [key]}. The values are those of a new
configuration, with what a DeBERTa must have; the second are what classes of tokenizers take or save.
"""

import inspect
import json
import pathlib
import sys
import tempfile

import transformers

TYPES = (
    *("bert", "roberta", "xlm-roberta", "camembert", "modernbert", "albert", "distilbert", "electra", "deberta"),
    *("deberta-v2", "xlnet", "modernbert-decoder", "nomic_bert", "eurobert", "mpnet"),
)
CLASSES = (
    *("BertTokenizer", "BertTokenizerLegacy", "BertJapaneseTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer"),
    *("CamembertTokenizer", "AlbertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer", "XLNetTokenizer"),
    "MPNetTokenizer",
)
ARGUMENTS = {"self", "vocab", "merges", "args", "kwargs"}


def main(result: str) -> None:
    """Write RESULT."""
    configurations = {}
    for name in TYPES:
        relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]} if "deberta" in name else {}
        configurations[name] = transformers.AutoConfig.for_model(name, architectures=["X"], **relative).to_dict()
    keys = set()
    for name in CLASSES:
        keys |= {*inspect.signature(getattr(transformers, name).__init__).parameters} - ARGUMENTS
    with tempfile.TemporaryDirectory() as place:
        pathlib.Path(place, "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
        for name in CLASSES[:2]:
            tokenizer = getattr(transformers, name).from_pretrained(place)
            tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
            tokenizer.save_pretrained(f"{place}/{name}")
            keys |= {*json.loads(pathlib.Path(place, name, "tokenizer_config.json").read_text())}
    keys = sorted(key for key in keys if key != "_spm_precompiled_charsmap")
    found = {"config.json": configurations, "tokenizer_config.json": keys}
    pathlib.Path(result).write_text(json.dumps(found, indent=1, sort_keys=True, default=str) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
