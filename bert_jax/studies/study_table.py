"""The results of a study as Markdown: our figures beside the paper's, and what the seeds allow to say of them."""

from bert_jax.config.studying import Study
from bert_jax.studies.study_summary import Column, Figure

NOT_APART = "≈"


def study_table(study: Study, columns: list[Column], failures: dict[str, str], runs: str) -> str:
    """Return table.md.

    Args:
      study: what was compared.
      columns: our figures, in the order of the study's measures.
      failures: what went wrong, by the name of the run.
      runs: how many runs are done, in words.
    """
    published = [(name, rows) for each in study.published for name, rows in each.figures.items()]
    headings = ["arm", *(each.heading for each in columns), *(f"{name} (paper)" for name, _ in published)]
    lines = [f"# {study.title}", "", study.question, "", runs, "", _row(headings), _row(["---"] * len(headings))]
    for arm in study.arms:
        ours = [
            _cell(each.figures.get(arm.name), measure.scale)
            for each, measure in zip(columns, study.measures, strict=True)
        ]
        theirs = [str(rows[arm.name]) if arm.name in rows else "" for _, rows in published]
        lines.append(_row([arm.title, *ours, *theirs]))
    lines += ["", *_notes(study, columns), ""]
    lines += [f"The paper's figures: {each.source}." for each in study.published]
    lines += [f"Failed: {name}: {message}" for name, message in failures.items()]
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(figure: Figure | None, scale: int) -> str:
    """Return mean ± standard deviation; ≈ where the seeds do not tell it from the first arm."""
    if figure is None:
        return "–"
    form = ".2f" if scale == 100 else ".3f"
    spread = "" if figure.deviation is None else f" ± {scale * figure.deviation:{form}}"
    return f"{scale * figure.mean:{form}}{spread}{f' {NOT_APART}' if figure.told_apart is False else ''}"


def _notes(study: Study, columns: list[Column]) -> list[str]:
    """Return what the figures say and do not say, a line each."""
    figures = [figure for each in columns for figure in each.figures.values()]
    counts = {len(figure.values) for figure in figures}
    lines = []
    if any(count > 1 for count in counts):
        lines.append(
            f"Mean ± standard deviation over {_seeds(counts)} seeds. {NOT_APART}: not significantly different from "
            f"{study.arms[0].title}, because the 95 % confidence interval of the difference (Welch's t) contains 0."
        )
    if 1 in counts:
        lines.append("Figures without ± are those of one seed: what lies between them may be chance.")
    lines += [line for each in columns if (line := _verdict(each))]
    return [line for each in lines for line in (each, "")][:-1]


def _seeds(counts: set[int]) -> str:
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def _verdict(each: Column) -> str:
    parts = []
    if each.p_value is not None:
        seen = "the arms differ by more" if each.p_value < 0.05 else "the arms are not seen to differ by more"
        parts.append(f"{seen} than their seeds (one-way analysis of variance, p = {each.p_value:.2g})")
    if each.rank_correlation is not None:
        parts.append(f"rank correlation with the paper's {each.beside} {each.rank_correlation:+.2f}")
    return f"{each.heading}: {'; '.join(parts)}." if parts else ""
