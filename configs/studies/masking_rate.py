"""How many tokens to mask: 15 to 40 % of them.

    bert-jax study masking_rate --data.path=STORE --task_data=DATA --workdir=DIR

DATA holds ud/, the English-EWT treebank of Universal Dependencies. Held-out words are predicted with 15 % masked in all
arms.
"""

from bert_jax.config.studies import PARTS_OF_SPEECH, Arm, Measure, Study

RATES = (0.15, 0.2, 0.3, 0.4)


def get_study() -> Study:
    return Study(
        title="How many tokens to mask",
        question="Does masking more than 15 % of the tokens help? Wettig et al. 2023 say that 40 % helps large models.",
        base="bert_study",
        arms=tuple(
            Arm(name=f"rate_{round(100 * rate)}", label=f"{rate:.0%}", x=rate, options={"masking.rate": rate})
            for rate in RATES
        ),
        tasks={"pos": PARTS_OF_SPEECH},
        measures=(
            Measure(metric="mlm_accuracy", title="masked words"),
            Measure(metric="mlm_loss", title="loss of masked words"),
            Measure(metric="accuracy", of="pos", title="parts of speech"),
        ),
        axis="share of masked tokens",
    )
