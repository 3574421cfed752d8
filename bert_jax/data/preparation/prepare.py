"""`bert-jax prepare`: makes a token store from a corpus.

`manifest.json` is written last, under a different name and then renamed; until then there is no store.
"""

import time
from typing import Any

from bert_jax.config import PrepareConfig
from bert_jax.data.manifest import Manifest
from bert_jax.data.preparation.local_run import prepare_locally
from bert_jax.data.preparation.request import make_request
from bert_jax.data.preparation.writer import finished, report
from bert_jax.errors import UserError, need_extra


def run_prepare(config: PrepareConfig) -> Manifest:
    """Make the token store, or finish one that was begun, and print a report.

    Returns:
      The manifest of the store.

    Raises:
      UserError: bad input (see readers.py and blocks.py) or vocabulary; a corpus without a token; an output that
        cannot be written or holds something else; a runner that is not there. Bad input leaves nothing behind; a lack
        of space or memory leaves a state from which the same command resumes.
    """
    pipeline = _pipeline(config)
    request = make_request(config)
    if (request.output / "manifest.json").exists():
        return finished(request.output, request.made_from)
    started = time.monotonic()
    if pipeline is None:
        manifest, text_bytes = prepare_locally(request)
    else:
        from bert_jax.data.preparation.beam import prepare_with_beam

        manifest, text_bytes = prepare_with_beam(request, pipeline)
    report(request.output, manifest, text_bytes, time.monotonic() - started)
    return manifest


def _pipeline(config: PrepareConfig) -> Any:
    """Return the pipeline for runner=beam, which alone imports Apache Beam; None for other runners."""
    if config.runner == "local":
        if config.beam:
            raise UserError(f"--beam.{config.beam[0]} is an option of Apache Beam; give --runner=beam as well")
        return None
    need_extra("apache_beam", "beam", "runner=beam")
    from bert_jax.data.preparation.beam import empty_pipeline

    return empty_pipeline(config)
