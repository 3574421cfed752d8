"""`bert-jax inspect`: how documents become sentences, pieces, chunks, pairs and masks; and when a run read them."""

import dataclasses
import json
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_jax.config import Config, DataConfig, MaskingConfig, ModelConfig, PhaseConfig
from bert_jax.config.checks import check
from bert_jax.config.commands import InspectConfig
from bert_jax.data.examples import Batch
from bert_jax.data.masking import replacement
from bert_jax.data.mixtures import epoch_report
from bert_jax.data.reads import MOST_FOUND, Passage, passages_with, whole
from bert_jax.data.store import Rows, Store, open_store
from bert_jax.errors import UserError
from bert_jax.files import check_output_place, write_output
from bert_jax.tokenization.tokenizer import Tokenizer
from bert_jax.training_data import Examples

_SEGMENT_STYLES = ("cyan", "green")
_PICTURE = 64  # columns of a full row
_MASKED, _RANDOM, _KEPT = "bold white on red", "bold black on yellow", "bold underline"
LEGEND = (
    rf"[{_SEGMENT_STYLES[0]}]first segment[/] · [{_SEGMENT_STYLES[1]}]second segment[/] · predicted: "
    rf"[{_MASKED}]\[MASK][/] [{_RANDOM}]random word[/] [{_KEPT}]kept[/] (the original follows in parentheses)"
)
_STYLES = {"mask": _MASKED, "random": _RANDOM, "kept": _KEPT}


def run_inspect(path: str, config: InspectConfig, console: Console | None = None) -> None:
    """Print the store at `path` as a training run without held-out documents would see it, or a run has.

    Raises:
      UserError: there is no such store, document or run, or an option is out of range.
    """
    console, store = console or Console(highlight=False), open_store(path, config.cache)
    for name in ("document", "epoch", "sentences", "examples"):
        if getattr(config, name) < 0:
            raise UserError(f"{name}={getattr(config, name)} must not be negative")
    if config.document >= store.num_documents:
        raise UserError(f"document={config.document}, but {path} has {store.num_documents} documents, numbered from 0")
    if config.output:
        check_output_place(config.output)
    passages = passages_with(store, config.words) if config.words else [whole(store, config.document)]
    console.print(Text(f"Token store {path}", "bold"), _totals(store, store.tokenizer()), sep="\n")
    if config.words:
        more = ", and perhaps others" if len(passages) == MOST_FOUND else ""
        console.print(f"\n{config.words!r} is in document {_places(passages)}{more}", markup=False)
    if config.run:
        _print_steps(console, store, path, passages, config)
    else:
        _print_as_examples(console, store, dataclasses.replace(config, document=passages[0].document))


LONGEST_ROW = 1 << 16
"""Longest rows that are made to be looked at."""


def _print_as_examples(console: Console, store: Store, config: InspectConfig) -> None:
    """Print the document and the examples that a run with these options makes of it."""
    if config.sequence_length > LONGEST_ROW:
        raise UserError(
            f"sequence_length={config.sequence_length} is more than {LONGEST_ROW:,}, the longest rows that are shown"
        )
    run = check(
        Config(
            model=ModelConfig(max_position_embeddings=max(512, config.sequence_length)),
            data=DataConfig(
                sentence_pairs=config.sentence_pairs,
                short_sequence_probability=config.short_sequence_probability,
                packing=config.packing,
            ),
            masking=MaskingConfig(unit=config.unit),
            seed=config.seed,
            phases=(PhaseConfig(sequence_length=config.sequence_length),),
        )
    )
    tokenizer, examples = store.tokenizer(), Examples(store, run, split="all")
    _print_document(console, store, tokenizer, config)
    _print_examples(console, examples, tokenizer, config)
    _print_report(console, examples, config)


MOST_SHOWN = 40
"""Rows that are printed; the file of --output has all of them."""


