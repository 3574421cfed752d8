"""What finished fine-tunings predict, alone and together."""

import numpy as np
import pytest
from one_device import run_predict
from pretrained_model import TOKENIZER
from scipy.special import softmax

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.finetuning import PredictConfig
from bert_jax.errors import UserError
from bert_jax.finetuning import prediction
from bert_jax.finetuning.programs import average
from bert_jax.formats.stored import StoredModel


def test_predictions_of_the_work_directory_score_what_results_say(two_seeds, pretrained, tmp_path):
    config, results = two_seeds
    options = PredictConfig(input=str(pretrained / "data/dev.tsv"), output=str(tmp_path / "out.tsv"), split="dev")
    assert run_predict(config.workdir, options) == results["metrics"]
    assert len((tmp_path / "out.tsv").read_text().splitlines()) >= 40


def test_an_ensemble_is_the_mean_of_the_probabilities(two_seeds, pretrained, tmp_path):
    config, results = two_seeds
    members = ",".join(f"{config.workdir}/runs/{record['run']}" for record in results["runs"])
    options = PredictConfig(
        input=str(pretrained / "data/dev.tsv"), output=str(tmp_path / "new" / "out.tsv"), split="dev"
    )
    lowest = min(record["metrics"]["accuracy"] for record in results["runs"])
    assert run_predict(members, options)["accuracy"] >= lowest and (tmp_path / "new" / "out.tsv").exists()
    logits = [[np.array(row, np.float32) for row in rows] for rows in ([[2, 0, 1]], [[-1, 0, 3]])]
    expected = (softmax(logits[0][0]) + softmax(logits[1][0])) / 2
    np.testing.assert_allclose(softmax(average(HeadConfig(labels=("a", "b", "c")), logits)[0]), expected, rtol=1e-5)
    spans = [[np.full((5, 2), value, np.float32)] for value in (1, 4)]
    np.testing.assert_array_equal(average(HeadConfig(kind="span"), spans)[0], np.full((5, 2), 2.5))
    assert average(HeadConfig(kind="regression"), [[np.float32(1)], [np.float32(4)]]) == [2.5]


def test_an_ensemble_reads_by_what_its_members_agree_on():
    def member(positions, threshold, crf=False):
        settings = {"finetune": {"task": "squad_v2", "options": {"max_length": 200}}}
        history = {"config": settings, "metrics": {"best_f1_thresh": threshold}}
        return StoredModel(
            kind="bert_jax",
            path=f"m{positions}",
            model=ModelConfig(max_position_embeddings=positions),
            arrays={},
            history=history,
            head=HeadConfig(kind="tagging", labels=("O",), crf=crf),
            tokenizer=TOKENIZER,
        )

    options = prediction.options_of([member(384, 1.0), member(128, 4.0)], "squad_v2")
    assert options.null_threshold == 2.5 and options.max_length == 128
    with pytest.raises(UserError, match="m128: tagging with a CRF O and m384: tagging O"):
        prediction.check_member(member(128, 0.0, crf=True), member(384, 0.0))
