"""A pipeline handed to a job service, as Flink and Spark get it: starter, service and workers share no process."""

import contextlib
import shlex
import subprocess
import sys

import pytest
from documents import contents, random_documents, run, write_corpus
from processes import wait_until

from bert_jax.config.corpora import CleaningConfig
from bert_jax.errors import UserError

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def job_service(directory):
    """Yield the address of a job service of Beam's, and the number of its process."""
    directory.mkdir()
    port = directory / "port"
    module = "apache_beam.runners.portability.local_job_service_main"
    command = [sys.executable, "-m", module, "--port=0", f"--port_file={port}", f"--staging_dir={directory}/staged"]
    with (directory / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until(port.exists, lambda: process.poll() is None, lambda: (directory / "log").read_text())
            yield f"localhost:{port.read_text()}", process.pid
        finally:
            process.terminate()


def test_workers_that_share_nothing_with_the_starter_make_the_same_store(tmp_path, vocab):
    write_corpus(tmp_path / "a.txt", random_documents(4000))  # more than a block
    write_corpus(tmp_path / "b.txt.gz", [*random_documents(200, seed=1), *random_documents(4000)[::10]])
    corpus = f"{tmp_path}/a.txt,{tmp_path}/b.txt.gz"
    clean = CleaningConfig(unicode="repair", languages=("en", "de", "fr", "la"), deduplicate="near")
    manifest = run(corpus, vocab, tmp_path / "local", clean=clean)
    assert {each.step for each in manifest.cleaning} >= {"deduplicate.documents"}
    started = shlex.quote(str(tmp_path / "started"))
    python = f"{shlex.quote(sys.executable)} -m apache_beam.runners.worker.sdk_worker_main"
    with job_service(tmp_path / "service") as (address, process):
        portable = (
            "runner=PortableRunner",
            f"job_endpoint={address}",
            "environment_type=beam:env:harness_subprocess_python:v1",
            f"environment_config=echo $PPID >> {started}; exec {python}",
        )
        options = {"clean": clean, "runner": "beam", "beam": portable, "workers": 0}
        assert run(corpus, vocab, tmp_path / "beam", **options) == manifest
        assert contents(tmp_path / "beam") == contents(tmp_path / "local")
        (tmp_path / "bad.txt").write_bytes(b"good text\n\n" * 500 + b"\xff")
        with pytest.raises(UserError, match=r"bad.txt: byte 5500 "):
            run(tmp_path / "bad.txt", vocab, tmp_path / "bad", **options)
    assert not (tmp_path / "bad").exists()
    assert set((tmp_path / "started").read_text().split()) == {str(process)}  # the parent of every worker
