"""Attention maps of one text or pair: probabilities of every layer and head, as an HTML page and as a picture.

Behind `bert-jax analyze attention`. The page is one HTML file that loads nothing: choose a layer and a head, hover
over a token. Tokens may come from texts of unknown origin, so they reach the script as JSON without any "<", the
script writes them as text, and a content security policy lets no other script run.
"""

import dataclasses
import html
import json
import secrets

import numpy as np
from matplotlib.figure import Figure

from bert_jax.analysis.results import Analysis, call_with, model_fingerprint, panels, short_path
from bert_jax.config.analyses import AttentionConfig
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel, load

MOST_VALUES = 20_000_000
"""Probabilities that a result may hold: 12 layers of 12 heads over 370 tokens. Browsers cope with little more."""


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """The attention of a model in one text; tokens are in the order in which the model reads them."""

    model: str
    """Path of the model."""
    tokens: tuple[str, ...]
    """The L pieces, special ones included."""
    segments: tuple[int, ...]
    """Number of the segment of each token: 1 in the second text of a pair, else 0."""
    weights: np.ndarray
    """float64 [N, A, L (query), L (key)]: the probabilities of each layer and head. The rows of a query add up to 1."""


def attention(
    model: PretrainedModel, text: str, pair: str | None = None, *, max_length: int | None = None
) -> AttentionMaps:
    """Return the attention probabilities of a model in a text, or in a pair of texts.

    They are those of the weights and inputs by which the model computes its states (`PretrainedModel.encode`).

    Args:
      model: a Transformer.
      text: what it reads.
      pair: second text, read after the first in the pair format of the vocabulary; None for a single text.
      max_length: tokens, special ones included; a longer text is cut. None: as many as the model has positions.

    Raises:
      UserError: the text is blank or too long for a picture, or the layers have no attention.
    """
    for given in (text,) if pair is None else (text, pair):
        if not given.strip():
            raise UserError(f"a blank text {given!r} has no tokens; give a text with words")
    longest = model.config.longest_sequence if max_length is None else max_length
    count = model.config.num_layers * model.config.attention_heads
    if count * min(longest, len(text) + len(pair or "") + 3) ** 2 > MOST_VALUES:  # a token has a character at least
        tokens = len(model.encode([text if pair is None else (text, pair)], max_length=max_length).tokens[0])
        if count * tokens**2 > MOST_VALUES:
            raise UserError(
                f"{tokens} tokens with {count} heads make {count * tokens**2:,} probabilities, too many to look at; "
                f"shorten the text, or set max_length={int((MOST_VALUES / count) ** 0.5)}"
            )
    found = model.encode([text if pair is None else (text, pair)], attentions=True, max_length=max_length)
    assert found.attentions is not None
    return AttentionMaps(
        model.path,
        tuple(found.tokens[0]),
        tuple(int(number) for number in found.token_type_ids[0]),
        np.stack([layer[0] for layer in found.attentions]).astype(np.float64),
    )


