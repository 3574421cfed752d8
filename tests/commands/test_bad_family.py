"""Commands on the family of models with bad input and bad models."""

import pytest
from command_lines import STUDENT, TAUGHT, TEACHER, cases, pretrain, refused

SKIP_GRAM = "evaluate @/static --data.path=@/store --data.sentence_pairs=none --objective.name=skip_gram"
CASES = cases(f"""
# Generators.
a generator that is too wide: {pretrain("electra_mini")} --objective.generator.hidden_size=512
    -> objective.generator.hidden_size=512 is wider | model.hidden_size=256 | a quarter to a half
heads that do not divide a generator: {pretrain("electra_mini")} --objective.generator.num_heads=3
    -> the generator's width of 64 | its 3 heads | set objective.generator
a generator with embeddings of its own width: {pretrain("electra_mini")} --objective.generator.embedding_size=64
    -> unknown option --objective.generator.embedding_size | --objective.generator.embeddings
tables of another width: {pretrain("electra_mini")} --init_from=@/teacher
    -> model.embedding_size is 128 here and None there | --model.embedding_size=None
a discriminator of another vocabulary: {pretrain("electra_mini")} --model.vocab_size=30522
    -> model.vocab_size=30522 | a vocabulary of 200 entries | leave model.vocab_size out
a discriminator with pairs: {pretrain("electra_mini")} --data.sentence_pairs=nsp
    -> no second objective | data.sentence_pairs=nsp | set data.sentence_pairs=adjacent (or none)
evaluate a discriminator alone: evaluate @/discriminator --data.path=@/store --objective.name=replaced_tokens
    -> a discriminator without its generator | evaluate the work directory of its run
# Positions and windows.
the padding of another vocabulary: {pretrain("roberta_mini")}
    -> model.padding_id=1 | [PAD] has id 0 | set model.padding_id=0
padding that takes the last position: {pretrain("roberta_mini")} --model.padding_id=0 --sequence_length=64
    -> sequence_length=64 | model.max_position_embeddings=64 less 1, for padding_id | raise
rope with odd heads: {pretrain("modernbert_mini")} --model.hidden_size=36
    -> model.positions=rope | model.num_heads=4 makes heads of 9 | even
a window as wide as the sequence: {pretrain("modernbert_mini")} --model.local_window=32
    -> model.local_window=32 | sequence_length=32 | set it to 30 at most
rates of widths with LAMB: {pretrain("bert_mini")} --optimizer.name=lamb --model.scaling.base_hidden_size=16
    -> optimizer.name=lamb takes the size of an update | model.scaling.base_hidden_size=None
relative positions beside rope: {pretrain("deberta_v3_mini")} --model.positions=rope
    -> model.positions=rope cannot be combined | set model.positions=none
# Objectives.
an XLNet with pairs: {pretrain("xlnet_mini")} --data.sentence_pairs=nsp
    -> objective.name=permutation | data.sentence_pairs=nsp; set data.sentence_pairs=none
an XLNet with masks: {pretrain("xlnet_mini")} --masking.mask_share=0.9
    -> objective.name=permutation | masking.mask_share=0.9 has no effect | leave it out
spans of a permutation for a BERT: {pretrain("bert_mini")} --objective.longest_span=3
    -> objective.longest_span=3 belongs to objective.name=permutation | not to objective.name=masked_words | leave
left to right with masks: {pretrain("gpt_mini")} --masking.unit=whole_word
    -> objective.name=left_to_right | masks none | masking.unit=whole_word has no effect | leave it out
diffusion with a rate of masks: {pretrain("diffusion_mini")} --masking.rate=0.3
    -> objective.name=masked_diffusion | masking.rate=0.3 has no effect | leave it out
diffusion from left to right: {pretrain("diffusion_mini")} --model.direction=left_to_right
    -> objective.name=masked_diffusion | model.direction=left_to_right | set model.direction=both
left to right with a number of masks: {pretrain("gpt_mini")} --max_predictions=5
    -> phases.0.max_predictions=5 has no effect | leave it out
left to right for a model that sees both sides: {pretrain("bert_mini")} --objective.name=left_to_right
    -> model.direction=both | would see the answer | set model.direction=left_to_right
skip-gram with layers: {pretrain("skipgram_mini")} --model.layer=transformer
    -> objective.name=skip_gram | model.layer=transformer | set model.layer=none
skip-gram with a window as wide as the sequence: {pretrain("skipgram_mini")} --objective.static_vectors.window=32
    -> window=32 is not shorter | phases.0.sequence_length=32 | make it smaller
GloVe without counts: {pretrain("glove_mini")} -> counts is missing | bert-jax count | --window=10
GloVe with no such counts: {pretrain("glove_mini")} --objective.static_vectors.counts=@/nothing
    -> no counts of pairs in | counts.json is missing | bert-jax count
GloVe with the counts of another store: {pretrain("glove_mini")} --objective.static_vectors.counts=@/few_counts
    -> few_counts are of store= | count the pairs with
evaluate skip-gram without its second table: {SKIP_GRAM} -> has no head for neighbours of words | --parts=all
a student with pairs: {STUDENT} --data.sentence_pairs=nsp
    -> model.type_vocab_size=0 and model.pair_head=False; set model.type_vocab_size=2 and model.pair_head=True
# Batches, schedules and optimizers.
a ramp that falls: {pretrain("bert_mini")} --batch_size=32 --ramp_batch_sizes=16,8 --ramp_steps=2
    -> ramp_batch_sizes=16,8 must grow | batch_size=32, but 16 comes before 8 | --phases.0.ramp_batch_sizes=
a ramp that ends above the batch: {pretrain("bert_mini")} --ramp_batch_sizes=16 --ramp_steps=2
    -> phases.0.ramp_batch_sizes=16 | phases.0.batch_size=8, but 16 comes before 8
a ramp that does not divide the devices: {pretrain("bert_mini")} --batch_size=32 --ramp_batch_sizes=12,16 --ramp_steps=2
    -> phases.0.ramp_batch_sizes=12,16: 12 is not divisible by 8 | nearest: 8 or 16
a ramp without batches: {pretrain("bert_mini")} --ramp_steps=2
    -> phases.0.ramp_steps=2 has no effect without phases.0.ramp_batch_sizes | set that too, or leave it out
a cooldown that is longer than the run: {pretrain("modernbert_mini")} --model.local_window=8 --steps=100
    -> schedule.cooldown_steps=2000 do not fit into the 100 steps | for example to 1 and 10
a cooldown of another shape: {pretrain("modernbert_mini")} --model.local_window=8 --schedule.name=linear
    -> schedule.cooldown_steps=2000 belongs to schedule.name=constant, not to linear
a power of another shape: {pretrain("bert_mini")} --schedule.power=2
    -> schedule.power=2.0 belongs to schedule.name=polynomial, not to linear | leave it out
the momentum of Muon for AdamW: {pretrain("bert_mini")} --optimizer.momentum=0.9
    -> optimizer.momentum=0.9 belongs to optimizer.name=muon, not to adamw | leave it out
""")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_one_line_and_nothing_written(case, family_inputs, capfd, caplog):
    refused(case, family_inputs, capfd, caplog)


