"""`bert-jax analyze attention`: the attention in one text, as a page to explore and as a picture."""

from bert_jax.analysis.attention_weights.attention_maps import AttentionMaps, attention
from bert_jax.analysis.attention_weights.attention_page import attention_page
from bert_jax.analysis.attention_weights.attention_pictures import draw_attention
from bert_jax.analysis.pictures import write_pictures
from bert_jax.analysis.saved_results import model_fingerprint, output_directory, save_result, saved_result
from bert_jax.config.analyses.attention_options import AttentionConfig
from bert_jax.files import write_atomically
from bert_jax.pretrained.loading import load


def run_attention(path: str, options: AttentionConfig) -> None:
    """Write the attention in a text, or the page and the picture of what was computed before."""
    model = load(path)
    directory = output_directory(options.output)
    key = {
        "analysis": "attention",
        "models": [model_fingerprint(model)],
        "options": {"text": options.text, "pair": options.pair, "max_length": options.max_length},
    }
    result = saved_result(directory / "result.json", key, AttentionMaps)
    if result is None:
        result = attention(model, options.text, options.pair or None, max_length=options.max_length)
        save_result(directory / "result.json", key, result)
    write_atomically(directory / "index.html", attention_page(result).encode())
    pictures = write_pictures(draw_attention(result), options.output, "attention")
    layers, heads, tokens, _ = result.weights.shape
    print(f"{layers} layers of {heads} heads over {tokens} tokens: {' '.join(result.tokens)}")
    print(f"{options.output}: result.json, index.html, {', '.join(pictures)}")
