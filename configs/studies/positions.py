"""Positions: a learned table from a random or a sinusoidal start, and two ways to do without a table.

bert-jax study positions --data.path=STORE --workdir=DIR
"""

from bert_jax.config.studies import Arm, Measure, Study

ARMS = (
    Arm(name="random", label="learned, random start", options={"model.positions": "learned"}),
    Arm(
        name="sinusoidal",
        label="learned, sinusoidal start",
        options={"model.positions": "learned", "model.position_init": "sinusoidal"},
    ),
    Arm(name="alibi", label="ALiBi", options={"model.positions": "alibi"}),
    Arm(name="rope", label="rotary", options={"model.positions": "rope"}),
)


def get_study() -> Study:
    return Study(
        title="Learned positions, from a random or a sinusoidal start, and others",
        question="Does a table of positions learn sooner from sinusoids, and do encoders without a table learn sooner?",
        base="bert_study",
        arms=ARMS,
        measures=(
            Measure(metric="mlm_accuracy", title="masked words"),
            Measure(metric="mlm_loss", title="loss of masked words"),
        ),
    )
