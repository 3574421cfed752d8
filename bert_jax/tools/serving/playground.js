// Of playground.html: asks the server what a section needs, and draws it. Every text that is not of this file reaches
// the page by textContent. An answer that comes after a newer question is dropped.
"use strict";

const byId = (id) => document.getElementById(id);
const WAIT = 100; // milliseconds without a key before a question is sent
const still = matchMedia("(prefers-reduced-motion: reduce)");
const state = {about: null, model: ""};

// ---------------------------------------------------------------------------------------------- elements

function set(made, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  return made;
}
function make(name, properties = {}, ...children) {
  const made = set(document.createElement(name), properties);
  made.append(...children.flat().filter((child) => child !== null));
  return made;
}
function drawing(name, properties = {}, ...children) {
  const made = set(document.createElementNS("http://www.w3.org/2000/svg", name), properties);
  made.append(...children.flat());
  return made;
}
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;
const figure = (value, digits = 3) => value === null ? "–" : value.toFixed(digits);
const note = (text) => make("p", {class: "note"}, text);
const card = (...children) => make("div", {class: "card"}, ...children);

function bar(share, other = false) {
  const filled = make("span");
  filled.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return make("div", {class: other ? "bar other" : "bar", "aria-hidden": "true"}, filled);
}
function table(head, rows, properties = {}) {
  return make("table", properties, head && make("thead", {}, make("tr", {}, head.map((cell) => make("th", {scope: "col"}, cell)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, place) => make(place ? "td" : "th", place ? {} : {scope: "row"}, cell))))));
}
function numbers(head, rows) {
  return make("details", {}, make("summary", {}, "Numbers"), make("div", {class: "scroll"}, table(head, rows)));
}

// ---------------------------------------------------------------------------------------------- questions

class Refused extends Error {}

async function send(path, values, signal) {
  const options = values === null ? {signal}
    : {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(values), signal};
  const response = await fetch(new URL(`playground/${path}`, document.baseURI), options);
  const found = await response.json().catch(() => ({}));
  if (response.ok) return found;
  throw new Refused(typeof found.error === "string" ? `${found.error}.`.replace(/\.\.$/, ".") : `The server answered ${response.status}.`);
}

const asking = (question) => `ask/${question}?model=${encodeURIComponent(state.model)}`;

// A section: its form, its place for answers, and the question that is on its way.
class Section {
  constructor(id, question, {values, draw, changed}) {
    Object.assign(this, {id, question, values, draw, changed});
    this.element = byId(id);
    this.form = this.element.querySelector("form");
    this.fields = this.form.elements;
    this.place = this.element.querySelector(".answer");
    this.last = 0;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", (event) => {
      if (event.target.type === "range") return;
      clearTimeout(this.timer);
      this.last += 1;
      this.stop?.abort();
      this.busy(true);
      this.timer = setTimeout(() => { this.changed?.(event.target.name); this.ask(); }, WAIT);
    });
  }
  // Send the question with its present values, and draw the answer unless a newer question was sent meanwhile.
  async ask() {
    const values = this.values(this.fields), number = ++this.last;
    this.stop?.abort();
    if (typeof values === "string") return this.tell(values);
    this.stop = new AbortController();
    this.busy(true);
    const found = await this.sent(...this.path(values), this.stop.signal);
    if (number !== this.last) return;
    this.busy(false);
    if (found instanceof Error) this.tell(found.message, true);
    else { this.found = found; this.redraw(); }
  }
  // Return the answer to a question, or the error that a person is to read.
  async sent(path, values, signal) {
    try { return await send(path, values, signal); }
    catch (error) { return error instanceof Refused ? error : new Error("The server cannot be reached; is it still running?"); }
  }
  path(values) { return [asking(this.question), values]; }
  tell(text, wrong = false) {
    this.found = null;
    this.place.replaceChildren(make("p", wrong ? {class: "error", role: "alert"} : {class: "note"}, text));
    this.busy(false);
  }
  busy(on) { this.place.setAttribute("aria-busy", String(on)); }
  redraw() { if (this.found) this.place.replaceChildren(...[this.draw(this.found, this.fields)].flat()); }
  open() { if (!this.found) this.ask(); }
}

const needed = (text, what = "a text") => text.trim() ? null : `Type ${what}.`;

// ---------------------------------------------------------------------------------------------- word pieces

// Chips of word pieces, those of a word held together: a line is not broken within it unless it must be.
function words(chips, continues) {
  const groups = [];
  chips.forEach((chip, place) => {
    if (!continues(place) || !groups.length) groups.push(make("span", {class: "word"}));
    groups.at(-1).append(chip);
  });
  return groups;
}
function pieceName(token, continues) { return continues && token.startsWith("##") ? token.slice(2) : token; }

