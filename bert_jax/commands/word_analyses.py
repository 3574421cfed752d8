"""`bert-jax analyze similarity`: words in their contexts, computed, printed and drawn."""

import functools

from bert_jax.analysis.pictures import write_pictures
from bert_jax.analysis.saved_results import output_directory, save_result
from bert_jax.analysis.word_states.context_similarity import ContextSimilarity, similarity
from bert_jax.analysis.word_states.word_pictures import draw_context_similarity, draw_sense_similarity
from bert_jax.analysis.word_states.word_senses import read_senses, word_senses
from bert_jax.commands.analysis_results import print_files, print_layers, saved_or_computed
from bert_jax.config.analyses.word_options import SimilarityConfig
from bert_jax.pretrained.loading import load
from bert_jax.pretrained.model import PretrainedModel


def run_similarity(path: str, options: SimilarityConfig) -> None:
    """Print and draw how much the vectors of words depend on their contexts; with `--word`, on its senses."""
    rows = read_senses(options.senses) if options.word else None  # before anything that takes long
    model = load(path)
    compute = functools.partial(
        similarity,
        model,
        words=options.words,
        contexts=options.contexts,
        seed=options.seed,
        batch_size=options.batch_size,
        max_length=options.max_length,
    )
    result = saved_or_computed(ContextSimilarity, "similarity", [model], options, compute)
    pictures = write_pictures(draw_context_similarity(result), options.output, "similarity")
    columns = {
        "self-similarity": result.self_similarity.mean(axis=0),
        "intra-sentence": result.intra_sentence,
        "cosine of any two": result.cosine_baseline,
        "explained": result.explained_variance.mean(axis=0),
        "of any words": result.explained_baseline,
    }
    print_layers(columns, title=f"{len(result.words)} words in {result.contexts} texts each")
    print_files(options, pictures)
    if rows is not None:
        _word_senses(model, options, rows)


def _word_senses(model: PretrainedModel, options: SimilarityConfig, rows: list[tuple[str, str]]) -> None:
    senses, texts = [sense for sense, _ in rows], [text for _, text in rows]
    result = word_senses(
        model, options.word, texts, senses, batch_size=options.batch_size, max_length=options.max_length
    )
    save_result(output_directory(options.output) / "word.json", {"word": options.word, "model": model.path}, result)
    pictures = write_pictures(draw_sense_similarity(result), options.output, "word")
    columns = {"within senses": result.within, "between senses": result.between, "other words": result.baseline}
    print_layers(columns, title=f"cosines of {options.word!r}")
    print_files(options, pictures, "word.json")