def _print_steps(console: Console, store: Store, path: str, passages: list[Passage], config: InspectConfig) -> None:
    """Print the steps at which a run reads passages, and write them to the file that is wanted."""
    from bert_jax.tools.course import read_course, trace  # which imports what computes

    course = read_course(config.run)
    found = trace(course, store, path, passages, config.stores)
    if len(found) == 1:
        _print_passage(console, store, passages[0], config)
    rows = [{"document": each.passage.document, **row} for each in found for row in each.steps]
    rows.sort(key=lambda row: (row["step"], row["row"]))
    if rows:
        done = sum(row["step"] <= course.last for row in rows)
        console.print(
            f"\nRead in {done:,} row{'s' * (done != 1)} of the {course.last:,} steps that {config.run} has taken, and "
            f"in {len(rows) - done:,} of those to come",
            markup=False,
        )
        console.print(_steps_table(rows[:MOST_SHOWN], course.last, ["document"] if len(found) > 1 else []))
        if len(rows) > MOST_SHOWN:
            console.print(f"… and {len(rows) - MOST_SHOWN:,} more rows; --output=FILE has all", style="dim")
    for held_out, reason in ((False, ""), (True, ": it is held out, the run is evaluated on it")):
        unread = [each.passage for each in found if not each.steps and each.held_out == held_out]
        if unread:
            which = "it" if len(found) == 1 else f"document {_places(unread)}"
            console.print(f"\nNo step of {config.run} reads {which}{reason}", markup=False)
    if course.origin:
        console.print(f"The steps up to {course.origin:,} are those of the run that it has branched off from")
    ends = [course.origin, *(stretch.end for stretch in course.stretches)]
    for begin, stretch in zip(ends, course.stretches, strict=False):
        if begin < stretch.begin:
            console.print(f"Unknown: what the steps {begin + 1:,} to {stretch.begin:,} read, whose batch size is lost")
    if config.output:
        facts = {"run": config.run, "store": path, "last": course.last}
        facts["passages"] = [dataclasses.asdict(each) for each in found]
        write_output(config.output, (json.dumps(facts, indent=1) + "\n").encode())


def _places(passages: list[Passage]) -> str:
    return ", ".join(f"{each.document} (token {each.begin})" for each in passages)


def _print_passage(console: Console, store: Store, passage: Passage, config: InspectConfig) -> None:
    """Print a document, or which tokens of one are followed."""
    tokenizer = store.tokenizer()
    if passage == whole(store, passage.document):
        _print_document(console, store, tokenizer, dataclasses.replace(config, document=passage.document))
        return
    console.print(f"\n[bold]Document {passage.document}[/bold], tokens {passage.begin:,} to {passage.end - 1:,}")


def _steps_table(rows: Any, last: int, before: list[str]) -> Table:
    table, numbers = Table(), [*before, "phase", "epoch", "step", "row"]
    to_come = any(row["step"] > last for row in rows)
    for name in (*numbers, "places", "tokens", *(("",) if to_come else ())):
        table.add_column(name, justify="right")
    for row in rows:
        places, tokens = (f"{row[f'first_{each}']}–{row[f'last_{each}']}" for each in ("place", "token"))
        known = [f"{row[name]:,}" for name in numbers]
        when = ["to come" if row["step"] > last else ""] if to_come else []
        table.add_row(*known, places, f"{tokens} ({row['tokens']})", *when)
    return table


def _totals(store: Store, tokenizer: Tokenizer) -> Table:
    return _table(
        (
            ("documents", f"{store.num_documents:,}"),
            ("sentences", f"{store.num_sentences:,}"),
            ("tokens", f"{store.num_tokens:,}"),
            ("sentences per document", f"{store.num_sentences / store.num_documents:.1f}"),
            ("tokens per sentence", f"{store.num_tokens / store.num_sentences:.1f}"),
            ("vocabulary", f"{tokenizer.kind}, {store.vocab_size:,} entries"),
        )
    )


def _print_document(console: Console, store: Store, tokenizer: Tokenizer, config: InspectConfig) -> None:
    first, end = (int(store.document_sentences[config.document + i]) for i in (0, 1))
    tokens = int(store.document_tokens[config.document + 1] - store.document_tokens[config.document])
    console.print(f"\n[bold]Document {config.document}[/bold]: {end - first:,} sentences, {tokens:,} pieces")
    shown = min(end, first + config.sentences)
    starts = store.sentence_starts(np.arange(first, shown + 1))
    for number in range(shown - first):
        pieces = [tokenizer.tokens[token] for token in store.tokens(np.arange(starts[number], starts[number + 1]))]
        coloured = Text(" ").join(Text(piece, ("", "blue")[place % 2]) for place, piece in enumerate(pieces))
        console.print(Text(f"{number:>5}  ", "dim") + coloured)
    if shown < end:
        console.print(f"       … and {end - shown:,} more sentences", style="dim")


