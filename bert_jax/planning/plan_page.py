"""A plan as one page of HTML that loads nothing from elsewhere; every text in it is escaped."""

from html import escape

from bert_jax.planning.sections import Section

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: .6rem 0 }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #d5d9df; text-align: right }
td { font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left }
caption { text-align: left; font-weight: 600; font-size: 1.1rem; padding-top: 1rem }
.verdict { font-size: 1.2rem } .notes { color: #4a5460 } pre { background: #f3f5f7; padding: .8rem; overflow: auto }
@media (prefers-color-scheme: dark) { body { background: #14171a; color: #e4e7ea } pre { background: #22272c }
  th, td { border-color: #3a4148 } .notes { color: #a9b2bb } }
"""


def page(title: str, verdict: list[str], tables: list[Section], command: str) -> str:
    """Return the page.

    Args:
      title: its heading.
      verdict: paragraphs below the heading.
      tables: in order.
      command: the command that made the plan.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *(f'<p class="verdict">{escape(line)}</p>' for line in verdict),
            *map(_table, tables),
            f"<pre>{escape(command)}</pre>",
            "</body></html>",
            "",
        ]
    )


def _table(section: Section) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in section.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
    return (
        f"<table><caption>{escape(section.title)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )
