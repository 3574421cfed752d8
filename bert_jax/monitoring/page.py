"""One HTML file with everything in it: tables, figures and the library that draws them; it loads nothing.

Names and values come from files of anybody, so every text is escaped, data reach the script as JSON in which no "<"
is left, and a content security policy lets nothing run but the two scripts of this file.
"""

import dataclasses
import html
import json
import secrets
import time
from typing import Any

from bert_jax import __version__

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1500px; padding: 0 1.5em; color: #222; }
h1 { font-size: 1.5em; overflow-wrap: anywhere; } h2 { font-size: 1.2em; margin: 2em 0 .5em; }
h3 { font-size: 1em; margin: 0; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(520px, 1fr)); gap: 1.5em; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #e6e6e6; vertical-align: top; }
td { max-width: 40em; overflow-wrap: anywhere; } p, footer { color: #666; } summary { cursor: pointer; margin: .6em 0; }
"""

SCRIPT = """
const figures = JSON.parse(document.getElementById("figures").textContent);
for (const [number, figure] of figures.entries()) {
  Plotly.newPlot(`chart-${number}`, figure.data, figure.layout, {responsive: true, displaylogo: false});
}
"""


@dataclasses.dataclass(frozen=True)
class Table:
    """A section of the page."""

    title: str
    head: list[str]
    rows: list[list[str]]
    nothing: str = ""
    """What to say where there are no rows."""
    folded: tuple["Table", ...] = ()
    """Tables below it that open on a click."""


def page(
    title: str, figures: dict[str, dict[str, Any]], tables: list[Table], now: float, heading: str = "Curves"
) -> str:
    """Return the page.

    Args:
      figures: figures of Plotly, by heading.
      tables: the first one stands above the figures, the others below.
      now: time of the page, in seconds since 1970.
      heading: that of the figures.
    """
    from plotly.offline import get_plotlyjs  # 4.8 MB of text

    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:"
    charts = "".join(
        f'<div><h3>{html.escape(name)}</h3><div id="chart-{number}"></div></div>' for number, name in enumerate(figures)
    )
    data = json.dumps(list(figures.values()), allow_nan=False).replace("<", "\\u003c")
    first, *others = (_section(table) for table in tables)
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<title>{html.escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{html.escape(title)}</h1>
{first}
<h2>{html.escape(heading)}</h2>
<p>Drag over a part to enlarge it, double-click to see all again, click a name to hide its line.</p>
<div class="charts">{charts or "<p>No run has logged a step yet.</p>"}</div>
{"".join(others)}
<footer>bert_jax {html.escape(__version__)}, {made}</footer>
<script type="application/json" id="figures">{data}</script>
<script nonce="{nonce}">{get_plotlyjs()}</script>
<script nonce="{nonce}">{SCRIPT}</script>
</body></html>
"""


def _section(table: Table) -> str:
    body = _table(table) if table.rows else f"<p>{html.escape(table.nothing)}</p>"
    folded = "".join(
        f"<details><summary>{html.escape(each.title)}</summary>{_table(each)}</details>" for each in table.folded
    )
    return f"<h2>{html.escape(table.title)}</h2>{body}{folded}"


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in table.rows)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{rows}</table></div>'
