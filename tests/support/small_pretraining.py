"""Small runs: on one device, on all, in two phases, and the smallest."""

import dataclasses
import functools
import pathlib
import shutil
from collections.abc import Iterable

import jax
import numpy as np

from bert_jax import pretraining
from bert_jax.checkpoints.record import read_record
from bert_jax.cli import evaluate
from bert_jax.config import Config, ModelConfig, PhaseConfig, resolve_phases
from bert_jax.config.pretraining import CheckpointConfig, ComputeConfig, DataConfig, EvaluationConfig, MeshConfig
from bert_jax.console import configured
from bert_jax.devices import sharding
from bert_jax.finetuning import loop, prediction
from bert_jax.models.bert import BertForPreTraining
from bert_jax.pretrained.initialization import open_source
from bert_jax.pretraining import default_objective
from bert_jax.training.metrics import read_rows
from bert_jax.training.optimizers import learning_rate, optimizer
from bert_jax.training.state import abstract_state, state_shardings
from bert_jax.training.step import make_train_step

MODEL = ModelConfig(hidden_size=32, num_layers=2, num_heads=2, max_position_embeddings=64)
SCANNED = ComputeConfig(layers="scan")
"""Two layers in a scan compile in half the time of two that are unrolled, which is what a run of users has."""


TIMES = {"steps_per_second", "sequences_per_second", "tokens_per_second", "token_share", "seconds_left", "mfu"} | {
    f"host_input_seconds_{statistic}" for statistic in ("median", "p90", "max")
}


def run_config(store, workdir, **changes) -> Config:
    base = Config(
        model=MODEL,
        compute=SCANNED,
        data=DataConfig(path=str(store), held_out=0.1, loader="plain"),
        workdir=str(workdir),
        log_every_steps=1,
        phases=(PhaseConfig(steps=12, sequence_length=32, batch_size=16, learning_rate=1e-3, warmup_steps=2),),
        evaluation=EvaluationConfig(every_steps=6, sequences=64, batch_size=32),
        checkpoint=CheckpointConfig(every_steps=4, keep_last=2),
    )
    return dataclasses.replace(base, **changes)


def nothing_held_out(store) -> DataConfig:
    """For runs whose rows of training are what counts: an evaluation is one more program to compile per mesh."""
    return DataConfig(path=str(store), held_out=0.0, loader="plain")


def rows(workdir, kind="train"):
    """What was logged, without the clock's share of it."""
    return [
        {name: value for name, value in row.items() if name not in TIMES}
        for row in read_rows(pathlib.Path(workdir) / "metrics.jsonl")
        if row["kind"] == kind
    ]


def pretrain(config, **options):
    return pretraining.pretrain(config, devices=jax.devices()[:1], **options)


def assert_resumed_exactly(config: Config, lost: Iterable[int], again: Config | None = None, **options) -> None:
    """Without the checkpoints of these steps a second start becomes the first: what is logged, and the last state."""
    checkpoints = pathlib.Path(config.workdir, "checkpoints")
    last = max(checkpoints.glob("step_*"))

    def told():
        record = read_record(last / "record")
        return rows(config.workdir), rows(config.workdir, "evaluation"), record["position"], record["arrays"]

    before = told()
    for step in lost:
        shutil.rmtree(checkpoints / f"step_{step:09d}")
    pretrain(again or config, **options)
    assert told() == before


def pretrain_by_words(*words: str):
    """As the command line reads them."""
    return pretrain(configured(list(words), "pretrain CONFIG", ""))


def finetune(task, **options):
    return loop.finetune(task, devices=jax.devices()[:1], **options)


def run_predict(workdirs: str, config):
    return prediction.run_predict(workdirs, config, devices=jax.devices()[:1])


def run_evaluate(workdir: str, config, **options):
    return evaluate.run_evaluate(workdir, config, devices=jax.devices()[:1], **options)


TEXT = "RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes."
DOES_NOT_FIT = r"does not fit into the memory of a device \(RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes\.\)"


def full_device(*arguments, **options):
    raise jax.errors.JaxRuntimeError(TEXT)


TINY = Config(
    model=ModelConfig(hidden_size=16, num_layers=1, num_heads=2, vocab_size=64, max_position_embeddings=32),
    phases=(PhaseConfig(steps=10, sequence_length=16, batch_size=8), PhaseConfig(steps=10, sequence_length=32)),
)


BATCH, LENGTH, MASKED, VOCABULARY = 16, 12, 4, 64
SINGLE = None  # in place of a mesh: the first device alone
CUBE = MeshConfig(data=2, fsdp=2, tensor=2)


