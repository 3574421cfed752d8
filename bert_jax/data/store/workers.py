"""Encodes a stream of blocks in several processes; the results are in order and a bounded number is in progress."""

import collections
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.data.corpus.sentences import make_splitter
from bert_jax.data.corpus.text_blocks import Block
from bert_jax.data.store.encoding import EncodedBlock, Encoder
from bert_jax.data.store.manifest import Options
from bert_jax.tokenization.tokenizer import load_tokenizer

_encoder: Encoder  # one per worker process


def make_encoder(tokenizer_directory: str, options: Options) -> Encoder:
    splitter = make_splitter(options.sentences, options.language)
    return Encoder(load_tokenizer(tokenizer_directory), splitter, options.text_field, options.bad_utf8)


def encoded_blocks(
    blocks: Iterable[Block], tokenizer_directory: str, options: Options, workers: int
) -> Iterator[tuple[Block, EncodedBlock]]:
    """Yield every block with its encoding, in the order of `blocks`; a single worker is this process."""
    if workers == 1:
        encoder = make_encoder(tokenizer_directory, options)
        for block in blocks:
            yield block, encoder(block)
        return
    pool = concurrent.futures.ProcessPoolExecutor(  # spawn: the parent may hold threads (TensorFlow, tokenizers)
        workers, multiprocessing.get_context("spawn"), _start_worker, (tokenizer_directory, options)
    )
    under_way: collections.deque[Any] = collections.deque()
    try:
        for block in blocks:
            under_way.append((block, pool.submit(_encode, block)))
            if len(under_way) > 2 * workers:
                block, future = under_way.popleft()
                yield block, future.result()
        for block, future in under_way:
            yield block, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(tokenizer_directory: str, options: Options) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = make_encoder(tokenizer_directory, options)


def _end_with_parent() -> None:
    """End a worker whose parent was killed by SIGKILL, which would otherwise wait for work forever."""
    if parent := multiprocessing.parent_process():
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _encode(block: Block) -> EncodedBlock:
    return _encoder(block)