def _print_examples(console: Console, examples: Examples, tokenizer: Tokenizer, config: InspectConfig) -> None:
    indices = examples.with_document(config.epoch, config.document)
    numbers = ", ".join(map(str, indices[:8].tolist())) + (" …" if len(indices) > 8 else "")
    console.print(
        f"\nEpoch {config.epoch} has {len(indices):,} examples with its text: {numbers} "
        f"of {examples.num_examples(config.epoch):,}"
    )
    console.print(LEGEND)
    shown = indices[: config.examples]
    if len(shown):
        epochs = np.full(len(shown), config.epoch)
        rows, batch = examples.rows(epochs, shown), examples.examples_at(epochs, shown)
        for row, index in enumerate(shown):
            console.print(_heading(rows, row, int(index), examples))
            if rows.text_ids is not None:
                console.print(_filling(rows, row))
            console.print(row_as_text(batch, row, tokenizer))


def _heading(rows: Rows, row: int, index: int, examples: Examples) -> Text:
    words = [f"{rows.lengths[row]} of {examples.sequence_length} places"]
    if rows.labels is not None:
        names = ("0 IsNext", "1 random") if examples.sentence_pairs == "nsp" else ("0 in order", "1 swapped")
        labels = (
            rows.labels[row : row + 1] if rows.text_weights is None else rows.labels[row, rows.text_weights[row] > 0]
        )
        words[:0] = [names[label] for label in labels]
    if rows.truncated[row]:
        words.append(f"pieces cut off: {rows.truncated[row]}")
    if rows.duplicated[row]:
        words.append(f"pieces borrowed from another document: {rows.duplicated[row]}")
    return Text(f"\nExample {index}: ", "bold") + Text(", ".join(words))


def _filling(rows: Rows, row: int) -> Text:
    """Return a picture of a packed row: its texts side by side, each with its length, and what is left."""
    assert rows.text_ids is not None
    lengths = np.bincount(rows.text_ids[row])[1:].tolist()
    left = rows.text_ids.shape[1] - sum(lengths)
    picture = Text("Texts ", "dim").append("│")
    for number, length in enumerate(lengths):
        width = max(len(str(length)) + 2, round(_PICTURE * length / rows.text_ids.shape[1]))
        picture.append(f"{length:^{width}}", ("black on cyan", "black on green")[number % 2]).append("│")
    return picture.append(f" {left} free" if left else "", "dim")


def row_as_text(batch: Batch, row: int, tokenizer: Tokenizer) -> Text:
    """Return a row of a batch in colour, with the words that are predicted behind what stands in their place."""
    used = batch["masked_weights"][row] > 0
    originals = dict(
        zip(batch["masked_positions"][row, used].tolist(), batch["masked_ids"][row, used].tolist(), strict=True)
    )
    pieces = []
    for place in range(int(batch["attention_mask"][row].sum())):
        token, segment = int(batch["input_ids"][row, place]), int(batch["token_type_ids"][row, place])
        if place not in originals:
            special = token in (tokenizer.cls_id, tokenizer.sep_id)
            pieces.append(Text(tokenizer.tokens[token], "bold magenta" if special else _SEGMENT_STYLES[segment]))
            continue
        original = originals[place]
        style = _STYLES[replacement(token, original, tokenizer.mask_id)]
        pieces.append(Text(tokenizer.tokens[token], style) + Text(f"({tokenizer.tokens[original]})", "dim"))
    return Text(" ").join(pieces)


def _print_report(console: Console, examples: Examples, config: InspectConfig) -> None:
    report = epoch_report(examples, config.epoch, config.report_sequences)
    rows = [
        ("sequences", f"{report.sequences:,}"),
        ("mean length", f"{report.mean_length:.1f} of {examples.sequence_length}"),
        ("padding", f"{report.padding:.1%} of the positions"),
        ("cut off to fit", f"{report.truncated:.1%} of the text"),
        ("seen twice", f"{report.duplicated:.1%} of the text"),
    ]
    if examples.packing is not None:
        rows.insert(1, ("texts per sequence", f"{report.texts_per_sequence:.2f}"))
    if report.is_next is not None:
        rows.insert(1, ("IsNext" if examples.sentence_pairs == "nsp" else "in order", f"{report.is_next:.1%}"))
    if report.sentences_seen is not None:
        rows.append(("sentences seen", f"{report.sentences_seen:.3%}"))
    examined = "" if report.examined == report.sequences else f", first {report.examined:,} sequences"
    console.print(Text(f"\nEpoch {config.epoch}{examined}", "bold"), _table(rows), sep="\n")


def _table(rows: Any) -> Table:
    table = Table(show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table
