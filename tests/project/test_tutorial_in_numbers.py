"""The page of worked examples: it prints what it says, and NumPy comes to the same numbers."""

import contextlib
import io
import math
import pathlib
import re
import tempfile

import numpy as np
import pytest

import bert_jax
from bert_jax.models.costs import parameter_counts

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial_in_numbers.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, str]:
    """The text of each section by its heading."""
    return {part.split("\n", 1)[0]: part for part in PAGE.read_text(encoding="utf-8").split("\n## ")}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the blocks define, and for each one with an output its section, that output and what it printed.

    They run as one program, as a reader runs them.
    """
    names, outputs = {"__name__": "page"}, []
    with pytest.MonkeyPatch.context() as patch, np.printoptions():
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("page")))
        for title, text in sections().items():
            printed = ""
            for kind, content in BLOCK.findall(text):
                if kind == "text":
                    outputs.append((title, content, printed))
                    continue
                with contextlib.redirect_stdout(io.StringIO()) as stream:
                    exec(compile(content, PAGE, "exec"), names)
                printed = stream.getvalue()
    return names, outputs


def test_every_block_prints_what_the_page_says(page):
    _, outputs = page
    for title, said, printed in outputs:
        assert said == printed, title
    assert {title for title, *_ in outputs} == {*sections()} - {"# BERT in numbers"}


def says(title: str, *words: str) -> None:
    """Assert that the section has the words, whose numbers a test has calculated, outside its blocks too."""
    text = " ".join(BLOCK.sub("", sections()[title]).split())
    for word in words:
        assert word.replace("-", "−") in text, word


def rounded(numbers, digits: int, between: str = ", ") -> str:
    return between.join(f"{number:.{digits}f}" for number in np.ravel(numbers))


def longest_first(word: str, entries: set[str], start: str = "") -> list[str] | None:
    """The longest entry first, then the rest of the word; None if it cannot be divided so."""
    if not word:
        return []
    size = next((size for size in range(len(word), 0, -1) if start + word[:size] in entries), 0)
    rest = longest_first(word[size:], entries, "##") if size else None
    return None if rest is None else [start + word[:size], *rest]


def test_pieces_of_a_word(page):
    names, _ = page
    entries = {*names["entries"]}
    for word in ("unaffable", "playing", "island"):
        assert names["tokenizer"].tokenize(word) == (longest_first(word, entries) or ["[UNK]"])
    assert {"isl", "is", "##land", "play", "##ing"} <= entries and "##and" not in entries


def test_the_published_vocabularies(shared_data):
    uncased, cased = (
        (shared_data / "vocab" / casing / "vocab.txt").read_text().splitlines() for casing in ("uncased", "cased")
    )
    says("Pieces of a word", f"{len(uncased):,} entries, or {len(cased):,}")
    says("Pieces of a word", f"*playing* is entry {uncased.index('playing')} and *superb* {uncased.index('superb')}")
    assert uncased[25408] == "miscellaneous"


def test_embeddings(page):
    names, _ = page
    total = names["word"][1] + names["position"][0] + names["segment"][0]
    spread = np.sqrt(np.mean((total - total.mean()) ** 2))
    expected = (total - total.mean()) / spread
    ids, types = names["ids"], names["types"]
    np.testing.assert_allclose(names["embeddings"](ids, types, np.float32, None)[0, 0], expected, rtol=1e-6)
    says("Embeddings", f"0.5/√{spread**2:g} = {expected[0]:.3f}", f"-1.5/√{spread**2:g} = {expected[3]:.3f}")
    of_a_sample = (total - total.mean()) / np.std(total, ddof=1)
    says("Embeddings", f"the result [{', '.join(f'{each:g}' for each in of_a_sample)}]")


def softmax(scores):
    powers = np.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


def test_attention(page):
    names, _ = page
    query, key, value = (np.array(names[name][0, :, 0], np.float64) for name in ("query", "key", "value"))
    weights = softmax(query @ key.T / np.sqrt(2))
    np.testing.assert_allclose(names["weights"][0, 0], weights, rtol=1e-6)
    np.testing.assert_allclose(names["found"][0, :, 0], weights @ value, rtol=1e-6)
    of_two = softmax(query @ key[:2].T / np.sqrt(2))
    np.testing.assert_allclose(names["weights_of_two"][0, 0, :, :2], of_two, rtol=1e-6)
    np.testing.assert_allclose(names["padded"][0, :, 0], of_two @ value[:2], rtol=1e-6)
    power = math.exp(1 / math.sqrt(2))
    says("Attention", f"e^{1 / math.sqrt(2):.3f} = {power:.3f}", f"their sum {2 * power + 1:.3f}")
    says("Attention", f"{power:.3f}/{power + 1:.3f} and 1/{power + 1:.3f}", f"√768 = {math.sqrt(768):.1f}")
    says("Attention", "{}, {} and {}".format(*rounded(weights[0], 3).split(", ")))
    says("Attention", f"The weights {rounded(softmax(query[0] @ key.T / np.sqrt(3)), 2)}")


def test_gelu(page):
    names, _ = page
    exact = lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2
    close = lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    for function, ours in ((exact, "gelu_erf"), (close, "gelu_tanh")):
        expected = [function(float(x)) for x in names["x"]]
        np.testing.assert_allclose(names[ours](names["x"]), expected, rtol=1e-5, atol=1e-6)
    says("GELU", f"1 becomes {exact(1):.4f}", f"= {exact(-1):.4f}")
    places = np.arange(-6, 6, 0.01)
    apart = np.abs([exact(x) - close(x) for x in places])
    says("GELU", f"{apart.max():.4f} at most, near ±{abs(places[apart.argmax()]):.1f}")


def test_masks(page):
    names, _ = page
    becomes, chosen = names["becomes"], int(names["chosen"].sum())
    assert chosen == 2_000 * round(0.15 * 128)
    shares = [np.mean(becomes == names["MASK"]), np.mean(becomes == names["TOKEN"])]
    for found, share in zip([*shares, 1 - sum(shares)], (0.8, 0.1, 0.1), strict=True):
        assert abs(found - share) < 2.58 * math.sqrt(share * (1 - share) / chosen)
    odd = becomes[(becomes != names["MASK"]) & (becomes != names["TOKEN"])]
    assert odd.min() < 100 and odd.max() > names["WORDS"] - 100, "from one end of the vocabulary to the other"
    says("Masks", f"{19 * 0.8:g} [MASK], {19 * 0.1:.1f} random", f"0.15 · 128 = {0.15 * 128:g}")
    says("Masks", f"{15 * 0.8:g} % become [MASK], {15 * 0.1:g} % are random")


def test_loss_of_the_masked_words(page):
    names, _ = page
    powers = np.exp([2.0, 1.0, 0.0, -1.0])
    losses = -np.log(powers / powers.sum())[[0, 1, 3]]
    mean = losses.mean()
    assert float(names["loss"]) == pytest.approx(mean, rel=1e-6)
    title = "Loss of the masked words"
    says(title, f"{rounded(powers[:2], 3)}, 1 and {powers[3]:.3f} have the sum {powers.sum():.3f}")
    says(title, "{}, {}, {} and {}".format(*rounded(powers / powers.sum(), 3).split(", ")))
    says(title, "{}, {} and {}".format(*rounded(losses, 3).split(", ")))
    says(title, f"{losses.sum():.3f}/3 = {mean:.3f}", f"e^{mean:.3f} = {math.exp(mean):.3f}")
    says(title, f"ln 30,522 = {math.log(30_522):.3f}", f"3.99, a loss of {math.log(3.99):.3f}")
    rows = losses[:2].mean(), losses[2]
    says(title, f"({rounded(rows, 3, ' + ')})/2 = {np.mean(rows):.3f}", f"/4 = {losses.sum() / 4:.3f}")
    says(title, f"({rounded(np.exp(losses), 3, ' + ')})/3 = {np.exp(losses).mean():.3f}")
    says(title, f"{mean:.3f}/ln 2 = {mean / math.log(2):.3f} bits")


def test_next_sentences(page):
    """The second part is about the same person where the label says that it follows, and only there."""
    names, _ = page
    pairs, tokens = names["pairs"], names["store"].tokenizer().tokens
    ids = pairs["input_ids"].copy()
    rows, slots = np.nonzero(pairs["masked_weights"])
    ids[rows, pairs["masked_positions"][rows, slots]] = pairs["masked_ids"][rows, slots]
    is_person = np.isin(ids, [tokens.index(person) for person in names["people"]])
    lowest, highest = (
        [edge(np.where(is_person & (pairs["token_type_ids"] == part), ids, usual), axis=1) for part in (0, 1)]
        for edge, usual in ((np.min, len(tokens)), (np.max, -1))
    )
    known = (highest[0] >= 0) & (highest[1] >= 0)  # a cut part may have no person
    same = (lowest[0] == highest[0]) & (lowest[1] == highest[1]) & (lowest[0] == lowest[1])
    assert (same == (pairs["next_sentence_labels"] == 0))[known].all() and known.mean() > 0.99
    assert 0.5 < pairs["next_sentence_labels"].mean() < 0.55
    first, second = softmax(np.array([2.0, -1.0]))
    says("Next sentences", f"{math.e**2:.3f}/{math.e**2 + 1 / math.e:.3f} = {first:.3f}", f"-ln {second:.3f} = ")
    says("Next sentences", f"= {-math.log(first):.3f}, else", f"= {-math.log(second):.3f}.")
    start = math.log(30_522), math.log(2)
    says("Next sentences", f"= {rounded(start, 3, ' + ')} = {sum(start):.3f}")


def parts(hidden: int, words: int = 30_522) -> dict[str, int]:
    """The rows of the page's table."""
    wide = 4 * hidden
    return {
        "word table": words * hidden,
        "positions, segments, norm": 512 * hidden + 2 * hidden + 2 * hidden,
        "**a layer**: query, key, value, output": 4 * (hidden**2 + hidden),
        "its feed-forward network": (hidden * wide + wide) + (wide * hidden + hidden),
        "its two norms": 4 * hidden,
        "pooler": hidden**2 + hidden,
        "head of masked words": hidden**2 + hidden + 2 * hidden + words,
        "head of next sentences": 2 * hidden + 2,
    }


