"""LayerNorm after each branch (post-LN, as in BERT) or before it (pre-LN), with and without warm-up.

bert-jax study norms --data.path=STORE --workdir=DIR
"""

from bert_jax.config.studies import Arm, Measure, Study

ARMS = tuple(
    Arm(
        name=f"{position}{suffix}",
        label=f"{position}-LN, {'with' if not suffix else 'without'} warm-up",
        options={"model.norm_position": position} | ({"warmup_steps": 0} if suffix else {}),
    )
    for position in ("post", "pre")
    for suffix in ("", "_no_warmup")
)


def get_study() -> Study:
    return Study(
        title="Post-LN and pre-LN, with and without warm-up",
        question="Does post-LN need its warm-up, and pre-LN none? Xiong et al. 2020 say so of deep models.",
        base="bert_study",
        arms=ARMS,
        measures=(
            Measure(metric="mlm_accuracy", title="masked words"),
            Measure(metric="mlm_loss", title="loss of masked words"),
        ),
    )
