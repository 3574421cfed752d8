"""How layers that see a window are divided into blocks; plain numbers, for kernels and closed forms alike."""

NARROWEST = 16  # positions of a block
WORTH = 2  # how many times the scores of the blocks the full matrix must have, to be slower (docs/modern_encoders.md)


def block_size(window: int) -> int:
    """Return the number of queries of a block: at least the window, and a multiple of 8."""
    return max(NARROWEST, -(-window // 8) * 8)


def scores_by_blocks(window: int, global_tokens: int) -> int:
    """Return how many scores there are per position: with three blocks, and with and of the global tokens."""
    return 3 * block_size(window) + 2 * global_tokens


def is_short(length: int, window: int, global_tokens: int) -> bool:
    """Return whether a row is so short that the full matrix is computed faster than its blocks."""
    return length < WORTH * scores_by_blocks(window, global_tokens)