DIGITS = 4  # of a probability in the page
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1.5em; color: #222; }
h1 { font-size: 1.4em; overflow-wrap: anywhere; } p { color: #666; } label { margin-right: 1.5em; }
select { font: inherit; padding: .1em .3em; }
.views { display: flex; flex-wrap: wrap; gap: 2em; align-items: flex-start; }
svg text { font: 13px ui-monospace, monospace; cursor: default; } svg text.second { fill: #7a3b00; }
svg text.chosen { font-weight: 700; } svg .share { fill: #1f5fa8; } svg line { stroke: #1f5fa8; stroke-width: 2; }
#strip { line-height: 2.1; max-width: 60em; } #strip span { padding: .15em .2em; border-radius: 3px; cursor: default; }
#strip span.chosen { outline: 2px solid #c04a00; } #strip span.second { border-bottom: 2px solid #7a3b00; }
.grid { display: grid; gap: 4px; } .grid span { color: #666; font-size: 12px; }
.grid canvas { width: 72px; height: 72px; image-rendering: pixelated; cursor: pointer; border: 2px solid #ddd; }
.grid canvas.chosen { border-color: #c04a00; }
"""
SCRIPT = """
const {tokens, segments, weights} = JSON.parse(document.getElementById("maps").textContent);
const layers = weights.length, heads = weights[0].length, count = tokens.length, step = 20, wide = 190, gap = 260;
const byId = (id) => document.getElementById(id), mean = "mean";
const drawing = (name, attributes, parent) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return parent.appendChild(made);
};
const state = {layer: 0, head: "0", token: null, side: "query"};
const map = (layer, head) => head !== mean ? weights[layer][Number(head)] : tokens.map((_, query) =>
  tokens.map((_, key) => weights[layer].reduce((sum, each) => sum + each[query][key], 0) / heads));

function option(select, value, label) {
  const made = document.createElement("option");
  made.value = value; made.textContent = label; select.appendChild(made);
}
function draw() {
  const chosen = map(state.layer, state.head), picture = byId("lines"), height = count * step + 10;
  picture.replaceChildren();
  picture.setAttribute("width", 2 * wide + gap); picture.setAttribute("height", height);
  const y = (place) => place * step + 16;
  for (let query = 0; query < count; query++) for (let key = 0; key < count; key++) {
    const share = chosen[query][key], place = state.side === "query" ? query : key;
    if (state.token !== null && state.token !== place) continue;
    if (share < 0.02) continue;
    drawing("line", {x1: wide, y1: y(query) - 4, x2: wide + gap, y2: y(key) - 4, "stroke-opacity": share}, picture);
  }
  for (const side of ["query", "key"]) tokens.forEach((token, place) => {
    const left = side === "query", about = state.token !== null && state.side !== side;
    const share = about ? (left ? chosen[place][state.token] : chosen[state.token][place]) : null;
    const text = drawing("text", {x: left ? wide - 6 : wide + gap + 6, y: y(place), "data-side": side,
      "text-anchor": left ? "end" : "start", "data-place": place}, picture);
    text.textContent = token;
    if (segments[place]) text.classList.add("second");
    if (state.token === place && state.side === side) text.classList.add("chosen");
    if (share !== null) {
      const number = drawing("tspan", {class: "share"}, text);
      number.textContent = ` ${(100 * share).toFixed(1)} %`;
    }
    text.addEventListener("mouseenter", () => { state.token = place; state.side = side; draw(); });
  });
  strip(chosen);
  document.querySelectorAll(".grid canvas").forEach((each) => each.classList.toggle("chosen",
    each.dataset.layer === String(state.layer) && (state.head === mean || each.dataset.head === state.head)));
  byId("layer").value = state.layer; byId("head").value = state.head;
}
function strip(chosen) {
  const from = state.side === "query" && state.token !== null ? state.token : 0, most = Math.max(...chosen[from]);
  byId("strip").replaceChildren(...tokens.flatMap((token, place) => {
    const made = document.createElement("span"), share = chosen[from][place];
    made.textContent = token; made.title = `${(100 * share).toFixed(1)} %`; made.dataset.place = place;
    made.style.backgroundColor = `rgba(31, 95, 168, ${(0.75 * share / most).toFixed(3)})`;
    made.classList.toggle("chosen", place === from); made.classList.toggle("second", Boolean(segments[place]));
    made.addEventListener("click", () => { state.token = place; state.side = "query"; draw(); });
    return [made, " "];
  }));
}
function small(layer, head) {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  canvas.width = canvas.height = count;
  const image = context.createImageData(count, count);
  weights[layer][head].flat().forEach((share, place) => {
    const shade = 255 - Math.round(255 * Math.sqrt(share));
    image.data.set([shade, shade, 255 - (255 - shade) / 4, 255], 4 * place);
  });
  context.putImageData(image, 0, 0);
  canvas.dataset.layer = layer; canvas.dataset.head = head; canvas.title = `layer ${layer + 1}, head ${head + 1}`;
  canvas.addEventListener("click", () => {
    Object.assign(state, {layer, head: String(head), token: null});
    draw();
  });
  return canvas;
}
for (let layer = 0; layer < layers; layer++) option(byId("layer"), layer, layer + 1);
for (let head = 0; head < heads; head++) option(byId("head"), head, head + 1);
option(byId("head"), mean, "mean of all");
const grid = byId("grid");
grid.style.gridTemplateColumns = `auto repeat(${heads}, 76px)`;
for (let layer = 0; layer < layers; layer++) {
  const name = document.createElement("span");
  name.textContent = `layer ${layer + 1}`; grid.appendChild(name);
  for (let head = 0; head < heads; head++) grid.appendChild(small(layer, head));
}
byId("layer").addEventListener("change", (event) => { state.layer = Number(event.target.value); draw(); });
byId("head").addEventListener("change", (event) => { state.head = event.target.value; draw(); });
byId("lines").addEventListener("mouseleave", () => { state.token = null; draw(); });
draw();
"""


def attention_page(maps: AttentionMaps) -> str:
    """Return the page."""
    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'"
    weights = maps.weights.round(DIGITS).tolist()
    data = json.dumps({"tokens": maps.tokens, "segments": maps.segments, "weights": weights}, allow_nan=False)
    data = data.replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<title>Attention of {html.escape(maps.model)}</title><style>{STYLE}</style></head>
<body><h1>Attention of {html.escape(maps.model)}</h1>
<p>Each token on the left attends to those on the right. Hover over one to see its shares; choose a map by a click. The
text below is shaded by the attention of its first token, [CLS] in a BERT, or of the one that you click or hover
over.</p>
<p><label>layer <select id="layer"></select></label><label>head <select id="head"></select></label></p>
<p id="strip"></p>
<div class="views"><svg id="lines" role="img" aria-label="attention"></svg><div class="grid" id="grid"></div></div>
<script type="application/json" id="maps">{data}</script>
<script nonce="{nonce}">{SCRIPT}</script>
</body></html>
"""


def draw_attention(result: AttentionMaps) -> Figure:
    """Return a map for every layer (rows, the first at the top) and head: queries from the top, keys from the left."""
    layers, heads, count, _ = result.weights.shape
    heading = f"{short_path(result.model)}: attention in {count} tokens (square roots of the probabilities)"
    figure, axes = panels((1.2 * heads + 1.4, 1.2 * layers + 1.0), heading, heading_size=10)
    size = count + max(2, count // 15)  # of a map with the gap behind it
    picture = np.full((layers * size, heads * size), np.nan)
    for layer, head in np.ndindex(layers, heads):
        rows, columns = layer * size, head * size
        picture[rows : rows + count, columns : columns + count] = np.sqrt(result.weights[layer, head])
    gap = size - count
    axes.imshow(picture[:-gap, :-gap], cmap="Blues", vmin=0.0, vmax=1.0, interpolation="none")
    axes.set_xticks([head * size + count / 2 for head in range(heads)], [f"head {head + 1}" for head in range(heads)])
    axes.set_yticks([row * size + count / 2 for row in range(layers)], [f"layer {row + 1}" for row in range(layers)])
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.set_facecolor("#e6e6e6")
    return figure


def _told(result: AttentionMaps) -> list[str]:
    layers, heads, tokens, _ = result.weights.shape
    return [f"{layers} layers of {heads} heads over {tokens} tokens: {' '.join(result.tokens)}"]


MAPS = Analysis("attention", AttentionMaps, _told, {"index.html": attention_page, "attention": draw_attention})


def run_attention(path: str, options: AttentionConfig) -> None:
    """Write the attention in a text as a page, a picture and numbers."""
    model = load(path)
    compute = call_with(attention, options, model, options.text, options.pair or None)
    MAPS.run(options, {"models": [model_fingerprint(model)]}, compute)
