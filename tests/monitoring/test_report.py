"""The page that compares runs: what it shows, that it loads nothing and runs nothing of theirs, and in a browser."""

import dataclasses
import html.parser
import json
import os
import pathlib
import re
import shutil

import numpy as np
import processes
import pytest
from command_lines import status, succeed
from etils import epath

from bert_jax.config.pretraining import ReportConfig
from bert_jax.errors import UserError
from bert_jax.objectives.autoregressive import NEXT_WORDS, PREVIOUS_WORDS
from bert_jax.objectives.masked_words import MASKED_WORDS, NEXT_SENTENCE
from bert_jax.objectives.objective import records
from bert_jax.ownership import Owner
from bert_jax.tools import report
from bert_jax.tools.report import MOST_POINTS, figures, named, run_report, runs_below
from bert_jax.tools.status import read_run

pytest.importorskip("plotly", reason="the page needs the extra `report`")
EVIL = "<script>document.title = 'broken'<\N{DIVISION SLASH}script><img src=x onerror=document.title='broken'>"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

MOUSE = """
const chart = [...document.querySelectorAll("h3")].find((head) => head.textContent === "mlm_loss").nextElementSibling;
const place = chart.querySelector(".nsewdrag"), box = place.getBoundingClientRect();
const send = (target, kind, share) => target.dispatchEvent(new MouseEvent(kind, {
  bubbles: true, cancelable: true, view: window, button: 0, buttons: kind === "mouseup" ? 0 : 1,
  clientX: box.left + share * box.width, clientY: box.top + box.height / 2}));
const texts = (which) => [...chart.querySelectorAll(which)].map((each) => each.textContent);
chart.dataset.before = JSON.stringify(chart._fullLayout.xaxis.range);
chart.on("plotly_hover", (event) => {
  chart.dataset.hovered = JSON.stringify(event.points.map((point) => [point.data.name, point.x, point.y]));
  setTimeout(() => { chart.dataset.shown = JSON.stringify(texts(".hoverlayer text")); }, 0);
});
chart.on("plotly_relayout", () => { chart.dataset.after = JSON.stringify(chart._fullLayout.xaxis.range); });
send(place, "mousemove", 0.5);
setTimeout(() => {
  send(place, "mousedown", 0.25);
  send(document, "mousemove", 0.5);
  send(document, "mousemove", 0.75);
  send(document, "mouseup", 0.75);
}, 1000);
"""