// The pieces of a text as buttons, for sections in which one is chosen.
class Choosable extends Section {
  constructor(id, question, {several, values, draw}) {
    super(id, question, {values: (fields) => needed(fields.text.value) ?? values(fields, this.places), draw});
    this.several = several;
    this.places = [];
    this.group = this.element.querySelector(".pieces");
  }
  async ask() {
    const text = this.fields.text.value;
    if (text.trim() && this.divided !== text) {
      const number = ++this.last;
      this.busy(true);
      const found = await this.sent(asking("pieces"), {text});
      if (number !== this.last) return null;
      if (found instanceof Error) return this.tell(found.message, true);
      this.divide(found, text);
    }
    if (!text.trim()) { this.group.replaceChildren(); this.divided = ""; }
    return super.ask();
  }
  divide(found, text) {
    this.divided = text;
    const word = (place) => found.special[place] ? 0 : found.tokens[place].length - (found.continues[place] ? 100 : 0);
    const longest = found.tokens.map((_, place) => place).sort((one, other) => word(other) - word(one) || one - other)[0];
    this.places = longest === undefined ? [] : [longest];
    this.group.replaceChildren(...words(found.tokens.map((token, place) => make("button", {
      type: "button", class: found.continues[place] ? "piece continues" : "piece", "data-place": place,
      "aria-label": found.continues[place] ? `${pieceName(token, true)}, continues a word` : token,
      onclick: () => this.press(place)}, pieceName(token, found.continues[place]))), (place) => found.continues[place]));
    this.mark();
  }
  press(place) {
    const without = this.places.filter((each) => each !== place);
    if (!this.several) this.places = [place];
    else if (without.length < this.places.length) this.places = without.length ? without : this.places;
    else this.places = [...this.places, place].sort((one, other) => one - other);
    this.mark();
    super.ask();
  }
  mark() {
    for (const button of this.group.querySelectorAll("button")) button.setAttribute("aria-pressed", String(this.places.includes(Number(button.dataset.place))));
  }
}

// What a model says for a mask: bars of its candidates, and where the original is among them.
function guesses(mask, heading) {
  const most = Math.max(0.25, ...mask.candidates.map((each) => each.probability)); // the whole length of a bar
  const made = table(null, mask.candidates.map((each) => [each.token, bar(each.probability / most),
    make("span", {class: "number"}, percent(each.probability))]), {class: "bars"});
  made.prepend(make("caption", {}, heading));
  for (const row of made.tBodies[0].rows) {
    row.lastChild.className = "number";
    row.firstChild.title = row.firstChild.textContent;
    if (row.firstChild.textContent === mask.original) row.classList.add("original");
  }
  const sure = Math.exp(mask.entropy);
  return card(made, note(`The text has “${mask.original}”: ${percent(mask.probability)}, place ${mask.rank.toLocaleString("en")}. `
    + `As undecided as between ${sure < 10 ? sure.toFixed(1) : Math.round(sure).toLocaleString("en")} equally likely pieces. `
    + `A full bar is ${percent(most)}.`));
}

const masks = new Choosable("masks", "masks", {
  several: true,
  values: (fields, places) => places.length ? {text: fields.text.value, places} : "There is no word piece to mask.",
  draw: (found) => make("div", {class: "columns"}, found.masks.map((mask, number) =>
    guesses(mask, found.masks.length > 1 ? `Mask ${number + 1}` : "In place of the mask"))),
});

const sides = new Choosable("sides", "sides", {
  several: false,
  values: (fields, places) => places.length ? {text: fields.text.value, place: places[0]} : "There is no word piece to guess.",
  draw: (found) => {
    const row = (name, read) => card(make("h3", {}, name), make("div", {class: "pieces"},
      found.both.read.map((token, place) => {
        const kind = place === found.place ? "hole" : place < read ? "" : "unseen";
        const said = place === found.place ? "the word to guess" : place < read ? token : `${token}, not visible`;
        return make("span", {class: `piece ${kind}`, role: "img", "aria-label": said}, place === found.place ? "?" : token);
      })));
    const better = found.both.probability >= found.left.probability;
    const times = (better ? found.both.probability / found.left.probability : found.left.probability / found.both.probability);
    return [
      make("div", {class: "columns"}, row("Both sides are visible", found.both.read.length), row("Only the left is visible", found.left.read.length)),
      make("div", {class: "columns"}, guesses(found.both, "From both sides"), guesses(found.left, "From the left alone")),
      note(`With both sides, “${found.both.original}” is ${times < 100 ? times.toFixed(1) : Math.round(times).toLocaleString("en")} times ${better ? "more" : "less"} likely than from the left alone.`),
    ];
  },
});

