"""The number of steps, for masked words and left to right (figure 5 of the paper).

    bert-jax study steps --data.path=STORE --task_data=DATA --workdir=DIR

DATA holds ud/, the English-EWT treebank of Universal Dependencies. Every point is a run of its own, whose learning rate
decays to 0; the paper's are checkpoints of one run, whose rate is still high.
"""

from bert_jax.config.studies import PARTS_OF_SPEECH, Arm, Measure, Study

STEPS = (125, 250, 500, 1_000, 2_000)


def get_study() -> Study:
    return Study(
        title="The number of steps",
        question="Does more pre-training still help? In the paper's figure 5, a million steps of BERT-base give almost "
        "1.0 % more on MNLI than half a million.",
        base="bert_study",
        seeds=2,
        arms=tuple(
            Arm(
                name=f"steps_{steps}",
                label=f"{steps:,}",
                x=steps,
                options={"steps": steps, "warmup_steps": steps // 10},
            )
            for steps in STEPS
        ),
        tasks={"pos": PARTS_OF_SPEECH},
        measures=(
            Measure(metric="mlm_accuracy", title="masked words"),
            Measure(metric="accuracy", of="pos", title="parts of speech"),
        ),
        axis="steps of pre-training",
        log_axis=True,
    )
