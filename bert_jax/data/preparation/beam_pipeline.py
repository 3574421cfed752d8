"""A pipeline of Apache Beam with the options `--beam.NAME=VALUE`, all checked before anything is read."""

import contextlib
import difflib
import io
import logging
import shlex
import sys
from collections.abc import Iterator
from typing import Any

with contextlib.ExitStack() as _quiet:
    _quiet.callback(logging.disable, logging.root.manager.disable)
    logging.disable(logging.WARNING)  # of libraries for BigQuery that are not there
    import apache_beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from bert_jax.config import PrepareConfig
from bert_jax.data.preparation.workers import cores
from bert_jax.errors import UserError

HERE = "DirectRunner"
"""The runner on this machine, which is taken without --beam.runner."""

WITH_OPTIONS_OF_THEIR_OWN = ("PortableRunner", "FlinkRunner", "SparkRunner")
"""Runners whose job server may know options that Beam's Python does not."""


def empty_pipeline(config: PrepareConfig) -> apache_beam.Pipeline:
    """Return a pipeline without steps, for the runner and with the options of this run.

    Raises:
      UserError: an option that Beam does not know, or that does not wait for the pipeline, a value of the wrong type, a
        runner that does not exist or lacks an option or a library, --workers with a runner elsewhere, or a runner in
        the cloud and paths of this machine.
    """
    given = dict(_split(option) for option in config.beam)
    runner = given.setdefault("runner", HERE)
    if runner == HERE:
        given.setdefault("direct_num_workers", str(config.workers or cores()))
    elif config.workers:
        raise UserError(
            f"workers={config.workers} applies to this machine only; {runner} has its own options, such as "
            "--beam.num_workers and --beam.max_num_workers of Dataflow"
        )
    if runner == "DataflowRunner":
        _need_cloud_paths(config)
        logging.getLogger("apache_beam.runners.dataflow").setLevel(logging.INFO)  # the address of the job, its state
    given.setdefault("default_sdk_harness_log_level", "ERROR")  # workers would print each of their steps
    options = _parsed([f"--{name}" if value is None else f"--{name}={value}" for name, value in given.items()])
    _refuse_unwatched(options)
    if runner not in WITH_OPTIONS_OF_THEIR_OWN:
        _refuse_unknown(options)
    try:
        with quiet():
            return apache_beam.Pipeline(_runner_here(options) if runner == HERE else None, options)
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split()).replace("Pipeline has validations errors: ", "")
        raise UserError(f"beam.runner={runner} cannot be used: {reason:.400}") from error


def _split(option: str) -> tuple[str, str | None]:
    name, equals, value = option.partition("=")
    if not name.isidentifier():
        raise UserError(f"--beam.{option} names no option of Apache Beam; each is written --beam.NAME=VALUE")
    return name, value if equals else None


def _need_cloud_paths(config: PrepareConfig) -> None:
    read_by_workers = {
        "input": config.input,
        "output": config.output,
        "clean.decontaminate": config.clean.decontaminate,
    }
    for name, value in read_by_workers.items():
        for path in filter(None, map(str.strip, value.split(","))):
            if not path.startswith(("gs://", "tfds:", "docs:")):
                raise UserError(f"{name}={path} is on this machine, where Dataflow's workers are not; use gs://")


def _parsed(words: list[str]) -> PipelineOptions:
    said = io.StringIO()
    try:
        with quiet(), contextlib.redirect_stderr(said):
            options = PipelineOptions(words)
            options.get_all_options()
            return options
    except SystemExit:
        message = said.getvalue().strip().rpartition("error: ")[2]
        raise UserError(f"Apache Beam refuses an option: {message}; each is written --beam.NAME=VALUE") from None


def _refuse_unwatched(options: PipelineOptions) -> None:
    """Refuse options with which Beam comes back before the pipeline has run, as if it had found no text."""
    given = options.get_all_options()
    for name in ("template_location", "dry_run", "no_wait_until_finish"):
        if given[name]:
            raise UserError(
                f"--beam.{name} would not wait for the end of the pipeline, when prepare writes the manifest; leave "
                "it out"
            )


def _refuse_unknown(options: PipelineOptions) -> None:
    with quiet():
        known = options.get_all_options()
        unknown = sorted(set(options.get_all_options(retain_unknown_options=True)) - set(known))
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"perhaps you meant --beam.{close[0]}" if close else "its guide to pipeline options lists them"
        raise UserError(f"Apache Beam has no option {unknown[0]!r}; {hint}")


def _runner_here(options: PipelineOptions) -> FnApiRunner:
    """Return Beam's own runner with a process per worker; a single worker is this process.

    Beam starts the same processes with --beam.direct_running_mode=multi_processing, but they print their tracebacks.
    """
    if options.view_as(DirectOptions).direct_num_workers == 1:
        return FnApiRunner()
    command = f"exec {shlex.quote(sys.executable)} -m apache_beam.runners.worker.sdk_worker_main"
    if not _debugging():
        command += " 2>/dev/null"
    environment: Any = SubprocessSDKEnvironment  # a decorator hides that it is a class
    return FnApiRunner(environment.from_command_string(command_string=command))


def _debugging() -> bool:
    return logging.getLogger().isEnabledFor(logging.INFO)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Beam from logging what its exceptions say as well, several times and with tracebacks."""
    logger = logging.getLogger("apache_beam")
    level = logger.level
    if not _debugging():
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
