"""Depth and width (table 6 of the paper, in the small).

    bert-jax study depth --data.path=STORE --workdir=DIR

The arms are compared with the paper's by their shape, not by their size: its 3, 6 and 12 layers of 768 with 1, 2 and 4
of 128; its 12 heads with 4, and 3 with 1; its 12 layers of 1,024 with 4 of 192.
"""

from bert_jax.config.studies import Arm, Measure, Published, Study

SHAPES = {  # layers, hidden size, heads
    "2x128_4heads": (2, 128, 4),
    "1x128_4heads": (1, 128, 4),
    "2x128_1head": (2, 128, 1),
    "4x128_4heads": (4, 128, 4),
    "4x192_6heads": (4, 192, 6),
}


def get_study() -> Study:
    rows = {
        "perplexity, BERT": (4.68, 5.84, 5.24, 3.99, 3.54),
        "MNLI": (81.9, 77.9, 80.6, 84.4, 85.7),
        "MRPC": (84.8, 79.8, 82.2, 86.7, 86.9),
        "SST-2": (91.3, 88.4, 90.7, 92.9, 93.3),
    }
    return Study(
        title="Depth, width and heads",
        question="Do deeper and wider models predict better, after the same number of steps?",
        base="bert_study",
        arms=tuple(
            Arm(
                name=name,
                label=f"{layers} × {size}, {heads} head{'s' * (heads > 1)}",
                options={"model.num_layers": layers, "model.hidden_size": size, "model.num_heads": heads},
            )
            for name, (layers, size, heads) in SHAPES.items()
        ),
        measures=(
            Measure(metric="perplexity", title="perplexity", beside="perplexity, BERT"),
            Measure(metric="mlm_accuracy", title="masked words", beside="MNLI"),
        ),
        published=(
            Published(
                source="Devlin et al. 2019, table 6: 6 × 768 with 12 heads, 3 × 768, 6 × 768 with 3 heads, 12 × 768, "
                "12 × 1,024 (held-out perplexity; dev)",
                figures={column: dict(zip(SHAPES, figures, strict=True)) for column, figures in rows.items()},
            ),
        ),
    )