# Refused before any example is read: there is none in these files.
UNREAD = "finetune text --data.train=@/vocab.txt --data.dev=@/vocab.txt --workdir=@/new --options.max_length=16"
EVALUATE = "evaluate @/student --data.path=@/store"

MODELS_CASES = cases(f"""
# Teachers.
a teacher with another vocabulary: {STUDENT} {TEACHER}=@/foreign_teacher
    -> foreign_teacher has a vocabulary (201 entries) different from that of the data (200) | prepare the data
no such teacher: {STUDENT} {TEACHER}=@/nowhere -> there is no | nowhere | give the directory
a teacher that is none: {STUDENT} {TEACHER}=@/store -> no model in | looked for | found manifest.json
a teacher without a head for words: {STUDENT} {TEACHER}=@/discriminator
    -> no masked-language-model head | soft_weight=5 needs | choose a pre-trained model
a teacher that sees one side: {STUDENT} {TEACHER}=@/gpt --init_from_layers=
    -> gpt has model.direction=left_to_right, the student both | choose another
another number of heads: {TAUGHT} --init_from_layers= --model.num_heads=4 --objective.distillation.attention_weight=1
    -> num_heads=2, the student 4 | attention_weight=1 compares them | set it to 0, or choose equal sizes
layers of another width: {TAUGHT} --model.hidden_size=16
    -> model.hidden_size is 16 here and 32 there | add: --model.hidden_size=32 | --init_from_layers=
layers out of range: {TAUGHT} --init_from_layers=0,4 -> init_from_layers=0,4 | the layers 0 to 3
more layers than the student has: {TAUGHT} --init_from_layers=0,1,2
    -> init_from_layers=0,1,2 names 3 layers | model.num_layers=2 | name one for each | --init_from_layers=
layers that are no numbers: {TAUGHT} --init_from_layers=0,two -> ['0', 'two'] is not INT,INT,…
layers that share parameters: {STUDENT} {TEACHER}=@/albert
    -> init_from_layers=0,2 needs layers with parameters of their own | model.sharing=all | --init_from_layers=
compared layers that nothing compares: {TAUGHT} --objective.distillation.layers=1,3
    -> objective.distillation.layers=1,3 | both are 0 | leave it out
a teacher and another objective: {TAUGHT} --objective.name=permutation
    -> {TEACHER[2:]}= | belongs to objective.name=masked_words | not to objective.name=permutation; set that
evaluate with a wrong teacher: {EVALUATE} {TEACHER}=@/other_teacher
    -> other_teacher is not the teacher of | fingerprint | give the teacher of the run
evaluate with no such teacher: {EVALUATE} {TEACHER}=@/nowhere -> there is no | nowhere
evaluate with a teacher of another vocabulary: {EVALUATE} {TEACHER}=@/foreign_teacher
    -> foreign_teacher has a vocabulary | 201 entries
resume with a wrong teacher: {TAUGHT} --workdir=@/student
    -> holds a run with the teacher another one | Resume with the teacher | another --workdir
# Tasks.
rates of layers that share parameters: {UNREAD} --init_from=@/albert --layer_decay=0.9
    -> layer_decay=0.9 needs separate parameters for each of 4 layers | [1, 32, 2, 16] | use layer_decay=1
fresh layers that share parameters: {UNREAD} --init_from=@/albert --reinitialize_layers=1
    -> reinitialize_layers=1 | model.sharing=all | use reinitialize_layers=0
unfreezing of layers that share parameters: {UNREAD} --init_from=@/albert --gradual_unfreezing=True
    -> gradual_unfreezing=True needs separate parameters | use gradual_unfreezing=False
more fresh layers than there are: {UNREAD} --init_from=@/teacher --reinitialize_layers=5
    -> reinitialize_layers=5, but the model has 4 layers; give 4 at most
features of layers that are not there: {UNREAD} --init_from=@/static --features=concat_last_four
    -> concat_last_four reads layers, but this model has only its embeddings | use last
shared rows that are longer than the model reads: {UNREAD} --init_from=@/teacher --packing=on --options.max_length=128
    -> options.max_length=128 | teacher has 64 positions | set --options.max_length=64
a teacher that was not fine-tuned: {UNREAD} --init_from=@/teacher --distillation.teacher=@/teacher
    -> no head of a task, so it has nothing to teach | fine-tune it on text first
fine-tuning a model of an unknown family: {UNREAD} --init_from=@/gpt2
    -> a model of type 'gpt2' | the types that can be loaded are bert, roberta,
# Formats.
a family that is not known: convert @/gpt2 @/new --to=bert_jax
    -> gpt2/config.json describes a model of type 'gpt2' | the types that can be loaded are bert, roberta,
an option that a family does not have here: convert @/relative @/new --to=bert_jax
    -> position_embedding_type='relative_key' | a model of type bert | only 'absolute' is supported
ALiBi for transformers: convert @/mosaic @/new --to=huggingface
    -> none has model.positions=alibi | nearest are bert, xlnet without | use --to=bert_jax
left to right for transformers: convert @/gpt @/new --to=huggingface
    -> nearest are bert without model.direction=left_to_right | use --to=bert_jax
ALiBi for Google's code: convert @/mosaic @/new --to=tf1
    -> model.feed_forward=geglu: Google's TF1 code has BERT only | --to=bert_jax
masked words in a model without them: fill-mask @/static [MASK]
    -> no mlm (apart from the encoder: nothing) | load a checkpoint with it
""")


@pytest.mark.parametrize("case", MODELS_CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_bad_models_get_one_line_and_nothing_is_written(case, family_inputs, capfd, caplog):
    refused(case, family_inputs, capfd, caplog)
