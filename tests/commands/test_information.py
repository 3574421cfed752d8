"""Commands that inform and inspect, and what they say without an accelerator."""

import dataclasses
import io
import os
import re
import subprocess
import sys
import typing

import pytest
import written_teacher
from command_lines import bert_jax
from four_phases import four_phases
from rich.console import Console
from synthetic_store import SyntheticStore, random_documents, write_store

from bert_jax.cli.info import phase_table, run_info
from bert_jax.cli.inspect import run_inspect
from bert_jax.config import (
    Config,
    DataConfig,
    MaskingConfig,
    ModelConfig,
    PhaseConfig,
    RecurrentConfig,
)
from bert_jax.config.commands import InspectConfig
from bert_jax.config.objective import DistillationConfig
from bert_jax.console import load_config, parse
from bert_jax.data.store import open_store
from bert_jax.devices import hardware
from bert_jax.errors import UserError
from bert_jax.formats.model_types import type_to_write

CASED = 28_996


def test_information_prints_the_figures_of_the_original_run(capsys):
    phases = (PhaseConfig(steps=900_000), PhaseConfig(steps=100_000, sequence_length=512, max_predictions=76))
    run_info(Config(phases=phases))
    printed = capsys.readouterr().out
    assert "1.64 GiB" in printed
    for figure in "30,522 7,087,872 109,482,240 110,106,428 69.93 118.0 632.8 2.38e+19".split():
        assert figure in printed, figure
    assert "…" not in printed  # nothing cut off on a terminal of 80 columns
    run_info(Config(model=ModelConfig(vocab_size=CASED, norm_position="pre")))
    printed = capsys.readouterr().out
    assert "assumed" not in printed and "final norm" in printed


def test_information_counts_the_vocabulary_of_the_stores_that_are_named(tmp_path, capsys):
    store = str(write_store(SyntheticStore(random_documents(3)), tmp_path, documents_per_shard=3))
    size = open_store(store).vocab_size
    for data in (DataConfig(path=store), DataConfig(mixture=f"{store}=1")):
        run_info(Config(model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2), data=data))
        printed = capsys.readouterr().out
        run_info(Config(model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2, vocab_size=size)))
        first, _, rest = printed.partition("\n")
        assert first == f"{size:,} entries, as in the vocabulary of {store}." and rest == capsys.readouterr().out


def test_the_operations_of_a_phase_are_those_of_a_run_of_its_options_alone(capsys):
    base = Config(model=ModelConfig(vocab_size=CASED), phases=(PhaseConfig(steps=10),))
    run, alone = four_phases(base)
    rows = lambda config: list(zip(*(column.cells for column in phase_table(config).columns), strict=True))
    found = rows(run)
    assert [row[1:] for row in found[:-1]] == [rows(single)[0][1:] for single in alone]
    operations = [float(row[-1]) for row in found]
    assert len(set(operations[:3])) == 3 and operations[-1] == pytest.approx(sum(operations[:-1]), rel=1e-2)
    run_info(run)
    printed = capsys.readouterr().out
    assert "Phase 1: masking.rate=0.3, starts pooler and head for pairs afresh.\n" in printed
    assert "Phase 2: model.local_window=0.\n" in printed and "Phase 3:" not in printed
    assert "next-sentence head" in printed and "untrained" not in printed  # of the phase that trains most heads


