import io
import typing

import pytest
from rich.console import Console
from synthetic_store import SyntheticStore, random_documents, write_store

from bert_jax.cli.inspect import run_inspect
from bert_jax.config import DataConfig, MaskingConfig
from bert_jax.config.commands import InspectConfig
from bert_jax.console import parse
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inspection") / "store"
    return write_store(SyntheticStore(random_documents(30)), directory, documents_per_shard=20)


def printed(path, colour=False, **options):
    console = Console(
        file=io.StringIO(), width=200, force_terminal=colour, color_system="truecolor" if colour else None
    )
    run_inspect(str(path), InspectConfig(**options), console)
    return console.file.getvalue()


@pytest.mark.parametrize("sentence_pairs", ["nsp", "sop", "adjacent", "none"])
@pytest.mark.parametrize("unit", ["token", "whole_word", "span", "ngram"])
def test_shows_store_document_examples_and_epoch(store_path, sentence_pairs, unit):
    text = printed(store_path, document=3, sentence_pairs=sentence_pairs, unit=unit, sequence_length=64, sentences=2)
    for expected in ("37", "Document 3", "more sentences", "[CLS]", "[MASK]", "padding", "sentences seen"):
        assert expected in text
    assert "100.000%" in text  # of the sentences
    assert text.count("Example ") == 3
    assert ("IsNext" in text) == (sentence_pairs == "nsp")


def test_the_command_line_has_every_kind_of_examples_that_a_run_has(store_path):
    masks, data, shown = map(typing.get_type_hints, (MaskingConfig, DataConfig, InspectConfig))
    assert all(shown[name] == {**masks, **data}[name] for name in ("unit", "sentence_pairs", "packing"))
    options = parse(InspectConfig(), ["--unit=ngram", "--document=3"], "inspect")
    text = printed(store_path, **vars(options))
    assert "[MASK]" in text and text != printed(store_path, document=3)


def test_predicted_places_stand_out_in_colour(store_path):
    assert "\x1b[1;37;41m[MASK]\x1b[0m" in printed(store_path, colour=True, document=3)


def test_every_document_can_be_followed(store_path):
    for document in range(37):
        assert "Example " in printed(store_path, document=document, epoch=2, examples=1, report_sequences=10)


def test_mistakes_are_named(store_path, tmp_path):
    with pytest.raises(UserError, match="document=37, but .* has 37 documents"):
        printed(store_path, document=37)
    with pytest.raises(UserError, match="epoch=-1"):
        printed(store_path, epoch=-1)
    with pytest.raises(UserError, match="sequence_length=4"):
        printed(store_path, sequence_length=4)
    with pytest.raises(UserError, match="not a token store"):
        printed(tmp_path)


@pytest.mark.parametrize("sentence_pairs", ["nsp", "adjacent", "none"])
def test_packed_rows_are_shown_with_their_texts(store_path, sentence_pairs):
    text = printed(
        store_path, document=3, sentence_pairs=sentence_pairs, sequence_length=512, short_sequence_probability=0.5
    )
    assert "texts per sequence" in text and text.count("Texts │") == text.count("Example ") > 0
    row = text[text.index("Texts │") :].splitlines()[0]
    lengths = [int(part.split()[0]) for part in row.split("│")[1:-1]]
    places = int(text[text.index("Example ") :].split(" of 512 places")[0].split()[-1])
    assert sum(lengths) == places and len(lengths) >= 1
    assert "texts per sequence" not in printed(store_path, document=3, packing="off", sequence_length=512)
