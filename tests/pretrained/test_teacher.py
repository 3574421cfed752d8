"""Opening a teacher, and starting from some of its layers."""

import dataclasses

import jax
import numpy as np
import pytest
import written_teacher
from pretrained_model import TOKENIZER, contents, random_params, stored_model
from small_pretraining import source_of
from task_models import write_model

from bert_jax.checkpoints.record import leaf_paths
from bert_jax.config import Config, DataConfig, MaskedWords, MeshConfig, OptimizerConfig, PhaseConfig, resolve_phases
from bert_jax.config.checks import check
from bert_jax.config.finetuning import task_defaults
from bert_jax.config.heads import HeadConfig
from bert_jax.config.objective import DistillationConfig, TaskDistillationConfig
from bert_jax.config.tasks import SentenceOptions
from bert_jax.console import load_config, parse
from bert_jax.devices import sharding
from bert_jax.errors import UserError
from bert_jax.formats.conversion import convert, new_directory, write_bert_jax
from bert_jax.formats.opening import open_stored
from bert_jax.models.bert import BertForPreTraining
from bert_jax.models.bert_parameters import bert_parameters
from bert_jax.models.costs import trained_parameters
from bert_jax.pretrained.initialization import initialize
from bert_jax.pretrained.model import load
from bert_jax.pretrained.teacher import open_task_teacher, open_teacher, stored_task_teacher
from bert_jax.pretraining import make_learner
from bert_jax.tokenization.tokenizer import Tokenizer, load_tokenizer
from bert_jax.tokenization.wordpiece import WordPiece


@pytest.fixture(scope="module")
def directory(small_store, tmp_path_factory):
    place = tmp_path_factory.mktemp("teacher") / "model"
    written_teacher.write(place, small_store)
    return place


@pytest.fixture(scope="module")
def tokenizer(small_store):
    return load_tokenizer(small_store / "tokenizer")


def taught(teacher, model=None, layers=(), **options) -> Config:
    student = dataclasses.replace(written_teacher.TEACHER, num_layers=2, type_vocab_size=0, pair_head=False)
    return Config(
        model=dataclasses.replace(student, **(model or {})),
        data=DataConfig(sentence_pairs="none"),
        objective=MaskedWords(distillation=DistillationConfig(teacher=str(teacher), **options)),
        init_from_layers=layers,
        phases=(PhaseConfig(sequence_length=48),),
    )


def teacher_of(config: Config, tokenizer, mesh):
    student = config.model, config.data, resolve_phases(config)
    return open_teacher(config.objective.taught, *student, config.compute, tokenizer, mesh)