def test_parameters(page):
    names, _ = page
    for size, hidden, layers in (("base", 768, 12), ("large", 1_024, 24)):
        table = parts(hidden)
        rows = [*table.values()]
        layer, encoder = sum(rows[2:5]), sum(rows[:2]) + layers * sum(rows[2:5]) + rows[5]
        config = names["dataclasses"].replace(bert_jax.model_config(size), vocab_size=30_522)
        counts = parameter_counts(bert_jax.BertForPreTraining(config).parameters)
        assert (counts.block, counts.encoder, counts.pretraining) == (layer, encoder, encoder + sum(rows[6:]))
        says("Parameters", f"{layers} {'layers ' if size == 'base' else ''}of {layer:,}")
        if size == "large":
            assert (round(encoder / 1e6), round(counts.pretraining / 1e6)) == (335, 336)
            continue
        for name, value in table.items():
            assert re.search(rf"^\| {re.escape(name)} \|.*\| {value:,} \|$", sections()["Parameters"], re.MULTILINE)
        says("Parameters", f"{counts.pretraining + rows[0]:,} counts", f"{counts.pretraining:,} + {rows[0]:,}")
        says("Parameters", f"{encoder + 2 * hidden + 2:,}, the number of a classifier", f"{encoder:,} + 2 H + 2")
        heads = names["dataclasses"].replace(config, num_heads=16)
        assert parameter_counts(bert_jax.BertForPreTraining(heads).parameters) == counts


