"""Checks on token stores of one vocabulary what a mixture of them promises, and prints the figures.

    python scripts/check_mixture.py "STORE=0.6,STORE=0.3,STORE=0.1" "STORE=0.2,STORE=0.3,STORE=0.5"

The first mixture is that of the first phase, the second that of the second. For each: the shares over a million
positions and the most that the count of a store is off anywhere on the way, epochs that each store is read in them, and
whether 1, 2 and 4 hosts make the same batches at positions in the first and in the last of these epochs, and at the
change of phases.
"""

import sys

import numpy as np

from bert_jax.config import Config, DataConfig, PhaseConfig
from bert_jax.data.examples.corpus import open_corpus
from bert_jax.data.examples.mixture import GRAINS, Mixture, assign

POSITIONS = 1_000_000
BATCH = 64


def hosts_agree(mixture: Mixture, first: int) -> bool:
    """Return whether the rows that 2 and 4 hosts make of a batch are those that one makes."""
    positions = np.arange(first, first + BATCH)
    whole = mixture.batch(positions)
    for hosts in (2, 4):
        parts = [mixture.batch(rows) for rows in positions.reshape(hosts, -1)]
        if any(not np.array_equal(np.concatenate([part[key] for part in parts]), whole[key]) for key in whole):
            return False
    return True


def main(first: str, second: str) -> int:
    steps = POSITIONS // BATCH
    phase = PhaseConfig(steps=steps, sequence_length=128, batch_size=BATCH)
    phases = (phase, PhaseConfig(steps=steps, sequence_length=128, batch_size=BATCH, mixture=second))
    training = open_corpus(Config(phases=phases, data=DataConfig(mixture=first))).training
    failed = 0
    for number, mixture in enumerate(training):
        assert isinstance(mixture, Mixture)
        owner, own = assign(np.arange(POSITIONS), mixture.grains)
        print(f"phase {number}: store, tokens, share wanted, share of {POSITIONS:,} positions, most off, epochs read")
        for index, (name, examples) in enumerate(mixture.sources.items()):
            taken = owner == index
            wanted = mixture.grains[index] / GRAINS
            off = np.abs(np.cumsum(taken) - np.arange(1, POSITIONS + 1) * wanted).max()
            epochs = (own[taken].max() + 1) / examples.num_examples(0)
            print(
                f"  {name}, {examples.store.num_tokens:,}, {wanted:.6f}, {taken.mean():.6f}, {off:.2f} sequences, "
                f"{epochs:.2f} of {examples.num_examples(0):,}"
            )
            failed += bool(off > len(mixture.sources) / 2)
        for place in (0, POSITIONS // 2, POSITIONS - BATCH):
            agree = hosts_agree(mixture, place)
            print(f"  positions from {place:,}: 1, 2 and 4 hosts make {'the same' if agree else 'DIFFERENT'} batches")
            failed += not agree
    return int(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
