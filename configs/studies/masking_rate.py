"""How many tokens to mask: 15 to 40 % of them, as the paper and those who doubted it.

bert-jax study masking_rate --data.path=STORE --task_data=DATA --workdir=DIR
"""

from bert_jax.config.studying import Arm, Measure, Study

RATES = (0.15, 0.2, 0.3, 0.4)


def get_study() -> Study:
    return Study(
        title="How many tokens to mask",
        question="Does masking more than 15 % of the tokens help? (Wettig et al. 2023: 40 % does, in a large model)",
        base="bert_study",
        arms=tuple(
            Arm(name=f"mask_{rate:.0%}".removesuffix("%"), label=f"{rate:.0%}", x=rate, options={"masking.rate": rate})
            for rate in RATES
        ),
        measures=(
            Measure(metric="mlm_accuracy", title="masked words, 15 % masked"),
            Measure(metric="mlm_loss", title="loss, 15 % masked"),
        ),
        axis="masking rate",
    )
