"""Models that a command on the family cannot use: one clear line, exit status 2, and nothing half-written."""

import pytest
from family_commands import STUDENT, TAUGHT, TEACHER
from refused_commands import Case, refused

# Refused before any example is read.
UNREAD = "finetune text --data.train=@/nowhere.tsv --data.dev=@/nowhere.tsv --workdir=@/new --options.max_length=16"
EVALUATE = "evaluate @/student --data.path=@/store"

CASES = [
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_one_line_and_nothing_written(case, family_inputs, capfd, caplog):
    refused(case, family_inputs, capfd, caplog)
