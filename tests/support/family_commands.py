"""Pre-training of small members of the family as command lines; `@` stands for what `family_inputs` writes."""

SMALL = (
    "--data.path=@/store --workdir=@/new --model.max_position_embeddings=64 --sequence_length=32 --batch_size=8 "
    "--steps=2 --warmup_steps=0"
)
STUDENT = f"pretrain distilbert_mini {SMALL} --model.hidden_size=32 --model.num_heads=2 --model.intermediate_size=48"
TEACHER = "--objective.distillation.teacher"
TAUGHT = f"{STUDENT} {TEACHER}=@/teacher"


def pretrain(name: str, *options: str) -> str:
    return " ".join(("pretrain", name, SMALL, *options))