const pieces = new Section("pieces", "pieces", {
  values: (fields) => needed(fields.text.value) ?? {text: fields.text.value},
  draw: (found) => {
    const unknown = found.unknown.filter(Boolean).length, starts = found.continues.filter((each) => !each).length;
    const kind = (place) => ["piece", found.continues[place] && "continues", found.unknown[place] && "unknown", found.special[place] && !found.unknown[place] && "mask"].filter(Boolean).join(" ");
    return [
      make("div", {class: "pieces"}, words(found.tokens.map((token, place) => make("span", {class: kind(place), title: token},
        pieceName(token, found.continues[place]), make("small", {}, String(found.ids[place])))), (place) => found.continues[place])),
      note(`${found.tokens.length} pieces, ${starts} of which begin a word or sign${unknown ? `; ${unknown} unknown` : ""}. `
        + `The vocabulary has ${found.vocabulary.toLocaleString("en")} entries; the model reads ${found.read.toLocaleString("en")} tokens at most.`),
      numbers(["place", "piece", "id", ""], found.tokens.map((token, place) => [String(place), token, String(found.ids[place]),
        found.unknown[place] ? "unknown" : found.continues[place] ? "continues a word" : ""])),
    ];
  },
});

// ---------------------------------------------------------------------------------------------- sentences and texts

let seed = 0;
const next = new Section("next", "next", {
  values: (fields) => needed(fields.text.value, "a paragraph") ?? {text: fields.text.value, seed},
  draw: (found) => [
    note(`Right about ${found.right} of ${found.pairs.length} pairs; by chance it would be half of them.`),
    ...found.pairs.map((pair) => {
      const says = pair.probability > 0.5, right = says === pair.is_next;
      return card(make("div", {class: "pair"},
        make("div", {}, make("p", {}, pair.first), make("p", {}, make("span", {class: "arrow", "aria-hidden": "true"}, "→ "), pair.second)),
        make("div", {}, bar(pair.probability, !right),
          make("p", {class: right ? "verdict" : "verdict wrong"}, `“follows”: ${percent(pair.probability)}. `, make("b", {}, right ? "Right" : "Wrong"),
            pair.is_next ? ": it is the next sentence." : ": it was drawn at random."))));
    }),
  ],
});
next.fields.shuffle.addEventListener("click", () => { seed += 1; next.ask(); });

const neighbours = new Section("neighbours", "neighbours", {
  values: (fields) => needed(fields.query.value) ?? (fields.among.value === "index" ? {query: fields.query.value}
    : needed(fields.text.value, "some lines") ?? {query: fields.query.value, text: fields.text.value}),
  draw: (found) => {
    const most = Math.max(...found.hits.map((hit) => hit.score), 1e-9);
    const share = (score) => (found.measure === "cosine" ? score : score / most);
    const made = make("ol", {class: "hits"}, found.hits.map((hit) => make("li", {}, make("span", {class: "number"}, hit.score.toFixed(3)),
      bar(share(hit.score)), make("span", {}, hit.title ? `${hit.title}: ${hit.text}` : hit.text))));
    return found.hits.length ? card(note(found.measure ?? "score"), made) : note("Nothing was found.");
  },
  changed: () => { neighbours.fields.text.closest("label").hidden = neighbours.fields.among.value === "index"; },
});
neighbours.path = function path(values) {
  return "text" in values ? [asking("neighbours"), values] : ["search", values];
};