def tiny(dropout: float = 0.2, micro_batches: int = 1, layers: str = "scan") -> tuple[BertForPreTraining, Config]:
    model = ModelConfig(vocab_size=VOCABULARY, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=32)
    model = dataclasses.replace(
        model, max_position_embeddings=LENGTH, hidden_dropout=dropout, attention_dropout=dropout
    )
    phase = PhaseConfig(steps=100, warmup_steps=2, sequence_length=LENGTH, batch_size=BATCH, learning_rate=0.01)
    phase = dataclasses.replace(phase, micro_batches=micro_batches)
    config = Config(model=model, phases=(phase,), compute=ComputeConfig(dtype="float32", layers=layers), seed=5)
    return BertForPreTraining(model, config.compute), config


def batch(step: int, pairs: bool = True) -> dict[str, np.ndarray]:
    """Rows with very different numbers of predictions, so that a mean of means would show."""
    random = np.random.default_rng(step)
    lengths = random.integers(LENGTH // 2, LENGTH + 1, BATCH)
    weights = (np.arange(MASKED) < random.integers(0, MASKED + 1, BATCH)[:, None]).astype(np.float32)
    arrays = {
        "input_ids": random.integers(5, VOCABULARY, (BATCH, LENGTH)),
        "masked_weights": weights,
        "token_type_ids": np.broadcast_to(np.arange(LENGTH) > LENGTH // 2, (BATCH, LENGTH)),
        "attention_mask": np.arange(LENGTH) < lengths[:, None],
        "masked_positions": random.integers(0, LENGTH // 2, (BATCH, MASKED)) * (weights > 0),
        "masked_ids": random.integers(5, VOCABULARY, (BATCH, MASKED)) * (weights > 0),
    }
    if pairs:
        arrays["next_sentence_labels"] = random.integers(0, 2, BATCH)
    return {name: array.astype(array.dtype if name == "masked_weights" else np.int32) for name, array in arrays.items()}


@functools.cache
def compiled(model, config, mesh: MeshConfig | None):
    """(mesh, shardings of the state, train step): tests that ask for the same one share its compilation."""
    mesh = sharding.make_mesh(mesh or MeshConfig(), None if mesh else jax.devices()[:1])
    tx = optimizer(config.optimizer, model.parameters)
    shardings = state_shardings(abstract_state(model, tx, mesh))
    step = make_train_step(
        default_objective(model, config),
        tx,
        mesh,
        shardings,
        clip_norm=config.optimizer.clip_norm,
        micro_batches=config.phases[0].micro_batches,
        schedule=functools.partial(learning_rate, config.schedule, resolve_phases(config)),
        seed=config.seed,
    )
    return mesh, shardings, step


@functools.cache
def initial_parameters(model) -> dict:
    """Large, biases too: dropout then matters, and no gradient vanishes by symmetry."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: (0.3 * random.normal(size=leaf.shape)).astype(np.float32),
        jax.eval_shape(lambda: model.init(jax.random.key(0))),
    )


class Run:
    """A tiny training run on one mesh; every mesh starts from the same parameters."""

    def __init__(self, model, config, mesh: MeshConfig | None):
        self.mesh, self.shardings, self.step = compiled(model, config, mesh)
        abstract = abstract_state(model, optimizer(config.optimizer, model.parameters), self.mesh)
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
        self.state = jax.device_put(dataclasses.replace(state, params=initial_parameters(model)), self.shardings)

    def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, float]:
        self.state, metrics = self.step(self.state, sharding.to_global(self.mesh, arrays, BATCH))
        return {name: float(jax.device_get(value)) for name, value in metrics.items()}


def losses(model, config, mesh, steps: int = 4) -> tuple[list[dict], dict]:
    run = Run(model, config, mesh)
    history = [run(batch(step)) for step in range(steps)]
    return history, jax.device_get(run.state.params)


def source_of(config: Config, resumed: bool = False):
    """The model that the parameters of a run start from."""
    given = config.init_from, config.init_from_layers, config.model, config.objective, resumed
    return open_source(*given, config.init_from_changes)


def assert_filled_in(model, samples) -> None:
    """Check that a run has noted the words that its model fills in, computed text by text, without padding."""
    tokenizer = model.need_tokenizer()
    for sample in samples:
        words = sample["text"].split()
        assert words[0] == "[CLS]" and words.count("[MASK]") == len(sample["masks"])
        ids = np.array([[tokenizer.tokens.index(piece) for piece in words]], np.int32)
        ends = (ids == tokenizer.sep_id).astype(np.int32)
        types = np.cumsum(ends, axis=1, dtype=np.int32) - ends  # 1 behind the first [SEP]
        places = np.flatnonzero(ids[0] == tokenizer.mask_id)[None].astype(np.int32)
        batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": np.ones_like(ids)}
        logits = jax.jit(model.network.mlm_logits)(model.params, batch | {"masked_positions": places})
        for mask, expected in zip(sample["masks"], np.asarray(jax.nn.softmax(logits))[0], strict=True):
            tokens, shares = zip(*mask["candidates"], strict=True)
            np.testing.assert_allclose(shares, np.sort(expected)[: -1 - len(tokens) : -1], atol=1e-4)
            np.testing.assert_allclose(shares, expected[[*map(tokenizer.tokens.index, tokens)]], atol=1e-4)
