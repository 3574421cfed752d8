"""Fine-tune with transformers' Trainer as the job in a directory says: the other side of compare_finetuning.py.

    python scripts/finetune_with_trainer.py DIRECTORY

DIRECTORY has job.json, train.npz and dev.npz, which compare_finetuning.py writes, and gets logits.npz: those of the dev
set. bert_jax is not imported.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bert_jax" / "tools" / "bench" / "peer"))
from torch_contestants import padded


class Rows(torch.utils.data.Dataset):
    """The sequences of a file, unpadded."""

    def __init__(self, file: pathlib.Path, kind: str):
        with np.load(file, allow_pickle=False) as stored:
            ends = np.cumsum(stored["lengths"])[:-1]
            self.ids, self.types = (np.split(stored[name], ends) for name in ("input_ids", "token_type_ids"))
            self.labels = stored["labels"]
        self.kind = kind

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.ids[index], "token_type_ids": self.types[index], "label": self.labels[index]}

    def batch(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Return a batch, padded to its longest sequence."""
        batch = padded([row["input_ids"] for row in rows], [row["token_type_ids"] for row in rows], "cpu")
        labels = np.array([row["label"] for row in rows])
        if self.kind == "span":
            targets = {"start_positions": labels[:, 0].astype(np.int64), "end_positions": labels[:, 1].astype(np.int64)}
        else:
            targets = {"labels": labels.astype(np.float32 if self.kind == "regression" else np.int64)}
        return batch | {name: torch.from_numpy(array) for name, array in targets.items()}


class Ordered(transformers.Trainer):
    """A Trainer with given batches, those of all epochs, and given rates."""

    order: list[list[int]]
    rates: list[float]

    def compute_loss(self, model, inputs, return_outputs=False, **given):
        """As Trainer's, but padding does not compete with the positions of an answer, since here it does not."""
        if "start_positions" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, **given)
        output = model(**{name: values for name, values in inputs.items() if not name.endswith("_positions")})
        real, losses = inputs["attention_mask"] > 0, []
        for name in ("start", "end"):
            logits = output[f"{name}_logits"].float().masked_fill(~real, -1e9)
            losses.append(torch.nn.functional.cross_entropy(logits, inputs[f"{name}_positions"]))
        loss = sum(losses) / 2
        return (loss, output) if return_outputs else loss

    def get_train_dataloader(self):
        rows = self.train_dataset
        return torch.utils.data.DataLoader(rows, batch_sampler=self.order, collate_fn=rows.batch)

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        factor = lambda step: self.rates[min(step, len(self.rates) - 1)] / max(self.rates)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler


def main(directory: pathlib.Path) -> None:
    job = json.loads((directory / "job.json").read_text())
    transformers.set_seed(job["seed"])
    train, dev = (Rows(directory / f"{name}.npz", job["kind"]) for name in ("train", "dev"))
    if job["kind"] == "span":
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(job["model"])
    else:
        settings = {"problem_type": "regression"} if job["kind"] == "regression" else {}
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            job["model"], num_labels=job["outputs"], **settings
        )
    options = transformers.TrainingArguments(
        output_dir=str(directory / "trainer"),
        num_train_epochs=1,  # the order has all epochs
        learning_rate=max(job["rates"]),
        adam_epsilon=job["epsilon"],
        weight_decay=job["weight_decay"],
        per_device_eval_batch_size=job["batch_size"],
        bf16=job["bfloat16"],
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to=[],
        seed=job["seed"],
        disable_tqdm=True,
    )
    trainer = Ordered(model=model, args=options, train_dataset=train, eval_dataset=dev, data_collator=train.batch)
    trainer.order, trainer.rates = job["order"], job["rates"]
    trainer.train()
    order = np.argsort([len(ids) for ids in dev.ids], kind="stable")
    model.eval()
    found = []
    longest = max(map(len, dev.ids))
    with torch.inference_mode():
        for begin in range(0, len(order), job["batch_size"]):
            batch = dev.batch([dev[index] for index in order[begin : begin + job["batch_size"]]])
            inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
            output = model(**{name: array.to(model.device) for name, array in inputs.items()})
            if job["kind"] == "span":
                both = torch.stack([output.start_logits, output.end_logits], -1).float().cpu().numpy()
                found += [np.pad(row, ((0, longest - len(row)), (0, 0))) for row in both]
            else:
                logits = output.logits.float().cpu().numpy()
                found += list(logits[:, 0] if job["kind"] == "regression" else logits)
    logits = np.zeros((len(found), *np.shape(found[0])), np.float32)
    logits[order] = found
    np.savez(directory / "logits.npz", allow_pickle=False, logits=logits)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
