"""`bert-jax fill-mask`: prints what a model writes in place of each [MASK]."""

from rich.console import Console
from rich.table import Table

from bert_jax.config.commands import FillMaskConfig
from bert_jax.pretrained.filling import Filled, fill_mask
from bert_jax.pretrained.loading import load_with_generator


def run_fill_mask(path: str, text: str, options: FillMaskConfig) -> None:
    model, generator = load_with_generator(path)
    model = generator or model  # a discriminator writes no words
    tokenizer = model.need_tokenizer()
    print_filled(text, fill_mask(model, text, options.top_k), tokenizer.tokens[tokenizer.mask_id])


def print_filled(text: str, filled: Filled, mask: str) -> None:
    """Print the text, then one column per mask with the most likely candidate on top."""
    console, table = Console(markup=False, highlight=False), Table(show_header=len(filled) > 1)
    console.print(text, style="bold", soft_wrap=True)
    for number in range(1, len(filled) + 1):
        table.add_column(f"{mask} {number}")
    for candidates in zip(*filled, strict=True):
        table.add_row(*(f"{c.probability:6.1%}  {c.token}" for c in candidates))
    console.print(table)
