"""Commands on the family of models with bad input and bad models.

Options that a member of the family does not have: one clear line, exit status 2, and nothing half-written. Models that
a command on the family cannot use: one clear line, exit status 2, and nothing half-written.
"""

import pytest
from command_lines import STUDENT, TAUGHT, TEACHER, Case, pretrain, refused

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
        ("objective.name=left_to_right", "masks none", "masking.unit=whole_word has no effect", "leave it out"),
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


# Refused before any example is read.
UNREAD = "finetune text --data.train=@/nowhere.tsv --data.dev=@/nowhere.tsv --workdir=@/new --options.max_length=16"
EVALUATE = "evaluate @/student --data.path=@/store"

MODELS_CASES = [
    # Teachers.
    Case(
        "a teacher with another vocabulary",
        f"{STUDENT} {TEACHER}=@/foreign_teacher",
        ("foreign_teacher has a vocabulary (201 entries) different from that of the data (200)", "prepare the data"),
    ),
    Case("no such teacher", f"{STUDENT} {TEACHER}=@/nowhere", ("there is no", "nowhere", "give the directory")),
    Case(
        "a teacher that is none", f"{STUDENT} {TEACHER}=@/store", ("no model in", "looked for", "found manifest.json")
    ),
    Case(
        "a teacher without a head for words",
        f"{STUDENT} {TEACHER}=@/discriminator",
        ("no masked-language-model head", "soft_weight=5 needs", "choose a pre-trained model"),
    ),
    Case(
        "a teacher that sees one side",
        f"{STUDENT} {TEACHER}=@/gpt --init_from_layers=",
        ("gpt has model.direction=left_to_right, the student both", "choose another"),
    ),
    Case(
        "another number of heads",
        f"{TAUGHT} --init_from_layers= --model.num_heads=4 --objective.distillation.attention_weight=1",
        ("num_heads=2, the student 4", "attention_weight=1 compares them", "set it to 0, or choose equal sizes"),
    ),
    Case(
        "layers of another width",
        f"{TAUGHT} --model.hidden_size=16",
        ("model.hidden_size is 16 here and 32 there", "add: --model.hidden_size=32", "--init_from_layers="),
    ),
    Case("layers out of range", f"{TAUGHT} --init_from_layers=0,4", ("init_from_layers=0,4", "the layers 0 to 3")),
    Case(
        "more layers than the student has",
        f"{TAUGHT} --init_from_layers=0,1,2",
        ("init_from_layers=0,1,2 names 3 layers", "model.num_layers=2", "name one for each", "--init_from_layers="),
    ),
    Case("layers that are no numbers", f"{TAUGHT} --init_from_layers=0,two", ("['0', 'two'] is not INT,INT,…",)),
    Case(
        "layers that share parameters",
        f"{STUDENT} {TEACHER}=@/albert",
        ("init_from_layers=0,2 needs layers with parameters of their own", "model.sharing=all", "--init_from_layers="),
    ),
    Case(
        "compared layers that nothing compares",
        f"{TAUGHT} --objective.distillation.layers=1,3",
        ("objective.distillation.layers=1,3", "both are 0", "leave it out"),
    ),
    Case(
        "a teacher and another objective",
        f"{TAUGHT} --objective.name=permutation",
        (f"{TEACHER[2:]}=", "belongs to objective.name=masked_words", "not to objective.name=permutation; set that"),
    ),
    Case(
        "evaluate with a wrong teacher",
        f"{EVALUATE} {TEACHER}=@/other_teacher",
        ("other_teacher is not the teacher of", "fingerprint", "give the teacher of the run"),
    ),
    Case("evaluate with no such teacher", f"{EVALUATE} {TEACHER}=@/nowhere", ("there is no", "nowhere")),
    Case(
        "evaluate with a teacher of another vocabulary",
        f"{EVALUATE} {TEACHER}=@/foreign_teacher",
        ("foreign_teacher has a vocabulary", "201 entries"),
    ),
    Case(
        "resume with a wrong teacher",
        f"{TAUGHT} --workdir=@/student",
        ("holds a run with the teacher another one", "Resume with the teacher", "another --workdir"),
    ),
    # Tasks.
    Case(
        "rates of layers that share parameters",
        f"{UNREAD} --init_from=@/albert --layer_decay=0.9",
        ("layer_decay=0.9 needs separate parameters for each of 4 layers", "[1, 32, 2, 16]", "use layer_decay=1"),
    ),
    Case(
        "fresh layers that share parameters",
        f"{UNREAD} --init_from=@/albert --reinitialize_layers=1",
        ("reinitialize_layers=1", "model.sharing=all", "use reinitialize_layers=0"),
    ),
    Case(
        "unfreezing of layers that share parameters",
        f"{UNREAD} --init_from=@/albert --gradual_unfreezing=True",
        ("gradual_unfreezing=True needs separate parameters", "use gradual_unfreezing=False"),
    ),
    Case(
        "more fresh layers than there are",
        f"{UNREAD} --init_from=@/teacher --reinitialize_layers=5",
        ("reinitialize_layers=5, but the model has 4 layers; give 4 at most",),
    ),
    Case(
        "features of layers that are not there",
        f"{UNREAD} --init_from=@/static --features=concat_last_four",
        ("concat_last_four reads layers, but this model has only its embeddings", "use last"),
    ),
    Case(
        "shared rows that are longer than the model reads",
        f"{UNREAD} --init_from=@/teacher --packing=True --options.max_length=128",
        ("options.max_length=128", "teacher has 64 positions", "set --options.max_length=64"),
    ),
    Case(
        "a teacher that was not fine-tuned",
        f"{UNREAD} --init_from=@/teacher --distillation.teacher=@/teacher",
        ("no head of a task, so it has nothing to teach", "fine-tune it on text first"),
    ),
    Case(
        "fine-tuning a model of an unknown family",
        f"{UNREAD} --init_from=@/gpt2",
        ("a model of type 'gpt2'", "the types that can be loaded are bert, roberta,"),
    ),
    # Formats.
    Case(
        "a family that is not known",
        "convert @/gpt2 @/new --to=bert_jax",
        ("gpt2/config.json describes a model of type 'gpt2'", "the types that can be loaded are bert, roberta,"),
    ),
    Case(
        "an option that a family does not have here",
        "convert @/relative @/new --to=bert_jax",
        ("position_embedding_type='relative_key'", "a model of type bert", "only 'absolute' is supported"),
    ),
    Case(
        "ALiBi for transformers",
        "convert @/mosaic @/new --to=huggingface",
        ("none has model.positions=alibi", "nearest are bert, xlnet without", "use --to=bert_jax"),
    ),
    Case(
        "left to right for transformers",
        "convert @/gpt @/new --to=huggingface",
        ("none has model.direction=left_to_right", "use --to=bert_jax"),
    ),
    Case(
        "ALiBi for Google's code",
        "convert @/mosaic @/new --to=tf1",
        ("model.feed_forward=geglu: Google's TF1 code has BERT only", "--to=bert_jax"),
    ),
    Case(
        "masked words in a model without them",
        "fill-mask @/static [MASK]",
        ("no mlm (apart from the encoder: contexts)", "load a checkpoint with it"),
    ),
]


@pytest.mark.parametrize("case", MODELS_CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_bad_models_get_one_line_and_nothing_is_written(case, family_inputs, capfd, caplog):
    refused(case, family_inputs, capfd, caplog)
