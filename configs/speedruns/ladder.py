"""From BERT's recipe of 2018 to the best one found here, one change at a time.

    bert-jax speedrun ladder --data.path=STORE --data.eval_path=VALID --workdir=DIR [--scores=all --task_data=GLUE]

STORE has 4,096 WordPieces, VALID other documents in the same pieces, and GLUE holds SST-2/, STS-B/, CoLA/ and MRPC/.
The reference is the row `bert_mini` of docs/family.md at the size of BERT-tiny (2 layers, hidden size 128). Changes
that make nothing better stay in the table; most arms change `packed`, whose rows hold the fewest empty positions.
"""

import dataclasses
from typing import Any

from bert_jax.config.finetuning import FinetuneConfig, task_defaults
from bert_jax.config.studies import Measure, Share, Speedrun, SpeedrunArm
from bert_jax.config.tasks import TaskDataConfig

RECIPE = {
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.initializer_range": 0.05,
    "model.position_init": "sinusoidal",
    "steps": 18_000,
    "sequence_length": 64,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "warmup_steps": Share(0.05),
    "checkpoint.keep_last": 1,
    "checkpoint.keep_best": 0,
    "checkpoint.every_steps": 1_000,
    "evaluation.every_steps": 0,
    "evaluation.sequences": 256,
    "log_every_steps": 50,
}


def left_to_right(percent: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two phases, of which the first predicts the next word, for so many of 100 steps."""
    first = {"steps": Share(percent / 100), "objective.name": "left_to_right", "model.direction": "left_to_right"}
    return first, {}


ARMS = (
    SpeedrunArm(name="bert", label="BERT, 2018"),
    SpeedrunArm(name="rope", on="bert", label="rotary positions", options={"model.positions": "rope"}),
    SpeedrunArm(name="pre_norm", on="rope", label="norms before the branches", options={"model.norm_position": "pre"}),
    SpeedrunArm(
        name="no_pairs",
        on="rope",
        label="no next sentences",
        options={"data.sentence_pairs": "none", "model.pair_head": False},
    ),
    SpeedrunArm(
        name="packed",
        on="no_pairs",
        label="packed rows",
        options={"data.packing": "on", "data.short_sequence_probability": 0.0},
    ),
    SpeedrunArm(
        name="rms_norm",
        on="packed",
        label="RMSNorm, no biases",
        options={"model.norm": "rms_norm", "model.norm_bias": False, "model.use_bias": False},
    ),
    SpeedrunArm(name="geglu", on="packed", label="GeGLU", options={"model.feed_forward": "geglu"}),
    SpeedrunArm(name="muon", on="packed", label="Muon", options={"optimizer.name": "muon"}),
    SpeedrunArm(
        name="trapezoid",
        on="packed",
        label="constant rate, then 1 − √",
        options={
            "schedule.name": "constant",
            "schedule.cooldown_steps": Share(0.4),
            "schedule.cooldown": "one_minus_sqrt",
        },
    ),
    SpeedrunArm(name="rate_30", on="packed", label="30 % masked", options={"masking.rate": 0.3}),
    SpeedrunArm(name="batch_32", on="packed", label="batches of 32", options={"batch_size": 32}),
    SpeedrunArm(name="batch_8", on="packed", label="batches of 8", options={"batch_size": 8}),
    SpeedrunArm(
        name="ramp",
        on="packed",
        label="batches of 8, growing to 32",
        options={"batch_size": 32, "ramp_batch_sizes": (8, 16), "ramp_steps": Share(0.5)},
    ),
    SpeedrunArm(name="beta2", on="packed", label="β₂ = 0.98", options={"optimizer.beta2": 0.98}),
    SpeedrunArm(
        name="narrow_start", on="packed", label="initial weights of 0.02", options={"model.initializer_range": 0.02}
    ),
    SpeedrunArm(
        name="scaled_start", on="packed", label="smaller initial outputs", options={"model.scaled_outputs": True}
    ),
    SpeedrunArm(
        name="rate_30_to_15",
        on="packed",
        label="30 %, then 15 % masked",
        phases=({"steps": Share(0.75), "masking.rate": 0.3}, {"masking.rate": 0.15}),
    ),
    SpeedrunArm(  # mmBERT's rates (arXiv 2509.06888), for about its shares of the tokens
        name="rate_30_15_5",
        on="packed",
        label="30 %, 15 %, then 5 % masked",
        phases=(
            {"steps": Share(0.7), "masking.rate": 0.3},
            {"steps": Share(0.25), "masking.rate": 0.15},
            {"masking.rate": 0.05},
        ),
    ),
    *(
        SpeedrunArm(
            name=f"left_{percent}",
            on="packed",
            label=f"left to right for {percent} %",
            phases=left_to_right(percent),
        )
        for percent in (25, 50, 75)
    ),
    SpeedrunArm(
        name="rate_30_left_25",
        on="rate_30",
        label="30 % masked, after 25 % left to right",
        phases=left_to_right(25),
    ),
    SpeedrunArm(  # the gate takes a third of the width, so that a step has as many operations
        name="modern_layers",
        on="rate_30_left_25",
        label="ModernBERT's layers",
        options={
            "model.norm_position": "pre",
            "model.first_attention_norm": False,
            "model.norm_bias": False,
            "model.use_bias": False,
            "model.feed_forward": "geglu",
            "model.intermediate_size": 344,
        },
    ),
    SpeedrunArm(name="relu_squared", on="packed", label="ReLU²", options={"model.activation": "relu_squared"}),
    SpeedrunArm(
        name="query_key_norm", on="packed", label="norms of queries and keys", options={"model.query_key_norm": True}
    ),
    SpeedrunArm(
        name="zero_outputs", on="packed", label="branches that start at 0", options={"model.zero_outputs": True}
    ),
    SpeedrunArm(
        name="value_embeddings", on="packed", label="value embeddings", options={"model.value_embeddings": "ends"}
    ),
    SpeedrunArm(name="logit_cap", on="packed", label="logits below 15", options={"model.logit_cap": 15.0}),
    SpeedrunArm(name="z_loss", on="packed", label="z-loss", options={"objective.z_loss_weight": 1e-4}),
    SpeedrunArm(
        name="polar_express", on="muon", label="polar express", options={"optimizer.orthogonalization": "polar_express"}
    ),
    SpeedrunArm(name="untied", on="pre_norm", label="word head of its own", options={"model.word_head": "linear"}),
)
TASKS = (("sst2", "SST-2", 1, "accuracy"), ("stsb", "STS-B", 3, "spearman"))
TASKS += (("cola", "CoLA", 3, "matthews"), ("mrpc", "MRPC", 3, "accuracy"))


def task(name: str, directory: str, epochs: int) -> FinetuneConfig:
    """Return the fine-tuning of docs/family.md."""
    data = TaskDataConfig(dir=directory)
    return dataclasses.replace(task_defaults(name), data=data, epochs=epochs, batch_size=32, learning_rate=3e-4)


def get_speedrun() -> Speedrun:
    return Speedrun(
        title="From BERT's recipe to a better one",
        base="bert_tiny",
        options=RECIPE,
        arms=ARMS,
        tasks={name: task(name, directory, epochs) for name, directory, epochs, _ in TASKS},
        measures=tuple(Measure(metric=metric, of=name, title=directory) for name, directory, _, metric in TASKS),
    )
