"""Text of our own making with something to learn in it: subjects go with their verbs, documents keep to a topic."""

import numpy as np

TOPICS = {
    "garden": (["gardener", "rose", "spade", "hedge", "sparrow"], ["grows", "digs", "waters", "blooms", "wilts"]),
    "harbour": (["sailor", "anchor", "lighthouse", "gull", "tide"], ["sails", "sinks", "rises", "docks", "drifts"]),
    "kitchen": (["cook", "kettle", "oven", "loaf", "onion"], ["bakes", "boils", "simmers", "cools", "burns"]),
    "workshop": (["joiner", "hammer", "bench", "plank", "chisel"], ["cuts", "planes", "splits", "joins", "polishes"]),
}
PLACES = ["in the morning", "before noon", "after the rain", "without a sound", "once again"]


def documents(count: int, seed: int = 0) -> list[str]:
    """`count` documents of 4 to 12 sentences, one sentence a line."""
    generator, topics = np.random.default_rng(seed), list(TOPICS.values())
    texts = []
    for _ in range(count):
        nouns, verbs = topics[generator.integers(len(topics))]
        lines = []
        for _ in range(generator.integers(4, 13)):
            first, second = generator.integers(5, size=2)
            lines.append(
                f"The {nouns[first]} {verbs[first]} {PLACES[generator.integers(5)]} "
                f"and the {nouns[second]} {verbs[second]}."
            )
        texts.append("\n".join(lines))
    return texts


def write(path, count: int, seed: int = 0):
    path.write_text("\n\n".join(documents(count, seed)) + "\n", encoding="utf-8")
    return path
