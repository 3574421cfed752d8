"""What `bert-jax info` prints."""

import subprocess
import sys

from bert_jax.commands.information import run_info
from bert_jax.config import Config, ModelConfig, PhaseConfig

CASED = 28_996


def test_information_prints_the_figures_of_the_original_run(capsys):
    phases = (PhaseConfig(steps=900_000), PhaseConfig(steps=100_000, sequence_length=512, max_predictions=76))
    run_info(Config(phases=phases))
    printed = capsys.readouterr().out
    for figure in (
        "30,522",
        "7,087,872",
        "109,482,240",
        "110,106,428",
        "1.64 GiB",
        "69.93",
        "118.0",
        "632.8",
        "2.38e+19",
    ):
        assert figure in printed, figure
    assert "…" not in printed  # nothing cut off on a terminal of 80 columns
    run_info(Config(model=ModelConfig(vocab_size=CASED, norm_position="pre")))
    printed = capsys.readouterr().out
    assert "assumed" not in printed and "final norm" in printed


def test_information_does_not_import_jax():
    code = "import sys, bert_jax.commands.information; sys.exit('jax' in sys.modules or 'flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
