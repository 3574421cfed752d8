"""README.md of exports: what it says of every model type, and how the model is opened."""

import dataclasses
import re

import pytest
from model_type_exports import cases, make

from bert_jax.formats.huggingface_export import write_huggingface

FAMILIES = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-RoBERTa",
    "camembert": "CamemBERT",
    "modernbert": "ModernBERT",
    "albert": "ALBERT",
    "distilbert": "DistilBERT",
    "electra": "ELECTRA",
    "deberta": "DeBERTa",
    "deberta-v2": "DeBERTa-v2",
    "xlnet": "XLNet",
}
WITH_POOLER = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "albert",
)  # whose bare classes have one unless told not to
WORDS = {"xlnet": ("AutoModelForPreTraining", None, "permutation-language-model head")}
PAIRS = {"bert": "next-sentence head", "albert": "sentence-order head"}


def card_of(place, name: str, key: str) -> str:
    write_huggingface(make(name, key), place, "the model")
    return (place / "README.md").read_text()


@pytest.mark.parametrize("name, key", cases())
def test_a_card_names_family_parts_and_class(tmp_path, name, key):
    card = card_of(tmp_path, name, key)
    assert f"tags: [{name}, bert_jax]" in card
    assert f"An encoder of type {FAMILIES[name]} with " in card
    opener = re.search(r'^model = (\w+)\.from_pretrained\("PATH"(.*)\)$', card, re.MULTILINE)
    assert ("add_pooling_layer=False" in opener[2]) == (key == "encoder" and name in WITH_POOLER)
    task = re.search(r"^pipeline_tag: (.*)$", card, re.MULTILINE)
    if key == "mlm":
        usual = ("AutoModelForMaskedLM", "fill-mask", "masked-language-model head")
        assert (opener[1], task and task[1], re.search(r"with (.*?),", card)[1]) == WORDS.get(name, usual)
    if key in ("pretraining", "pairs"):
        assert PAIRS[name] in card
    if key == "encoder":
        assert (opener[1], task[1]) == ("AutoModel", "feature-extraction") and "with no head" in card


def test_a_model_without_vocabulary_has_a_card_without_tokenizer(tmp_path):
    write_huggingface(dataclasses.replace(make("bert", "mlm"), tokenizer=None), tmp_path, "the model")
    assert "AutoTokenizer" not in (tmp_path / "README.md").read_text()
