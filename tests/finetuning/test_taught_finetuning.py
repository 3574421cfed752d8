"""Fine-tuning with a teacher as a whole: exact resume, with the same teacher only."""

import dataclasses
import os

import pytest
from one_device import finetune
from small_finetuning import Killed, assert_same_weights, run_config

from bert_jax.config.teachers import TaskDistillationConfig
from bert_jax.errors import UserError
from bert_jax.training.program import Program
from bert_jax.training.sinks import read_rows


def taught(config, teacher):
    return dataclasses.replace(config, distillation=TaskDistillationConfig(teacher=str(teacher), share=0.7))


@pytest.mark.slow
def test_resumed_exactly_with_the_same_teacher(two_seeds, pretrained, tmp_path, monkeypatch):
    teacher = two_seeds[0].workdir
    config = taught(run_config(pretrained, tmp_path / "whole", save_every_steps=5), teacher)
    whole = finetune(config).results
    (run,) = (tmp_path / "whole" / "runs").iterdir()
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    assert {"loss", "labels_loss", "labels_accuracy", "teacher_loss"} <= rows[0].keys()
    assert rows[-1]["teacher_loss"] < rows[0]["teacher_loss"] / 2 and whole["metrics"]["accuracy"] > 0.9
    call, seen = Program.__call__, []

    def killed(program, state, batch, *rate_and_seed):
        seen.extend(rate_and_seed[:1])
        if len(seen) == 29:
            raise Killed
        return call(program, state, batch, *rate_and_seed)

    again = dataclasses.replace(config, workdir=str(tmp_path / "again"))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Program, "__call__", killed)
        finetune(again)
    other = run_config(pretrained, tmp_path / "other", epochs=1)
    finetune(other)
    for path in (other.workdir, ""):
        with pytest.raises(UserError, match="teacher: .* → "):
            finetune(taught(again, path))
    os.symlink(teacher, tmp_path / "moved")
    results = finetune(taught(again, tmp_path / "moved")).results
    assert results["metrics"] == whole["metrics"]
    assert_same_weights(tmp_path / "whole", tmp_path / "again")