let again = 0;
const preparation = new Section("preparation", "preparation", {
  values: (fields) => needed(fields.text.value, "a document") ?? {text: fields.text.value, length: Number(fields.places.value),
    unit: fields.unit.value, seed: Number(fields.seed.value) || 0, again},
  draw: (found) => {
    const joins = (token) => token.startsWith("##");
    const spans = (names) => words(names.map((token) => make("span", {class: joins(token) ? "piece continues" : "piece"}, pieceName(token, joins(token)))),
      (place) => joins(names[place]));
    const became = {mask: "masked", random: "random", kept: "kept"};
    const drawn = found.examples.flatMap((example) => example.tokens).filter((token) => token.became);
    const count = (kind) => drawn.filter((token) => token.became === kind).length;
    const chip = (token) => {
      const continues = !token.became && token.token.startsWith("##");
      const kind = ["piece", token.special && "special", token.segment && "second", token.became, continues && "continues"].filter(Boolean).join(" ");
      return make("span", {class: kind}, continues ? pieceName(token.token, true) : token.token,
        token.became ? make("small", {}, token.became === "kept" ? "kept" : `was ${token.original}`) : null);
    };
    const row = (tokens) => make("p", {class: "pieces"}, words(tokens.map(chip), (place) => !tokens[place].became && joins(tokens[place].token)));
    const key = (kind, text) => make("span", {class: "key"}, make("span", {class: `piece ${kind}`}, "abc"), text);
    const said = (example, number) => note(`Example ${number + 1} of ${found.count}: ${example.is_next ? "the second segment follows (IsNext)"
      : "the second segment is random (NotNext)"}, ${example.tokens.length} of ${example.places} places${example.cut ? `, ${example.cut} pieces cut off` : ""}`);
    const [rate, mask, random] = found.shares;
    const sentences = found.documents.reduce((sum, each) => sum + each.length, 0);
    return [
      card(make("h3", {}, `1. ${found.documents.length} ${found.documents.length === 1 ? "document" : "documents"}, ${sentences} sentences`),
        ...found.documents.map((each, number) => make("div", {}, note(`Document ${number + 1}`), make("ol", {class: "sentences"},
          each.map((sentence) => make("li", {}, sentence.text)))))),
      card(make("h3", {}, "2. Word pieces"), ...found.documents.flat().map((sentence) => make("p", {class: "pieces"}, spans(sentence.pieces)))),
      card(make("h3", {}, "3. Pairs between [CLS] and [SEP]"),
        make("p", {}, key("second", "second segment")),
        ...found.examples.map((example, number) => make("div", {}, said(example, number), row(example.tokens.map((token) => (
          {...token, token: token.original ?? token.token, became: undefined})))))),
      card(make("h3", {}, "4. Masks"),
        note(`${percent(rate)} of the tokens are to be predicted; of these ${percent(mask)} become the mask, ${percent(random)} a random piece, and the others are kept. `
          + `Here: ${count("mask")} masked, ${count("random")} random, ${count("kept")} kept.`),
        make("p", {}, key("mask", "masked"), key("random", "a random piece"), key("kept", "kept, and predicted all the same")),
        ...found.examples.map((example, number) => make("div", {class: "example", "data-example": number}, note(`Example ${number + 1}`), row(example.tokens)))),
      numbers(["example", "place", "token", "segment", "predicts", "became"], found.examples.flatMap((example, number) => example.tokens.map((token, place) =>
        [String(number + 1), String(place), token.token, token.segment ? "B" : "A", token.original ?? "", became[token.became] ?? ""]))),
    ];
  },
});
preparation.fields.again.addEventListener("click", () => { again += 1; preparation.ask(); });

// ---------------------------------------------------------------------------------------------- layers

