"""`bert-jax analyze`: from its words to an analysis."""

from bert_jax.config.analyses import ANALYSES
from bert_jax.console.command_line import parse, positional
from bert_jax.console.help import described, usage
from bert_jax.errors import UserError


def run_analysis(name: str, words: list[str]) -> None:
    """Run an analysis and write its files, or print its help.

    Args:
      name: one of ANALYSES.
      words: the words of the command line after the name.

    Raises:
      UserError: an unknown analysis, a model or texts that cannot be read, or options that cannot work.
    """
    if name not in ANALYSES:
        raise UserError(f"unknown analysis {name!r}; analyses: {', '.join(ANALYSES)}")
    path, given = positional(words, usage(ANALYSES[name]), "MODEL")
    options = parse(ANALYSES[name], given, *described(ANALYSES[name]))
    options.check()
    from bert_jax.commands.attention_analyses import run_attention  # --help answers without what computes
    from bert_jax.commands.head_analyses import run_heads
    from bert_jax.commands.layer_analyses import run_cka, run_isotropy
    from bert_jax.commands.mask_analyses import run_mask_gap
    from bert_jax.commands.probe_analysis import run_probe
    from bert_jax.commands.pruning_analyses import run_prune
    from bert_jax.commands.signal_analyses import run_init
    from bert_jax.commands.spelling_analyses import run_noise
    from bert_jax.commands.word_analyses import run_similarity

    runs = {
        "attention": run_attention,
        "cka": run_cka,
        "init": run_init,
        "heads": run_heads,
        "isotropy": run_isotropy,
        "probe": run_probe,
        "mask_gap": run_mask_gap,
        "noise": run_noise,
        "prune": run_prune,
        "similarity": run_similarity,
    }
    runs[name](path, options)