class Parts(html.parser.HTMLParser):
    """The elements of a page and their texts."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def made(finished, tmp_path_factory) -> tuple[pathlib.Path, list[str]]:
    """A page of two runs, one of which does its worst: its name, an option, an event and a metric are HTML."""
    place = tmp_path_factory.mktemp("report")
    good, evil = place / "good", place / EVIL
    for directory in (good, evil):
        shutil.copytree(finished[0].workdir, directory)
    settings = json.loads((evil / "config.json").read_text())
    settings |= {"seed": 7, "init_from": EVIL}
    (evil / "config.json").write_text(json.dumps(settings))
    with (evil / "events.jsonl").open("a") as stream:
        row = {"time": 1.7e9, "step": 8, "reason": EVIL}
        stream.write(json.dumps({**row, "event": "rollback"}) + "\n" + json.dumps({**row, "event": "failed"}) + "\n")
        stream.write(json.dumps({**row, "event": "hung", "place": "loop.py:42"}) + "\n")
        stream.write(json.dumps({**row, "event": "unknown event"}) + "\n")
    with (evil / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"kind": "train", "step": 12, "loss": "nan", EVIL: 3.0}) + "\n")
    run_report([str(good), str(evil)], ReportConfig(output=str(place / "page.html")))
    return place / "page.html", ["good", EVIL]


def test_the_page_is_one_file_that_loads_and_runs_nothing_else(made):
    parts = Parts(made[0].read_text())
    assert {tag for tag, _ in parts.elements} <= set(
        "html head meta title style body h1 h2 h3 p div table tr th td details summary footer script".split()
    )
    for tag, attributes in parts.elements:
        assert not {"src", "href", "srcset", "data", "action"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")]
    scripts = parts.of("script")
    assert [script.get("type") for script in scripts] == ["application/json", None, None]
    nonces = {script["nonce"] for script in scripts[1:]}
    (policy,) = [meta["content"] for meta in parts.of("meta") if "content" in meta]
    assert len(nonces) == 1 and f"script-src 'nonce-{nonces.pop()}'" in policy and "default-src 'none'" in policy
    assert "http" not in policy and 4e6 < made[0].stat().st_size < 6e6


def test_the_page_shows_what_the_runs_have_logged(made, finished):
    text = made[0].read_text()
    parts = Parts(text)
    cells = [data for tag, data in parts.texts if tag in ("td", "th", "h1")]
    assert EVIL in cells and "good" in cells and "rollback" in cells and any(f"reason {EVIL}" in cell for cell in cells)
    options = cells[cells.index("option") :]
    assert [options[options.index("seed") + place] for place in (1, 2)] == ["0", "7"]
    assert "12 of 12" in cells and "last" in cells and "lost to restarts" in cells
    (data,) = [data for tag, data in parts.texts if tag == "script" and data.startswith("[")]
    drawn = dict(zip([data for tag, data in parts.texts if tag == "h3"], json.loads(data), strict=True))
    assert {"loss", "mlm_loss", "mlm_accuracy", "perplexity", "learning_rate", "tokens_per_second"} <= set(drawn)
    traces = {trace.get("name"): trace for trace in drawn["mlm_loss"]["data"]}
    held_out = [row for row in read_run(finished[0].workdir).rows if row["kind"] == "evaluation"]
    assert traces["good, held out"]["x"] == [row["step"] for row in held_out]
    assert traces["good, held out"]["y"] == pytest.approx([row["mlm_loss"] for row in held_out], rel=1e-5)
    words = [shape["label"]["text"] for shape in drawn["mlm_loss"]["layout"]["shapes"] if "label" in shape]
    assert {*words} == {"word frequencies alone", "rollback", "failed", "hung"}
    assert words.count("word frequencies alone") == 1  # not on top of itself
    assert "hung" in cells and any("place loop.py:42" in cell for cell in cells) and "unknown event" not in cells
    assert all("<" not in (trace.get("name") or "") for figure in drawn.values() for trace in figure["data"])


def test_long_series_keep_their_mean_and_holes_stay_holes(finished):
    run = read_run(finished[0].workdir)
    values = np.random.default_rng(0).normal(size=10 * MOST_POINTS)
    values[:10] = np.nan
    rows = [{"kind": "train", "step": step, "loss": float(value)} for step, value in enumerate(values, 1)]
    (figure,) = figures({"long": dataclasses.replace(run, rows=rows, events=[])}).values()
    pale, line = figure["data"]
    assert len(pale["y"]) == len(line["y"]) == MOST_POINTS and pale["y"][0] is None
    expected = values[10:].reshape(-1, 10)
    np.testing.assert_allclose(pale["y"][1:], expected.mean(1), rtol=1e-5)
    assert pale["x"][1] == 15.5  # the middle of steps 11 to 20


def test_the_figures_are_in_the_order_of_the_terms_and_perplexities_are_logarithmic(finished):
    names = {"next_word_loss", "previous_word_loss", "previous_word_perplexity", "perplexity", "mfu", "a"}
    row = {"kind": "train", "step": 1, "loss": 1.0, **dict.fromkeys(sorted(names), 1.0)}
    start = {"time": 0.0, "event": "start", "step": 0, "terms": records([NEXT_WORDS, PREVIOUS_WORDS])}
    run = dataclasses.replace(read_run(finished[0].workdir), rows=[row], events=[start])
    drawn = figures({"two directions": run})
    previous = ["previous_word_loss", "previous_word_perplexity"]
    assert list(drawn) == ["loss", "next_word_loss", "perplexity", *previous, "a", "mfu"]
    scales = {name: figure["layout"]["yaxis"].get("type") for name, figure in drawn.items()}
    assert {name for name, scale in scales.items() if scale == "log"} == {"perplexity", "previous_word_perplexity"}


def test_the_best_step_is_that_of_the_main_loss(finished):
    evaluations = [(1, 5.0, 0.2), (2, 4.0, 0.1), (3, 3.0, 0.3)]
    rows = [{"kind": "evaluation", "step": s, "mlm_loss": m, "next_sentence_loss": n} for s, m, n in evaluations]
    terms = dataclasses.replace(MASKED_WORDS, weight=0.0), NEXT_SENTENCE
    start = {"time": 0.0, "event": "start", "step": 0, "terms": records(terms)}
    run = dataclasses.replace(read_run(finished[0].workdir), rows=rows, events=[start])
    assert [row[1:3] for row in report.held_out({"run": run}).rows] == [["last", "3"], ["best", "2"]]


def test_fine_tuning_runs(finished, finetunings, tmp_path, capsys):
    paths = [finished[0].workdir, str(finetunings / "finetuned")]
    succeed("report", *paths, f"--output={tmp_path}/page.html")
    text = (tmp_path / "page.html").read_text()
    runs = [run.name for run in runs_below(paths[1])]
    assert len(runs) == 1 and all(f"<td>{run}</td>" in text for run in [os.path.basename(paths[0]), *runs])
    assert "dev_accuracy" in text and "lost to restarts" in text
    events = [{"event": "start", "time": 1.0, "step": 0, "run": run} for run in (runs[0], "other", runs[0])]
    events.insert(1, {"event": "slow_host", "time": 2.0, "step": 3})
    (finetunings / "finetuned" / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events))
    told = next(run for run in runs_below(paths[1]) if run.name == runs[0])
    assert [row["event"] for row in told.events] == ["start", "slow_host", "start"]
    assert told.owner() is None
    owner = Owner(epath.Path(paths[1]))
    assert told.owner() is not None  # the process has the whole directory
    owner.release()
    assert re.search(r"page.html: \d+ runs, \d\.\d MB", capsys.readouterr().out)
    two = named([read_run(paths[0]), read_run(paths[0] + "/")])
    assert all(name.startswith(paths[0]) for name in two)


def test_a_run_that_has_logged_nothing_yet(finished, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copy(os.path.join(finished[0].workdir, "config.json"), tmp_path / "run")
    run_report([str(tmp_path / "run")], ReportConfig(output=str(tmp_path / "page.html")))
    text = (tmp_path / "page.html").read_text()
    assert "No run has logged any yet." in text and "Nothing has happened yet." in text


def test_what_cannot_be_reported_on(finished, tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match="there is no such directory"):
        run_report([str(tmp_path / "none")], ReportConfig(output=str(tmp_path / "page.html")))
    assert status("report", finished[0].workdir, "--output=/nowhere/page.html") == 2
    assert status("report", finished[0].workdir) == 2
    with monkeypatch.context() as few:
        few.setattr(report, "MOST_RUNS", 0)
        assert status("report", finished[0].workdir, f"--output={tmp_path}/page.html") == 2
    said = capsys.readouterr().err
    assert "cannot write output=/nowhere/page.html" in said and "give the required --output" in said
    assert "1 runs" in said
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'bert_jax\[report\]'"):
        run_report([finished[0].workdir], ReportConfig(output=str(tmp_path / "page.html")))
    assert not (tmp_path / "page.html").exists()


def opened(page: str, folder: pathlib.Path) -> Parts:
    """What a browser has made of a page after 20 seconds of its own time."""
    (folder / "opened.html").write_text(page)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--dump-dom"]
    command += ["--virtual-time-budget=20000", (folder / "opened.html").as_uri()]
    done = processes.run(*command, check=True, env={**os.environ, "HOME": str(folder)})
    return Parts(done.stdout)


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium or chrome on the PATH")
def test_a_browser_draws_every_chart_and_runs_nothing_of_theirs(made, tmp_path):
    page = opened(made[0].read_text(), tmp_path)
    charts = [attributes for attributes in page.of("div") if (attributes.get("id") or "").startswith("chart-")]
    assert len(charts) > 8 and all("js-plotly-plot" in chart["class"] for chart in charts)
    (title,) = [data for tag, data in page.texts if tag == "title"]
    assert title != "broken" and not page.of("img")
    assert any(tag == "text" and data == f"{EVIL}, training" for tag, data in page.texts)  # a legend shows it as it is


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium or chrome on the PATH")
def test_the_mouse_reads_values_off_a_curve_and_enlarges_a_part_of_it(made, finished, tmp_path):
    page = made[0].read_text()
    nonce = re.findall(r'<script nonce="(.*?)">', page)[0]
    parts = opened(page.replace("</body>", f'<script nonce="{nonce}">{MOUSE}</script></body>'), tmp_path)
    (chart,) = [chart for chart in parts.of("div") if "data-before" in chart]
    hovered = {name: (step, value) for name, step, value in json.loads(chart["data-hovered"])}
    step, value = hovered["good, held out"]
    held_out = {row["step"]: row["mlm_loss"] for row in read_run(finished[0].workdir).of_kind("evaluation")}
    assert value == pytest.approx(held_out[step], rel=1e-5)
    shown = json.loads(chart["data-shown"])
    assert {f"{step:g}", f"{value:g}", "good, held out", f"{EVIL}, held out"} <= set(shown)
    (low, high), (left, right) = json.loads(chart["data-before"]), json.loads(chart["data-after"])
    assert (left - low) / (high - low) == pytest.approx(0.25, abs=0.02)
    assert (right - low) / (high - low) == pytest.approx(0.75, abs=0.02)