// A chart of lines over stages: {name, values, kind}; `now` is the stage that is marked.
function chart(series, names, now, label) {
  const wide = room(), high = 200, left = 40, bottom = 26, values = series.flatMap((each) => each.values).filter((value) => value !== null);
  const low = Math.min(0, ...values), most = Math.max(1, ...values);
  const x = (place) => left + (names.length > 1 ? place / (names.length - 1) : 0.5) * (wide - left - 12);
  const y = (value) => 10 + (1 - (value - low) / (most - low)) * (high - bottom - 10);
  const picture = drawing("svg", {class: "chart", viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": label});
  for (const value of [low, (low + most) / 2, most]) {
    picture.append(drawing("line", {class: "axis", x1: left, x2: wide - 12, y1: y(value), y2: y(value)}),
      drawing("text", {x: left - 6, y: y(value) + 4, "text-anchor": "end"}, value.toFixed(1)));
  }
  names.forEach((name, place) => picture.append(drawing("text", {x: x(place), y: high - 6, "text-anchor": "middle"}, name)));
  if (now !== null) picture.append(drawing("line", {class: "now", x1: x(now), x2: x(now), y1: 10, y2: high - bottom}));
  for (const each of series) {
    const points = each.values.map((value, place) => value === null ? "" : `${x(place)},${y(value)}`).filter(Boolean).join(" ");
    const curve = drawing("polyline", {class: `curve ${each.kind ?? ""}`, points});
    curve.append(drawing("title", {}, each.name));
    picture.append(curve);
  }
  return picture;
}
const room = () => Math.max(280, Math.min(680, byId("main").clientWidth - 60)); // pixels, so that texts keep their size
const short = (names) => names.map((name) => /after layer/.test(name) ? name.replace("after layer ", "") : "in");

function strip(values, scale) {
  const picture = drawing("svg", {class: "strip", viewBox: `0 0 ${values.length} 1`, preserveAspectRatio: "none", "aria-hidden": "true"});
  values.forEach((value, place) => picture.append(drawing("rect", {x: place, y: 0, width: 1.02, height: 1,
    class: value < 0 ? "minus" : "plus", opacity: Math.min(1, Math.abs(value) / scale).toFixed(3)})));
  return picture;
}

const journey = new Section("journey", "journey", {
  values: (fields) => needed(fields.text.value) ?? {text: fields.text.value},
  draw: (found, fields) => {
    fields.at.max = found.stages.length - 1;
    const stage = found.stages[fields.at.value], shown = found.stages.filter((each) => each.to_start);
    fields.stage.value = stage.name;
    fields.at.setAttribute("aria-valuetext", stage.name);
    const scale = strength(stage.values);
    const rows = table(["token", `values 1–${stage.values[0].length}`, "length", stage.to_start ? "cosine" : ""],
      found.tokens.map((token, place) => [token, strip(stage.values[place], scale),
        make("span", {class: "number"}, figure(stage.norms[place], 2)), make("span", {class: "number"}, stage.to_start ? figure(stage.to_start[place], 2) : "")]), {class: "strips"});
    for (const [place, row] of [...rows.tBodies[0].rows].entries()) { // its curve below is shown with it
      const mark = (on) => () => journey.place.querySelectorAll("polyline")[place]?.classList.toggle("chosen", on);
      row.addEventListener("mouseenter", mark(true));
      row.addEventListener("mouseleave", mark(false));
    }
    const names = short(shown.map((each) => each.name));
    const mean = (each) => each.to_start.reduce((sum, value) => sum + value, 0) / each.to_start.length;
    const at = shown.indexOf(stage);
    return [card(make("div", {class: "scroll"}, rows)), note(`Each strip is the beginning of a vector of ${found.width} values: one hue for positive numbers, the other for negative ones, `
      + `the stronger the larger. The cosine is that with the input of layer 1.`),
      shown.length > 1 ? card(make("h3", {}, "Cosine with the input of layer 1: each token, and their mean"),
        chart([...found.tokens.map((token, place) => ({name: token, kind: "faint", values: shown.map((each) => each.to_start[place])})),
          {name: "mean", values: shown.map(mean)}], names, at < 0 ? null : at, "Cosine of each token's vector with its start, by layer, and their mean"),
        numbers(["token", ...shown.map((each) => each.name)], found.tokens.map((token, place) => [token, ...shown.map((each) => figure(each.to_start[place]))]))) : null,
    ].filter(Boolean);
  },
});
const size = (values) => Math.sqrt(values.flat().reduce((sum, value) => sum + value * value, 0) / values.flat().length) || 1;
const strength = (values) => 2.2 * size(values); // the number that is drawn in full colour
journey.fields.at.addEventListener("input", () => {
  const found = journey.found;
  if (!found) return;
  const before = found.stages.find((stage) => stage.name === journey.fields.stage.value), after = found.stages[journey.fields.at.value];
  cancelAnimationFrame(journey.frame);
  journey.redraw();
  if (still.matches || !before) return;
  const began = performance.now(), cells = [...journey.place.querySelectorAll("svg.strip")].map((row) => [...row.childNodes]);
  const grown = size(after.values) / size(before.values), full = strength(after.values);
  const move = (time) => {
    const share = Math.max(0, Math.min(1, (time - began) / 220));
    cells.forEach((row, place) => row.forEach((cell, number) => {
      const from = (before.values[place][number] ?? 0) * grown, value = from + share * (after.values[place][number] - from);
      set(cell, {class: value < 0 ? "minus" : "plus", opacity: Math.min(1, Math.abs(value) / full).toFixed(3)});
    }));
    if (share < 1) journey.frame = requestAnimationFrame(move);
  };
  move(began);
});

function withMark(text, word) {
  const place = text.toLowerCase().search(new RegExp(`(?<![\\p{L}\\p{N}])${word.toLowerCase().replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?![\\p{L}\\p{N}])`, "u"));
  return place < 0 ? [text] : [text.slice(0, place), make("mark", {}, text.slice(place, place + word.length)), text.slice(place + word.length)];
}

const senses = new Section("senses", "senses", {
  values: (fields) => needed(fields.word.value, "a word") ?? needed(fields.text.value, "some sentences") ?? {word: fields.word.value, text: fields.text.value},
  draw: (found, fields) => {
    // The table of embeddings comes before the states of the model: there all vectors of the word are one.
    const names = ["table of embeddings", ...found.cosines.map((_, layer) => layer ? `after layer ${layer}` : "input of layer 1")];
    fields.at.max = names.length - 1;
    if (!senses.drawn) fields.at.value = names.length - 1;
    senses.drawn = true;
    const at = Number(fields.at.value), count = found.texts.length;
    fields.stage.value = names[at];
    fields.at.setAttribute("aria-valuetext", names[at]);
    const ones = found.texts.map(() => found.texts.map(() => found.static));
    const cosines = at ? found.cosines[at - 1] : ones, map = at ? found.maps[at - 1] : found.texts.map(() => [0, 0]);
    const head = ["", ...found.texts.map((_, number) => String(number + 1))];
    const matrix = table(head, cosines.map((row, number) => [String(number + 1), ...row.map((value) => {
      const shade = make("span", {"aria-hidden": "true"});
      const low = Math.min(...cosines.flat());
      shade.style.opacity = (0.6 * (low < 1 ? (value - low) / (1 - low) : 1)).toFixed(3);
      return [value.toFixed(2), shade];
    })]), {class: "matrix"});
    const series = [{name: `“${found.word}”`, values: [found.static, ...found.means]}, {name: "other words of these sentences", kind: "other", values: [null, ...found.baseline]}];
    const key = drawing("g", {}, drawing("text", {class: "key-accent", x: room() - 20, y: 24, "text-anchor": "end"}, `“${found.word}”`),
      drawing("text", {class: "key-other", x: room() - 20, y: 40, "text-anchor": "end"}, "other words"));
    const curves = chart(series, ["table", ...short(names.slice(1))], at, "Mean cosine of the word's vectors by layer, and that of other words");
    curves.append(key);
    return [
      card(make("ol", {class: "sentences"}, found.texts.map((text) => make("li", {}, withMark(text, found.word)))),
        found.left_out ? note(`${found.left_out} lines without the word were left out.`) : null),
      make("div", {class: "columns"}, card(make("h3", {}, "Cosines of the word, sentence by sentence"), make("div", {class: "scroll"}, matrix)),
        card(make("h3", {}, "The same as a map"), scatter(map, count))),
      card(make("h3", {}, "Mean cosine by layer"), curves, numbers(["", ...names], series.map((each) => [each.name, ...each.values.map((value) => figure(value))]))),
    ];
  },
});
senses.fields.at.addEventListener("input", () => senses.redraw());

function scatter(points, count) {
  const size = 300, edge = 26, extent = Math.max(0.05, ...points.flat().map(Math.abs));
  const at = (value) => size / 2 + (value / extent) * (size / 2 - edge);
  const picture = drawing("svg", {class: "chart map", viewBox: `0 0 ${size} ${size}`, role: "img",
    "aria-label": `A map of the ${count} vectors: near points have similar directions. The table has the cosines.`});
  picture.append(drawing("line", {class: "axis", x1: 0, x2: size, y1: size / 2, y2: size / 2}), drawing("line", {class: "axis", x1: size / 2, x2: size / 2, y1: 0, y2: size}));
  const seen = [];
  points.forEach(([across, up], number) => {
    const [x, y] = [at(across), at(-up)], near = seen.filter(([one, other]) => Math.hypot(one - x, other - y) < 12).length;
    seen.push([x, y]);
    picture.append(drawing("circle", {class: "dot", cx: x, cy: y, r: 5}), drawing("text", {class: "label", x: x + 8 + 11 * near, y: y + 4}, String(number + 1)));
  });
  return picture;
}

// ---------------------------------------------------------------------------------------------- attention

const look = {head: "mean", token: null};
const attention = new Section("attention", "attention", {
  values: (fields) => needed(fields.text.value) ?? {text: fields.text.value, second: fields.second.value, layer: Number(fields.layer.value) || 0},
  draw: (found) => {
    if (look.head !== "mean" && look.head >= found.weights.length) look.head = "mean";
    if (look.token === null || look.token >= found.tokens.length) look.token = Math.min(1, found.tokens.length - 1);
    const heads = make("div", {class: "heads", role: "group", "aria-label": "Heads"}, ["mean", ...found.weights.keys()].map((head) => {
      const entropy = head === "mean" ? 0 : mean(found.entropies[head]);
      return make("button", {type: "button", "data-head": head, "aria-pressed": String(head === look.head),
        "aria-label": head === "mean" ? "mean of all heads" : `head ${head + 1}, entropy ${figure(entropy, 2)}`,
        onclick: () => { look.head = head; attention.redraw(); attention.place.querySelector(`[data-head="${head}"]`).focus(); }},
      small(chosen(found, head)), head === "mean" ? "mean" : `head ${head + 1}`, make("br"), head === "mean" ? "of all" : figure(entropy, 2));
    }));
    const view = make("div", {class: "scroll"}, make("div", {class: "attends"}));
    const said = make("p", {class: "note said", "aria-live": "polite"});
    attention.view = [view.firstChild, said];
    const made = [card(make("h3", {}, "Heads of this layer, with their mean entropy in nats"), heads), card(view, said)];
    attend(found);
    const weights = chosen(found, look.head);
    made.push(make("details", {}, make("summary", {}, "Mean entropy of every layer and head"), make("div", {class: "scroll"},
      table(["layer", ...found.heads[0].map((_, head) => `head ${head + 1}`)], found.heads.map((layer, number) => [String(number + 1), ...layer.map((each) => figure(each, 2))])))));
    made.push(numbers(["from \\ to", ...found.tokens], found.tokens.map((token, place) => [token, ...weights[place].map((value) => value.toFixed(3))])));
    return made;
  },
  changed: () => { look.token = null; },
});
const mean = (values) => values.reduce((sum, each) => sum + each, 0) / Math.max(1, values.length);
function chosen(found, head) {
  return head !== "mean" ? found.weights[head] : found.tokens.map((_, query) => found.tokens.map((__, key) => mean(found.weights.map((each) => each[query][key]))));
}
function small(weights) {
  const canvas = make("canvas", {width: weights.length, height: weights.length, "aria-hidden": "true"});
  requestAnimationFrame(() => {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = getComputedStyle(canvas).color;
    weights.forEach((row, query) => row.forEach((share, key) => { context.globalAlpha = Math.sqrt(share); context.fillRect(key, query, 1, 1); }));
  });
  return canvas;
}
// Draw the lines of the chosen token, the shades of those that it looks at, and say both.
function attend(found) {
  const [view, said] = attention.view, weights = chosen(found, look.head), looks = attention.fields.side.value === "query";
  const shares = found.tokens.map((_, place) => looks ? weights[look.token][place] : weights[place][look.token]);
  const most = Math.max(...shares, 1e-9), height = 28 * found.tokens.length;
  const button = (token, place) => make("li", {}, make("button", {type: "button", "data-place": place,
    class: `token ${place === look.token ? "chosen" : ""} ${found.segments[place] ? "second" : ""}`, tabindex: place === look.token ? 0 : -1,
    "aria-pressed": String(place === look.token), title: token, onmouseenter: () => move(place, false), onfocus: () => move(place, false), onclick: () => move(place, true)}, token));
  const shaded = (token, place) => {
    const shade = make("i");
    shade.style.opacity = (0.65 * shares[place] / most).toFixed(3);
    return make("li", {}, make("span", {class: `token shaded ${found.segments[place] ? "second" : ""}`, title: token}, shade, token), make("span", {class: "token number"}, shares[place] >= 0.005 ? percent(shares[place]) : ""));
  };
  const lines = drawing("svg", {viewBox: `0 0 100 ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true"}, shares.flatMap((share, place) =>
    share < 0.01 ? [] : [drawing("line", {x1: 0, x2: 100, y1: 28 * look.token + 14, y2: 28 * place + 14, "stroke-opacity": Math.max(0.08, Math.sqrt(share)).toFixed(3)})]));
  const move = (place, focus) => {
    if (place === look.token && !focus) return;
    look.token = place;
    attend(found);
    if (focus) view.querySelector(".chosen").focus();
  };
  const held = view.contains(document.activeElement);
  const list = make("ol", {"aria-label": "Tokens", onkeydown: (event) => {
    const step = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    move((look.token + step + found.tokens.length) % found.tokens.length, true);
  }}, found.tokens.map(button));
  view.replaceChildren(list, lines, make("ol", {"aria-hidden": "true"}, found.tokens.map(shaded)));
  if (held) view.querySelector(".chosen").focus({preventScroll: true});
  const best = shares.map((share, place) => [share, place]).sort((one, other) => other[0] - one[0]).slice(0, 3);
  const row = weights[look.token], entropy = -row.reduce((sum, share) => sum + (share > 0 ? share * Math.log(share) : 0), 0);
  said.textContent = `“${found.tokens[look.token]}” ${looks ? "looks at" : "is looked at by"} `
    + best.map(([share, place]) => `${found.tokens[place]} (${percent(share)})`).join(", ")
    + (looks ? `. Entropy ${entropy.toFixed(2)} of at most ${found.most.toFixed(2)} nats.` : ".");
}

// ---------------------------------------------------------------------------------------------- ablations

const ablations = new Section("ablations", "", {
  values: () => "", draw: (found, fields) => {
    const measure = found.measures[Number(fields.measure.value) || 0], arms = found.arms.filter((arm) => measure.arms[arm.name]);
    const values = arms.flatMap((arm) => measure.arms[arm.name].values), low = Math.min(...values), most = Math.max(...values);
    const wide = room(), left = Math.min(210, 0.42 * wide), high = 34 * arms.length + 34, edge = (most - low || 1) * 0.06, fits = Math.floor(left / 7);
    const x = (value) => left + (value - low + edge) / (most - low + 2 * edge || 1) * (wide - left - 20);
    const picture = drawing("svg", {class: "chart", viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${measure.heading} of ${arms.length} arms; the table below has the numbers`});
    for (const value of [low, (low + most) / 2, most]) picture.append(drawing("line", {class: "axis", x1: x(value), x2: x(value), y1: 4, y2: high - 24}),
      drawing("text", {x: x(value), y: high - 8, "text-anchor": "middle"}, value.toPrecision(4)));
    arms.forEach((arm, row) => {
      const each = measure.arms[arm.name], y = 34 * row + 20, name = arm.title.length > fits ? `${arm.title.slice(0, fits - 1)}…` : arm.title;
      picture.append(drawing("text", {x: left - 14, y: y + 4, "text-anchor": "end"}, name));
      for (const value of each.values) picture.append(drawing("circle", {class: "dot seed", cx: x(value), cy: y, r: 4}));
      if (each.deviation !== null) picture.append(drawing("line", {class: "spread", x1: x(each.mean - each.deviation), x2: x(each.mean + each.deviation), y1: y, y2: y}));
      picture.append(drawing("circle", {class: "dot", cx: x(each.mean), cy: y, r: 6}));
    });
    const rows = arms.map((arm) => {
      const each = measure.arms[arm.name];
      return [arm.title, figure(each.mean, 4), each.deviation === null ? "–" : each.deviation.toFixed(4), String(each.values.length),
        each.apart === null ? "" : each.apart ? "yes" : "not told apart"];
    });
    return [make("h3", {}, found.title), note(found.question), card(make("div", {class: "scroll"}, picture)),
      card(make("div", {class: "scroll"}, table(["arm", "mean", "deviation", "seeds", "differs from the first"], rows)))];
  },
});
ablations.ask = function ask() { this.found = state.about.study; this.redraw(); };

