"""What replaces the predicted tokens: shares of [MASK], the token itself and a random one (table 8 of the paper).

bert-jax study replacement --data.path=STORE --task_data=DATA --workdir=DIR

DATA holds ud/, the English-EWT treebank of Universal Dependencies. Held-out words are masked 80/10/10 in all arms.
"""

from bert_jax.config.studies import PARTS_OF_SPEECH, Arm, Measure, Published, Study

SHARES = ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))
"""[MASK], same, random, in percent."""
NAMES = tuple(f"mask{mask}_same{same}_random{random}" for mask, same, random in SHARES)


def get_study() -> Study:
    return Study(
        title="What replaces the predicted tokens",
        question="Does it help to leave some of the predicted tokens, or to put random ones in their place?",
        base="bert_study",
        arms=tuple(
            Arm(
                name=name,
                label=f"[MASK] {mask}, same {same}, random {random}",
                options={"masking.mask_share": mask / 100, "masking.random_share": random / 100},
            )
            for name, (mask, same, random) in zip(NAMES, SHARES, strict=True)
        ),
        tasks={"pos": PARTS_OF_SPEECH},
        measures=(
            Measure(metric="mlm_accuracy", title="masked words", beside="MNLI"),
            Measure(metric="accuracy", of="pos", title="parts of speech", beside="NER fine-tuned"),
        ),
        published=(
            Published(
                source="Devlin et al. 2019, table 8 (BERT-base, dev)",
                figures={
                    "MNLI": dict(zip(NAMES, (84.2, 84.3, 84.1, 84.4, 83.7, 83.6), strict=True)),
                    "NER fine-tuned": dict(zip(NAMES, (95.4, 94.9, 95.2, 95.2, 94.8, 94.9), strict=True)),
                    "NER features": dict(zip(NAMES, (94.9, 94.0, 94.6, 94.7, 94.6, 94.6), strict=True)),
                },
            ),
        ),
    )