def test_a_teacher_is_split_like_any_model_and_keeps_its_bits(directory, small_store, tokenizer, tmp_path):
    drawn = written_teacher.write(tmp_path / "same", small_store)
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=2, tensor=2), jax.devices()[:4])
    teacher = teacher_of(taught(directory), tokenizer, mesh)
    arrays = leaf_paths(teacher.params)
    assert {path: np.asarray(array).tobytes() for path, array in arrays.items()} == contents(drawn)
    kernel = arrays["encoder/feed_forward/intermediate/kernel"]
    assert {shard.data.size for shard in kernel.addressable_shards} == {kernel.size // 4}
    again = teacher_of(taught(tmp_path / "same"), tokenizer, mesh)
    assert teacher.fingerprint == again.fingerprint and teacher.model.parts == ("pooler", "mlm")


def test_the_same_teacher_is_known_in_every_format(small_store, tokenizer, tmp_path):
    written_teacher.write(tmp_path / "ours", small_store, ("mlm",))
    convert(tmp_path / "ours", tmp_path / "theirs", to="huggingface")
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    ours, theirs = (teacher_of(taught(tmp_path / name), tokenizer, mesh) for name in ("ours", "theirs"))
    assert ours.fingerprint == theirs.fingerprint
    assert leaf_paths(ours.params).keys() == leaf_paths(theirs.params).keys()


@pytest.mark.parametrize("hidden_size, shape", [(16, (16, 32)), (64, (64, 32)), (32, None)])
def test_a_run_trains_a_map_to_the_states_of_a_teacher_of_another_width(directory, tokenizer, hidden_size, shape):
    """Moments and moving averages have it too; what `info` counts is what is trained."""
    mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=2, tensor=2), jax.devices()[:4])
    config = taught(directory, {"hidden_size": hidden_size, "vocab_size": tokenizer.vocab_size}, hidden_weight=1.0)
    config = dataclasses.replace(config, optimizer=OptimizerConfig(ema_decay=0.9))
    learner = make_learner(config, mesh, teacher=teacher_of(config, tokenizer, mesh))
    path, arrays = "state_projection/kernel", leaf_paths(learner.abstract.params)
    expected = {name: each.shape for name, each in learner.objective.model.parameters.items()}
    assert {name: leaf.shape for name, leaf in arrays.items()} == expected
    assert learner.objective.model.parameters == trained_parameters(config.model, config.objective, shape and 32)
    assert learner.objective_of(resolve_phases(config)[0]).model.parameters == learner.objective.model.parameters
    kept = [leaf for name, leaf in leaf_paths(learner.abstract).items() if name.endswith(path)]
    assert len(kept) == (4 if shape else 0) and {leaf.shape for leaf in kept} <= {shape}
    assert {leaf.sharding.shard_shape(leaf.shape) for leaf in kept} == ({(hidden_size // 2, 32)} if shape else set())


def test_a_map_belongs_to_one_run_and_its_teacher(directory, tokenizer, small_store, tmp_path):
    """A student that teaches, or that a run starts from, is without it; `load` has it beside the encoder."""
    written_teacher.write(tmp_path / "student", small_store, ("mlm",), teacher_size=24)
    loaded = load(tmp_path / "student")
    assert loaded.params["state_projection"]["kernel"].shape == (32, 24)
    assert loaded.network.teacher_size == 24 and "state_projection" not in loaded.params["encoder"]
    config = dataclasses.replace(taught(tmp_path / "student"), init_from=str(tmp_path / "student"))
    model = dataclasses.replace(written_teacher.TEACHER, vocab_size=tokenizer.vocab_size)
    paths = {*bert_parameters(model, ("mlm",))}
    assert {*source_of(dataclasses.replace(config, model=model)).arrays} == paths
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    assert {*leaf_paths(teacher_of(config, tokenizer, mesh).params)} == paths


@pytest.mark.parametrize(
    "problem, changes",
    [
        (
            "has num_heads=2, the student 4, but .*attention_weight",
            {"model": {"num_heads": 4}, "attention_weight": 1.0},
        ),
        (
            "must name a layer of the teacher, 0 to 3, for each of the 3",
            {"model": {"num_layers": 3}, "hidden_weight": 1.0},
        ),
        ("must name a layer of the teacher", {"layers": (0, 9), "hidden_weight": 1.0}),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(directory, tokenizer, problem, changes):
    layers = {"layers": changes.pop("layers")} if "layers" in changes else {}
    config = taught(directory, changes.pop("model", None), **changes)
    options = dataclasses.replace(config.objective.distillation, **layers)
    config = dataclasses.replace(config, objective=dataclasses.replace(config.objective, distillation=options))
    with pytest.raises(UserError, match=problem):
        teacher_of(check(config), tokenizer, sharding.make_mesh(MeshConfig(), jax.devices()[:1]))


def test_a_teacher_with_another_vocabulary_or_without_the_head_is_refused(directory, small_store, tokenizer, tmp_path):
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    other = Tokenizer(WordPiece([*tokenizer.tokens[:-1], "another"], lowercase=True))
    with pytest.raises(UserError, match="has a vocabulary .* different from .* so its predictions are of other words"):
        teacher_of(taught(directory), other, mesh)
    written_teacher.write(tmp_path / "bare", small_store, ("pooler",))
    with pytest.raises(UserError, match="has no masked-language-model head .*soft_weight=5 needs"):
        teacher_of(taught(tmp_path / "bare"), tokenizer, mesh)
    written_teacher.write(tmp_path / "short", small_store, max_position_embeddings=40)
    with pytest.raises(UserError, match="reads at most 40 tokens, but phases have 48"):
        teacher_of(taught(tmp_path / "short"), tokenizer, mesh)
    written_teacher.write(tmp_path / "recurrent", small_store, layer="lstm", positions="none", type_vocab_size=0)
    with pytest.raises(UserError, match="is a recurrent model, which was not trained to predict words at their masks"):
        teacher_of(taught(tmp_path / "recurrent"), tokenizer, mesh)
    assert teacher_of(taught(""), tokenizer, mesh) is None


@pytest.mark.parametrize(
    "problem, changes",
    [
        ("temperature=0.0 must be positive", {"temperature": 0.0}),
        ("cosine_weight=-1.0 must be 0 or a positive number", {"cosine_weight": -1.0}),
        ("all weights below objective.distillation are 0", {"soft_weight": 0.0, "cosine_weight": 0.0}),
    ],
)
def test_options_out_of_range_are_refused(problem, changes):
    with pytest.raises(UserError, match=problem):
        check(taught("somewhere", **changes))


@pytest.mark.parametrize("pairs", ["nsp", "adjacent"])
def test_pairs_need_a_teacher_that_knows_two_segments_or_none(small_store, tokenizer, tmp_path, pairs):
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    for types in (0, 1, 2):
        place = tmp_path / str(types)
        written_teacher.write(place, small_store, type_vocab_size=types)
        config = taught(place, {"type_vocab_size": 2, "pair_head": True})
        config = check(dataclasses.replace(config, data=DataConfig(sentence_pairs=pairs)))
        if types == 1:
            with pytest.raises(UserError, match=f"not know the second segment of data.sentence_pairs={pairs}; set"):
                teacher_of(config, tokenizer, mesh)
        else:
            assert teacher_of(config, tokenizer, mesh) is not None


def test_a_student_starts_from_the_chosen_layers(directory, tokenizer):
    """Also in the reverse order, and also from init_from; what it has no place for is listed."""
    config = taught(directory, layers=(3, 1))
    source = source_of(config)
    named = dataclasses.replace(taught(""), init_from=str(directory), init_from_layers=(3, 1))
    assert contents(source) == contents(source_of(named))
    model = BertForPreTraining(dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size), parts=("mlm",))
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    fresh = jax.device_put(random_params(model, seed=5), sharding.replicated(mesh))
    found, report = initialize(source, model.parameters, tokenizer, fresh)
    theirs, ours = leaf_paths(teacher_of(config, tokenizer, mesh).params), leaf_paths(found)
    for path, values in ours.items():
        expected = np.asarray(theirs[path])
        np.testing.assert_array_equal(values, expected[[3, 1]] if path.startswith("encoder/") else expected)
    layers = {path: (values.size, "layers 3,1 of 4") for path, values in ours.items() if path.startswith("encoder/")}
    assert not report.fresh and report.resized == layers
    lost = "embeddings/token_type/table, pooler/bias, pooler/kernel"
    assert report.left_out == [f"left out: arrays that have no place here ({lost})"]
    assert source_of(config, resumed=True) is None


@pytest.mark.parametrize(
    "layers, problem", [((0, 4), "has the layers 0 to 3, and no layer 4"), ((0,), "num_layers is 2")]
)
def test_layers_that_are_not_there_are_refused(directory, layers, problem):
    with pytest.raises(UserError, match=problem):
        source_of(taught(directory, layers=layers))


def test_a_teacher_whose_layers_do_not_fit_is_named_and_teaches_a_student_of_random_parameters(directory, tokenizer):
    """The first message is followed to the end."""
    config = taught(directory, {"hidden_size": 16, "activation": "gelu_erf"}, layers=(1, 3))
    with pytest.raises(UserError) as found:
        source_of(config)
    message, way_out = str(found.value), "--init_from_layers="
    assert message.startswith(f"objective.distillation.teacher={directory} is a different model")
    assert message.endswith(f"or, to start from random parameters, {way_out}") and "init_from=" not in message
    config = parse(config, [way_out], "x")
    assert source_of(config) is None
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    assert teacher_of(check(config), tokenizer, mesh).model.config.hidden_size == 32
    asked = dataclasses.replace(taught("", {"hidden_size": 16}, (1, 3)), init_from=str(directory))
    with pytest.raises(UserError, match=f"^init_from={directory} is a different model.* To continue from it, add: "):
        source_of(asked)


def test_the_configurations_have_the_published_weights():
    for name in ("distilbert", "distilbert_mini"):
        config = load_config(name)
        options = config.objective.distillation
        assert (options.soft_weight, config.objective.mlm_weight, options.cosine_weight) == (5, 2, 1)
        assert options.temperature == 2 and len(config.init_from_layers) == config.model.num_layers


HEAD = HeadConfig(labels=("a", "b"))


def test_the_teacher_of_a_task_keeps_its_head_and_its_bits(tmp_path):
    write_model(tmp_path / "there", "text")
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    distillation = TaskDistillationConfig(teacher=str(tmp_path / "there"))
    options = SentenceOptions(max_length=32)
    config = dataclasses.replace(task_defaults("text"), distillation=distillation, options=options)
    stored = stored_task_teacher(config, TOKENIZER)
    teacher = open_task_teacher(stored, config, HEAD, mesh)
    found = {path: np.asarray(values).tobytes() for path, values in leaf_paths(teacher.params).items()}
    assert found == contents(open_stored(tmp_path / "there")) and teacher.model.head.labels == ("a", "b")
    for head, problem in (
        (HeadConfig(labels=("b", "a")), "classification of a, b, the student one for classification of b, a"),
        (HeadConfig(kind="regression"), "the student one for regression; choose a teacher"),
    ):
        with pytest.raises(UserError, match=problem):
            open_task_teacher(stored, config, head, mesh)
    with pytest.raises(UserError, match="reads at most 40 tokens, but options.max_length=64"):
        stored_task_teacher(dataclasses.replace(config, options=SentenceOptions(max_length=64)), TOKENIZER)
    with pytest.raises(UserError, match="has a vocabulary .* different from"):
        stored_task_teacher(config, Tokenizer(WordPiece([*TOKENIZER.tokens, "more"], lowercase=True)))
    with new_directory(tmp_path / "bare") as partial:
        write_bert_jax(stored_model(), partial)
    bare = dataclasses.replace(config, distillation=TaskDistillationConfig(teacher=str(tmp_path / "bare")))
    message = "has no head of a task, so it has nothing to teach; fine-tune it on text first"
    with pytest.raises(UserError, match=message):
        stored_task_teacher(bare, TOKENIZER)


@pytest.mark.parametrize(
    "problem, options",
    [
        ("distillation.share=0.0 must be above 0", {"share": 0.0}),
        ("distillation.share=1.5 must be .* at most 1", {"share": 1.5}),
        ("distillation.temperature=-1.0 must be positive", {"temperature": -1.0}),
    ],
)
def test_options_of_a_task_out_of_range_are_refused(problem, options):
    with pytest.raises(UserError, match=problem):
        TaskDistillationConfig(teacher="somewhere", **options).check(crf=False)


def test_a_crf_learns_from_no_teacher():
    with pytest.raises(UserError, match="leave --crf out"):
        TaskDistillationConfig(teacher="somewhere").check(crf=True)
    TaskDistillationConfig().check(crf=True)
