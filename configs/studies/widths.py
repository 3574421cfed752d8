"""Widths 64 to 512 at six learning rates, as they are and scaled from the narrowest (μP): does the best rate move?

    bert-jax study widths --data.path=STORE --workdir=DIR

Heads have 32 features at every width. The scaled arms have the initial values and rates of the base width 64, where
both kinds are the same and share their runs.
"""

from bert_jax.config.studies import Arm, Measure, Study

BASE, HEAD_SIZE = 64, 32
WIDTHS = (64, 128, 256, 512)
RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


def arm(kind: str, width: int, rate: float) -> Arm:
    sizes = {"model.hidden_size": width, "model.num_heads": width // HEAD_SIZE, "learning_rate": rate}
    scaling = {"model.scaling.base_hidden_size": BASE} if kind == "scaled" and width > BASE else {}
    return Arm(
        name=f"{kind}_{width}_{rate:g}",
        label=f"{kind}, {width} wide, {rate:g}",
        options=sizes | scaling,
        x=rate,
        line=f"{width} wide",
        panel=kind,
    )


def get_study() -> Study:
    return Study(
        title="Widths and learning rates, without and with μP",
        question="Does the best learning rate fall with the width, and does it stay with model.scaling? Yang et al. "
        "2022 say so (Tensor Programs V, figure 1).",
        base="bert_study",
        options={"steps": 400, "warmup_steps": 40, "batch_size": 16},
        seeds=1,
        arms=tuple(arm(kind, width, rate) for kind in ("standard", "scaled") for width in WIDTHS for rate in RATES),
        measures=(Measure(metric="mlm_loss", title="loss of masked words"),),
        axis="learning rate",
        log_axis=True,
    )