// ---------------------------------------------------------------------------------------------- the page

const sections = {masks, next, pieces, journey, attention, sides, senses, neighbours, preparation, ablations};

function show() {
  const able = state.about ? Object.keys(sections).find((name) => !reason(name)) : undefined; // what is shown first
  const id = location.hash.slice(1) in sections ? location.hash.slice(1) : able ?? "masks";
  for (const [name, section] of Object.entries(sections)) section.element.hidden = name !== id;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.hash === `#${id}`;
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    if (here) link.scrollIntoView({block: "nearest", inline: "center"});
  }
  document.title = `${sections[id].element.querySelector("h2").textContent} – Playground`;
  if (state.about) fill(id);
}
// Open a section: ask what it needs, or say why the model cannot.
function fill(id) {
  const section = sections[id], why = reason(id), absent = section.element.querySelector(".absent");
  absent.textContent = why && `Not for this model: ${why}.`.replace(/\.\.$/, ".");
  if (id === "ablations" && why) absent.textContent = why;
  absent.hidden = !why;
  section.form.hidden = section.place.hidden = Boolean(why);
  if (!why) section.open();
}
function reason(id) {
  if (id === "ablations") return state.about.study ? "" : "No study was given; start the server with --study=DIR, a directory that bert-jax study wrote.";
  return state.about.models[state.model].lacking[id];
}
function choose(name) {
  state.model = name;
  const model = state.about.models[name];
  byId("model-line").textContent = `${name}: ${model.layers} layers, ${model.heads ? `${model.heads} heads, ` : ""}width ${model.width}`
    + (model.vocabulary === null ? ", no vocabulary" : `, ${model.vocabulary.toLocaleString("en")} word pieces`);
  attention.fields.layer.replaceChildren(...Array.from({length: model.layers}, (_, layer) => make("option", {value: layer}, String(layer + 1))));
  const lengths = [...preparation.fields.places.options];
  for (const option of lengths) option.disabled = Number(option.value) > model.read;
  if (preparation.fields.places.selectedOptions[0].disabled) lengths.filter((option) => !option.disabled).at(-1).selected = true;
  for (const [id, section] of Object.entries(sections)) {
    section.found = null;
    section.divided = null;
    section.place.replaceChildren();
    const link = document.querySelector(`nav a[href="#${id}"]`), why = reason(id);
    link.classList.toggle("lacking", Boolean(why));
    link.title = why;
  }
  show();
}
async function start() {
  try { state.about = await send("about", null); }
  catch (error) {
    byId("model-line").textContent = error instanceof Refused ? error.message : "The server cannot be reached; is it still running?";
    return;
  }
  if (!state.about.ready) {
    const [done, shapes] = state.about.warmed;
    byId("model-line").textContent = `the server compiles its programs: ${done} of ${shapes} …`;
    state.about = null;
    return void setTimeout(start, 500);
  }
  const names = Object.keys(state.about.models);
  byId("model").replaceChildren(...names.map((name) => make("option", {value: name}, name)));
  byId("models").hidden = names.length < 2;
  byId("index-choice").hidden = state.about.index === null;
  neighbours.fields.among.options[1].textContent = `the ${(state.about.index ?? 0).toLocaleString("en")} documents of the index`;
  ablations.fields.measure.replaceChildren(...(state.about.study?.measures ?? []).map((each, number) => make("option", {value: number}, each.heading)));
  choose(names[0]);
}

const themes = {"": "as the system", light: "light", dark: "dark"};
function theme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
  byId("theme").textContent = `Colours: ${themes[name]}`;
  attention.redraw();
}
const stored = { // a page in a notebook may have no storage
  get: () => { try { return localStorage.getItem("theme") ?? ""; } catch { return ""; } },
  set: (name) => { try { localStorage.setItem("theme", name); } catch { /* it lasts as long as the page */ } },
};
byId("theme").addEventListener("click", () => {
  const names = Object.keys(themes), name = names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length];
  stored.set(name);
  theme(name);
});
byId("model").addEventListener("change", (event) => choose(event.target.value));
addEventListener("hashchange", () => { show(); byId("main").focus({preventScroll: true}); });
theme(stored.get() in themes ? stored.get() : "");
show();
start();
