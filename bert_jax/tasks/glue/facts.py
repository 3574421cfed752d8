"""The facts of GLUE (Wang et al. 2019): columns, classes, metrics and sizes of its tasks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task in the benchmark's own download."""

    names: tuple[str, ...]
    """Names of its directory in the download; the first is also that of its file in a submission."""
    columns: tuple[str, ...]
    """Headers of the sentence, or of the two sentences."""
    labels: tuple[str, ...]
    """Classes in the benchmark's order; none if a number is estimated."""
    metrics: tuple[str, ...]
    """Metrics; the first is the one in the paper's table, which selects among runs."""
    rows: dict[str, int]
    """Published number of examples of each split."""
    label: str = "label"
    """Header of the label."""
    numbered: bool = False
    """Whether files and submissions write 0 and 1 for the two classes."""
    tfds_columns: tuple[str, ...] = ()
    """Headers of the sentences in TFDS, if different."""


_INFERENCE = ("entailment", "neutral", "contradiction")
_ENTAILMENT = ("entailment", "not_entailment")
_PREMISE = ("premise", "hypothesis")
_PAIR = ("sentence1", "sentence2")

GLUE_TASKS = {
    "cola": GlueTask(
        ("CoLA",),
        ("sentence",),
        ("unacceptable", "acceptable"),
        ("matthews", "accuracy"),
        {"train": 8551, "dev": 1043, "test": 1063},
        numbered=True,
    ),
    "sst2": GlueTask(
        ("SST-2",),
        ("sentence",),
        ("negative", "positive"),
        ("accuracy",),
        {"train": 67_349, "dev": 872, "test": 1821},
        numbered=True,
    ),
    "mrpc": GlueTask(
        ("MRPC",),
        ("#1 String", "#2 String"),
        ("not_equivalent", "equivalent"),
        ("f1", "accuracy"),
        {"train": 3668, "dev": 408, "test": 1725},
        label="Quality",
        numbered=True,
        tfds_columns=_PAIR,
    ),
    "stsb": GlueTask(
        ("STS-B",), _PAIR, (), ("spearman", "pearson"), {"train": 5749, "dev": 1500, "test": 1379}, label="score"
    ),
    "qqp": GlueTask(
        ("QQP",),
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        ("f1", "accuracy"),
        {"train": 363_846, "dev": 40_430, "test": 390_965},
        label="is_duplicate",
        numbered=True,
    ),
    "mnli": GlueTask(
        ("MNLI",),
        _PAIR,
        _INFERENCE,
        ("accuracy",),
        {"train": 392_702, "dev": 9815, "dev_mismatched": 9832, "test": 9796, "test_mismatched": 9847},
        label="gold_label",
        tfds_columns=_PREMISE,
    ),
    # The second version, which replaced that of the paper (108 thousand examples) in January 2019.
    "qnli": GlueTask(
        ("QNLI",), ("question", "sentence"), _ENTAILMENT, ("accuracy",), {"train": 104_743, "dev": 5463, "test": 5463}
    ),
    "rte": GlueTask(("RTE",), _PAIR, _ENTAILMENT, ("accuracy",), {"train": 2490, "dev": 277, "test": 3000}),
    "wnli": GlueTask(
        ("WNLI",),
        _PAIR,
        ("not_entailment", "entailment"),
        ("accuracy",),
        {"train": 635, "dev": 71, "test": 146},
        numbered=True,
    ),
    "ax": GlueTask(
        ("AX", "diagnostic"),
        _PAIR,
        _INFERENCE,
        ("matthews", "accuracy"),
        {"dev": 1104, "test": 1104},
        tfds_columns=_PREMISE,
    ),
}

LABELLED_DIAGNOSTICS = ("Premise", "Hypothesis", "Label")
"""Headers of diagnostic-full.tsv, the labelled form of AX, instead of sentence1, sentence2 and label."""

COLA_COLUMNS = ("source", "label", "original_judgement", "sentence")
"""Columns of CoLA's train.tsv and dev.tsv, which have no header."""