PUBLISHED = {  # values of the arrays of transformers 5.23.0: encoder with its pooler, if it has one, and with heads
    **{"roberta_base": (124_055_040, 124_697_433), "roberta_large": (354_310_144, 355_412_057)},
    **{"albert_base": (11_683_584, 11_813_810), "albert_xxlarge": (222_595_584, 223_158_450)},
    **{"electra_small": (13_483_008, 13_549_057), "electra_large": (334_092_288, 335_142_913)},
    **{"distilbert": (66_362_880, 66_985_530), "deberta_base": (138_601_728,), "deberta_v3_base": (183_831_552,)},
    **{"xlnet_base": (116_718_336, 116_750_336), "xlnet_large": (360_268_800, 360_300_800)},
    **{"modernbert_base": (149_014_272, 149_655_232), "modernbert_large": (394_781_696, 395_881_664)},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_have_the_published_counts(name, capsys):
    run_info(load_config(name))
    printed = capsys.readouterr().out
    for count in PUBLISHED[name]:
        assert f"{count:,}" in printed
    assert "…" not in printed  # nothing cut off on a terminal of 80 columns


def test_information_counts_a_map_to_the_states_of_the_teacher(small_store, tmp_path, capsys):
    written_teacher.write(tmp_path / "teacher", small_store)
    config, printed = load_config("distilbert"), []
    for weight in (1.0, 0.0):
        distillation = DistillationConfig(teacher=str(tmp_path / "teacher"), cosine_weight=weight)
        objective = dataclasses.replace(config.objective, distillation=distillation)
        run_info(dataclasses.replace(config, objective=objective))
        printed.append(capsys.readouterr().out)
    assert f"map to the teacher's states {768 * 32:>20,}".split() in [line.split() for line in printed[0].splitlines()]
    assert "teacher's states" not in printed[1]
    for number, text in zip((66_985_530 + 768 * 32, 66_985_530), printed, strict=True):
        assert ["pre-training", "model", f"{number:,}"] in [line.split() for line in text.splitlines()]


HEADS = {  # names of parts, the beginning of a line each
    "bert_mini": ("masked-language-model head", "next-sentence head"),
    "bert_study": ("masked-language-model head", "head for pairs (untrained)"),
    "albert_xxlarge": ("masked-language-model head", "sentence-order head"),
    "spanbert_mini": ("masked-language-model head", "span boundary head"),
    "deberta_mini": ("masked-language-model head", "positions of the mask decoder"),
    "electra_mini": ("masked-language-model head", "replaced-token head"),
    "deberta_v3_mini": ("masked-language-model head", "replaced-token head", "positions of the mask decoder"),
    "xlnet_mini": ("permutation-language-model head",),
    "gpt_mini": ("language-model head",),
    "diffusion_mini": ("masked-language-model head",),
    "elmo_mini": ("language-model head",),
    "ulmfit_mini": ("language-model head",),
    "skipgram_mini": ("second table of words",),
    "glove_mini": ("second table of words, and biases",),
}
OF_PARTS = ("head", "positions of", "second table")


@pytest.mark.parametrize("name", HEADS)
def test_parts_have_the_names_of_the_objective(name, capsys):
    run_info(config := load_config(name))
    printed = capsys.readouterr().out
    lines = [re.split(r" {2,}| \(table shared\)", line.strip())[0] for line in printed.splitlines()]
    shown = [line for line in lines if any(part in line for part in OF_PARTS) and not line.startswith("length")]
    assert sorted(shown) == sorted(HEADS[name])
    transformer = config.model.attention_heads > 0
    assert ("share   computed" in printed) == transformer  # of attention, which an LSTM and static vectors lack
    assert (("block" in lines), ("layer" in lines)) == (transformer, isinstance(config.model, RecurrentConfig))
    assert ("encoder without pooler" in lines) == config.model.pair_head
    assert "…" not in printed


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_vocabulary_that_is_assumed_is_that_of_the_model_type(name):
    """As transformers takes it where config.json does not say."""
    model = load_config(name).model
    kind = type_to_write(model)
    assert kind is not None and model.assumed_vocab_size == kind.sizes["vocab_size"][1]


@pytest.fixture(scope="module")
def store_path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inspection") / "store"
    return write_store(SyntheticStore(random_documents(30)), directory, documents_per_shard=20)


def printed(path, colour=False, **options):
    color_system = "truecolor" if colour else None
    console = Console(file=io.StringIO(), width=200, force_terminal=colour, color_system=color_system)
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


ELSEWHERE = {**os.environ, "JAX_PLATFORMS": "cuda"}
LINE = (
    "JAX_PLATFORMS=cuda, but JAX finds no such device here; install jax with support for it on a machine that has one, "
)


@pytest.mark.skipif(hardware._has_nvidia_gpu(), reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize(
    "command",
    [
        "pretrain @/config.json --workdir=@/new",
        pytest.param("fill-mask @/run [MASK]", marks=pytest.mark.slow),
        pytest.param("analyze init bert_tiny --output=@/new", marks=pytest.mark.slow),
    ],
)
def test_a_command_that_computes_is_refused_in_one_line(command, bad_inputs):
    done = bert_jax(*(word.replace("@", str(bad_inputs)) for word in command.split()), env=ELSEWHERE)
    assert (done.returncode, done.stdout.removeprefix("starting JAX\n")) == (2, "")
    assert done.stderr == f"error: {LINE}or unset JAX_PLATFORMS\n"
    assert not (bad_inputs / "new").exists()


@pytest.mark.skipif(hardware._has_nvidia_gpu(), reason="this machine has an NVIDIA GPU")
@pytest.mark.slow
def test_loading_in_python_raises_the_error_of_the_commands(bad_inputs):
    code = f"import bert_jax\ntry: bert_jax.load('{bad_inputs}/run')\nexcept bert_jax.UserError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ELSEWHERE)
    assert done.stdout.startswith(LINE), done.stderr


@pytest.mark.skipif(hardware._has_nvidia_gpu(), reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize("command", [pytest.param("info bert_tiny", marks=pytest.mark.slow), "inspect @/store"])
def test_a_command_that_does_not_compute_asks_for_no_device(command, bad_inputs):
    done = bert_jax(*(word.replace("@", str(bad_inputs)) for word in command.split()), env=ELSEWHERE)
    assert done.returncode == 0, done.stderr
