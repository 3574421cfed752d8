"""Options that a member of the family does not have: one clear line, exit status 2, and nothing half-written."""

import pytest
from family_commands import STUDENT, pretrain
from refused_commands import Case, refused

CASES = [
    # Generators.
    Case(
        "a generator that is too wide",
        pretrain("electra_mini", "--objective.generator.hidden_size=512"),
        ("objective.generator.hidden_size=512 is wider", "model.hidden_size=256", "a quarter to a half"),
    ),
    Case(
        "heads that do not divide a generator",
        pretrain("electra_mini", "--objective.generator.num_heads=3"),
        ("the generator's width of 64", "its 3 heads", "set objective.generator"),
    ),
    Case(
        "a generator with embeddings of its own width",
        pretrain("electra_mini", "--objective.generator.embedding_size=64"),
        ("unknown option --objective.generator.embedding_size", "--objective.generator.embeddings"),
    ),
    Case(
        "tables of another width",
        pretrain("electra_mini", "--init_from=@/teacher"),
        ("model.embedding_size is 128 here and None there", "--model.embedding_size=None"),
    ),
    Case(
        "a discriminator of another vocabulary",
        pretrain("electra_mini", "--model.vocab_size=30522"),
        ("model.vocab_size=30522", "a vocabulary of 200 entries", "leave model.vocab_size out"),
    ),
    Case(
        "a discriminator with pairs",
        pretrain("electra_mini", "--data.sentence_pairs=nsp"),
        ("no second objective", "data.sentence_pairs=nsp", "set data.sentence_pairs=adjacent (or none)"),
    ),
    Case(
        "evaluate a discriminator alone",
        "evaluate @/discriminator --data.path=@/store --objective.name=replaced_tokens",
        ("a discriminator without its generator", "evaluate the work directory of its run"),
    ),
    # Positions and windows.
    Case(
        "the padding of another vocabulary",
        pretrain("roberta_mini"),
        ("model.padding_id=1", "[PAD] has id 0", "set model.padding_id=0"),
    ),
    Case(
        "padding that takes the last position",
        pretrain("roberta_mini", "--model.padding_id=0", "--sequence_length=64"),
        ("sequence_length=64", "model.max_position_embeddings=64 less 1, for padding_id", "raise"),
    ),
    Case(
        "rope with odd heads",
        pretrain("modernbert_mini", "--model.hidden_size=36"),
        ("model.positions=rope", "model.num_heads=4 makes heads of 9", "even"),
    ),
    Case(
        "a window as wide as the sequence",
        pretrain("modernbert_mini", "--model.local_window=32"),
        ("model.local_window=32", "sequence_length=32", "set it to 30 at most"),
    ),
    Case(
        "relative positions beside rope",
        pretrain("deberta_v3_mini", "--model.positions=rope"),
        ("model.positions=rope cannot be combined", "set model.positions=none"),
    ),
    # Objectives.
    Case(
        "an XLNet with pairs",
        pretrain("xlnet_mini", "--data.sentence_pairs=nsp"),
        ("objective.name=permutation", "data.sentence_pairs=nsp; set data.sentence_pairs=none"),
    ),
    Case(
        "an XLNet with masks",
        pretrain("xlnet_mini", "--masking.mask_share=0.9"),
        ("objective.name=permutation", "masking.mask_share=0.9 has no effect", "leave it out"),
    ),
    Case(
        "spans of a permutation for a BERT",
        pretrain("bert_mini", "--objective.longest_span=3"),
        (
            "objective.longest_span=3 belongs to objective.name=permutation",
            "not to objective.name=masked_words",
            "leave",
        ),
    ),
    Case(
        "left to right with masks",
        pretrain("gpt_mini", "--masking.unit=whole_word"),
        ("objective.name=left_to_right", "masks none", "masking.unit=whole_word does not apply", "leave it out"),
    ),
    Case(
        "left to right with a number of masks",
        pretrain("gpt_mini", "--max_predictions=5"),
        ("phases.0.max_predictions=5 has no effect", "leave it out"),
    ),
    Case(
        "left to right for a model that sees both sides",
        pretrain("bert_mini", "--objective.name=left_to_right"),
        ("model.direction=both", "would see the answer", "set model.direction=left_to_right"),
    ),
    Case(
        "skip-gram with layers",
        pretrain("skipgram_mini", "--model.layer=transformer"),
        ("objective.name=skip_gram", "model.layer=transformer", "set model.layer=none"),
    ),
    Case(
        "skip-gram with a window as wide as the sequence",
        pretrain("skipgram_mini", "--objective.static_vectors.window=32"),
        ("window=32 is not shorter", "phases.0.sequence_length=32", "make it smaller"),
    ),
    Case("GloVe without counts", pretrain("glove_mini"), ("counts is missing", "bert-jax count", "--window=10")),
    Case(
        "GloVe with no such counts",
        pretrain("glove_mini", "--objective.static_vectors.counts=@/nothing"),
        ("no counts of pairs in", "counts.json is missing", "bert-jax count"),
    ),
    Case(
        "GloVe with the counts of another store",
        pretrain("glove_mini", "--objective.static_vectors.counts=@/few_counts"),
        ("few_counts are of store=", "count the pairs again"),
    ),
    Case(
        "a student with pairs",
        f"{STUDENT} --data.sentence_pairs=nsp",
        ("model.type_vocab_size=0 and model.pair_head=False; set model.type_vocab_size=2 and model.pair_head=True",),
    ),
    # Batches, schedules and optimizers.
    Case(
        "a ramp that falls",
        pretrain("bert_mini", "--batch_size=32", "--ramp_batch_sizes=16,8", "--ramp_steps=2"),
        ("ramp_batch_sizes=16,8 must grow", "batch_size=32, but 16 comes before 8", "--phases.0.ramp_batch_sizes="),
    ),
    Case(
        "a ramp that ends above the batch",
        pretrain("bert_mini", "--ramp_batch_sizes=16", "--ramp_steps=2"),
        ("phases.0.ramp_batch_sizes=16", "phases.0.batch_size=8, but 16 comes before 8"),
    ),
    Case(
        "a ramp that does not divide the devices",
        pretrain("bert_mini", "--batch_size=32", "--ramp_batch_sizes=12,16", "--ramp_steps=2"),
        ("phases.0.ramp_batch_sizes=12,16: 12 is not divisible by 8", "nearest: 8 or 16"),
    ),
    Case(
        "a ramp without batches",
        pretrain("bert_mini", "--ramp_steps=2"),
        ("phases.0.ramp_steps=2 has no effect without phases.0.ramp_batch_sizes", "set that too, or leave it out"),
    ),
    Case(
        "a cooldown that is longer than the run",
        pretrain("modernbert_mini", "--model.local_window=8", "--steps=100"),
        ("schedule.cooldown_steps=2000 do not fit into the 100 steps", "for example to 1 and 10"),
    ),
    Case(
        "a cooldown of another shape",
        pretrain("modernbert_mini", "--model.local_window=8", "--schedule.name=linear"),
        ("schedule.cooldown_steps=2000 belongs to schedule.name=constant, not to linear",),
    ),
    Case(
        "a power of another shape",
        pretrain("bert_mini", "--schedule.power=2"),
        ("schedule.power=2.0 belongs to schedule.name=polynomial, not to linear", "leave it out"),
    ),
    Case(
        "the momentum of Muon for AdamW",
        pretrain("bert_mini", "--optimizer.momentum=0.9"),
        ("optimizer.momentum=0.9 belongs to optimizer.name=muon, not to adamw", "leave it out"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_one_line_and_nothing_written(case, family_inputs, capfd, caplog):
    refused(case, family_inputs, capfd, caplog)
