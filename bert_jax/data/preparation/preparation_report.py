"""What `bert-jax prepare` says of the store that it made."""

from absl import logging
from etils import epath

from bert_jax.config import DataConfig
from bert_jax.data.held_out import held_out_documents
from bert_jax.data.store.manifest import Manifest

SHORT_DOCUMENT = 256
"""Tokens: wrapped documents that are shorter on average are probably paragraphs."""


def report(output: epath.Path, manifest: Manifest, text_bytes: int, seconds: float) -> None:
    """Print the counts and the speed of a run that took `seconds` for `text_bytes`, and what looks wrong."""
    print(
        f"{output}: {description(manifest)}; {text_bytes / 1e6:,.1f} MB of text in {seconds:,.1f} s, "
        f"{text_bytes / 1e6 / seconds:.2f} MB/s"
    )
    for line in cleaning_lines(manifest):
        print(line)
    _warn_of_few_documents(manifest.counts.documents)
    _warn_of_paragraphs_as_documents(manifest)


def cleaning_lines(manifest: Manifest) -> list[str]:
    """Return a line for each step and rule of the cleaning that did something."""
    lines = []
    for each in manifest.cleaning:
        parts = (
            (each.documents, "documents removed"),
            (each.paragraphs, "paragraphs removed or changed"),
            (each.characters, "characters fewer"),
        )
        lines.append(f"  {each.step}: " + ", ".join(f"{number:,} {what}" for number, what in parts if number))
    return lines


def _warn_of_few_documents(number: int) -> None:
    share = DataConfig().held_out
    if number * share >= 1:
        return
    held_out = int(held_out_documents(number, share).sum())
    effect = f"keeps {held_out} of them ({held_out / number:.0%}) for evaluation"
    logging.warning(
        "The corpus has %s, and training draws by document: data.held_out=%s %s, random next sentences come from other "
        "documents, and data.short_sequence_probability cuts whole documents short. Put a blank line between chapters "
        "or articles, or evaluate on a store of other text (--data.eval_path)",
        "one document" if number == 1 else f"only {number} documents",
        share,
        effect if number > 1 else "leaves nothing to train on",
    )


def _warn_of_paragraphs_as_documents(manifest: Manifest) -> None:
    counts = manifest.counts
    if any(source.wrap_column for source in manifest.sources) and counts.tokens < SHORT_DOCUMENT * counts.documents:
        logging.warning(
            "A blank line ends a document, and these have %.1f sentences and %.0f tokens on average. If the blank "
            "lines in the hard-wrapped files separate paragraphs, remove all but those between chapters: no training "
            "sequence and no sentence pair extends beyond a document",
            counts.sentences / counts.documents,
            counts.tokens / counts.documents,
        )


def description(manifest: Manifest) -> str:
    """Return the counts of a store in a line."""
    counts = manifest.counts
    notes = [
        f"{counts.documents:,} documents, {counts.sentences:,} sentences, {counts.tokens:,} tokens",
        f"{counts.unknown_tokens / counts.tokens:.3%} unknown",
    ]
    if counts.cut_sentences:
        notes.append(f"{counts.cut_sentences:,} cuts in overlong sentences")
    if counts.replaced_characters:
        notes.append(f"{counts.replaced_characters:,} malformed bytes or characters replaced by U+FFFD")
    return ", ".join(notes)