def test_learning_rate(page):
    _, outputs = page
    (said,) = (said for title, said, _ in outputs if title == "Learning rate")
    for step, rate in (row.split() for row in said.splitlines()):
        number = int(step.replace(",", ""))
        expected = 1e-4 * (number / 10_000 if number < 10_000 else 1 - number / 1_000_000)
        assert float(rate) == pytest.approx(expected, rel=1e-4, abs=0)
    says("Learning rate", f"{(1_000_000 - 500_000) / (1_000_000 - 10_000) * 10:.2f} · 10⁻⁵ at step 500,000")


def test_adam(page):
    names, _ = page
    steps = np.arange(1, 5_000)
    factors = (1 - 0.9**steps) / np.sqrt(1 - 0.999**steps)
    assert float(names["first"]["w"]) == pytest.approx(factors[11], rel=1e-4)  # epsilon is 1e-5 of √v
    assert float(names["second"]["w"]) == pytest.approx(1, rel=1e-5)
    says("Adam", f"0.1/{math.sqrt(0.001):.4f} = {factors[0]:.2f}", f"0.19/{math.sqrt(0.001999):.4f} = {factors[1]:.2f}")
    says("Adam", f"grows to {factors.max():.2f} in step {steps[factors.argmax()]}", f"is {12 / 100:g} % of its peak")


def test_operations_and_tokens(page):
    names, _ = page
    hidden, length, title = 768, 128, "Operations and tokens"
    kernels, attention = 12 * 12 * hidden**2, 12 * 2 * length**2 * hidden
    word, text = hidden**2 + 30_522 * hidden, hidden**2 + 2 * hidden
    total = length * kernels + attention + 20 * word + text
    says(title, f"= {kernels:,} mult", f"have {length * kernels:,}.", f"= {attention:,}.", f"= {word:,}", f"= {text:,}")
    says(title, f"The sum {total:,}", f"{6 * total / 1e9:.1f} · 10⁹ operations")
    flops = names["training_flops"](names["base"], names["parameters"], length, 20)
    assert flops.total == 6 * total
    says(title, f"6 · 110,106,428 · 128 = {6 * 110_106_428 * 128 / 1e9:.1f}")
    assert 6 * 110_106_428 * 128 / (6 * total) == pytest.approx(1.2, abs=0.02)
    everything, seen = 256 * 512 * 1e6, 256 * (128 * 900_000 + 512 * 100_000)
    says(title, f"is {everything / 1e9:.0f} · 10⁹ tokens", f"{everything / 3.3e9:.1f} tokens for each word")
    says(title, f"it was {seen / 1e9:.1f} · 10⁹, or {seen / 3.3e9:.1f} for each word")
    assert names["tokens"] == seen
