"""A training step of BERT in torch and transformers, on the batches that our step gets.

stock is BertForPreTraining as it is: logits at every position. tuned is the same encoder with scaled-dot-product
attention and the heads at the masked positions only, compiled by torch where that is faster, with our allocator
settings. Both: dropout, clipping, fused AdamW, autocast to bfloat16 where the job says so. torch comes from the
environment that runs this file; bert_jax is not imported there.
"""

# pyright: reportMissingImports=false

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch
import transformers
from serving import Refusal, peak_memory, serve

TRIED = 3  # steps by which two forms of the step are compared
NO_DECAY = ("bias", "LayerNorm.weight")


def prepare(job: dict[str, Any]) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Return a function that takes so many steps, and facts."""
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(job["seed"])
    torch.set_num_threads(job["threads"])
    device = job["device"]
    if device == "cuda" and not torch.cuda.is_available():
        raise Refusal(f"torch {torch.__version__} of this environment sees no GPU; install torch for CUDA there")
    if job["role"] == "tuned":
        torch.set_float32_matmul_precision("high")
    values = {key: value for key, value in job["model"].items() if key not in ("architectures", "dtype", "model_type")}
    config = transformers.BertConfig(**values, attn_implementation="sdpa")
    with numpy.load(job["batches"], allow_pickle=False) as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
    pairs = "next_sentence_labels" in arrays
    model = (transformers.BertForPreTraining if pairs else transformers.BertForMaskedLM)(config).train().to(device)
    step = Step(job, model, batches(arrays, job["micro_batches"]), device)
    if job["role"] == "stock":
        forms, failed = {"stock": step.stock_loss}, {}
    else:
        forms, failed = step.tuned_forms(compiles=job["compile"])
    chosen, tried = fastest(step, forms)

    def work(units: int):
        for _ in range(units):
            step.take(forms[chosen])
        step.wait()

    facts = {
        "first_loss": step.first_loss,
        "form": chosen,
        "seconds_per_step_of_each_form": tried,
        "failed": failed,
        "allocator": os.environ.get("GLIBC_TUNABLES", ""),
        "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation,
        "peak_memory_bytes": peak_memory(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    return work, facts


class Step:
    """The state of training: model, optimizer, and the next batch."""

    def __init__(self, job: dict[str, Any], model: Any, parts: Any, device: Any):
        self.job: dict[str, Any] = job
        self.model: Any = model
        self.parts: Any = parts
        self.device: Any = device
        self.first_loss: float | None = None
        self.done: int = 0
        named = list(model.named_parameters())
        decays = [parameter for name, parameter in named if not name.endswith(NO_DECAY)]
        others = [parameter for name, parameter in named if name.endswith(NO_DECAY)]
        self.optimizer: Any = torch.optim.AdamW(
            [{"params": decays, "weight_decay": job["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
            lr=job["learning_rate"],
            betas=tuple(job["betas"]),
            eps=job["epsilon"],
            fused=True,
        )

    def take(self, loss_of: Any) -> None:
        """Take one step with the loss that `loss_of` computes of a batch."""
        self.optimizer.zero_grad(set_to_none=True)
        parts, total = self.parts[self.done % len(self.parts)], 0.0
        for part in parts:
            placed = {name: array.to(self.device, non_blocking=True) for name, array in part.items()}
            precision = (
                torch.autocast(self.device, dtype=torch.bfloat16) if self.job["bfloat16"] else contextlib.nullcontext()
            )
            with precision:
                loss = loss_of(placed) / len(parts)
            loss.backward()
            total += loss.detach()
        if self.job["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job["clip_norm"], foreach=True)
        self.optimizer.step()
        self.done += 1
        if self.first_loss is None:
            self.first_loss = float(total)

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def stock_loss(self, batch: Any) -> Any:
        """Return the loss of the model as transformers ships it."""
        labels = torch.full_like(batch["input_ids"], -100)
        labels.scatter_(1, batch["masked_positions"], batch["labels"])
        pairs = {"next_sentence_label": batch["pairs"]} if "pairs" in batch else {}
        return self.model(**encoder_inputs(batch), labels=labels, **pairs).loss

    def tuned_loss(self, batch: Any) -> Any:
        """Return the same loss with logits at the masked positions only."""
        encoded = self.model.bert(**encoder_inputs(batch))
        rows = torch.arange(len(batch["input_ids"]), device=self.device)[:, None]
        hidden = encoded.last_hidden_state[rows, batch["masked_positions"]].flatten(0, 1)
        of = torch.nn.functional.cross_entropy
        if "pairs" not in batch:
            return of(self.model.cls(hidden).float(), batch["labels"].flatten())
        words, pairs = self.model.cls(hidden, encoded.pooler_output)
        return of(words.float(), batch["labels"].flatten()) + of(pairs.float(), batch["pairs"])

    def tuned_forms(self, compiles: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the forms of the tuned loss that work here by name, and why another does not."""
        forms, failed = {"eager": self.tuned_loss}, {}
        if compiles:
            form = torch.compile(self.tuned_loss)
            try:
                self.take(form)
                forms["compiled"] = form
            except Exception as error:  # no C++ compiler, or one of torch's many own classes
                failed["compiled"] = f"{type(error).__name__}: {error}"[:300]
        return forms, failed


def encoder_inputs(batch: Any) -> dict[str, Any]:
    """Return what the encoder reads."""
    return {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}


def batches(arrays: Any, micro_batches: int) -> list[Any]:
    """Return the batches as torch's loss wants them, each in `micro_batches` parts; unused slots have label -100."""
    whole = {
        name: arrays[name].long() for name in ("input_ids", "token_type_ids", "attention_mask", "masked_positions")
    }
    whole["labels"] = torch.where(arrays["masked_weights"] > 0, arrays["masked_ids"].long(), -100)
    if "next_sentence_labels" in arrays:
        whole["pairs"] = arrays["next_sentence_labels"].long()
    count = len(whole["input_ids"])
    cut = lambda number: {name: array[number].chunk(micro_batches) for name, array in whole.items()}
    return [
        [{name: chunks[part] for name, chunks in cut(number).items()} for part in range(micro_batches)]
        for number in range(count)
    ]


def fastest(step: Any, forms: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of the fastest of `forms`, and the seconds of a step of each if there are several."""
    for form in forms.values():
        step.take(form)
    if len(forms) == 1:
        return next(iter(forms)), {}
    taken = {name: [] for name in forms}
    for _ in range(TRIED):
        for name, form in forms.items():
            began = time.perf_counter()
            step.take(form)
            step.wait()
            taken[name].append(time.perf_counter() - began)
    least = {name: min(values) for name, values in taken.items()}
    return min(least, key=lambda name: least[name]), least


if __name__ == "__main__":
    serve(prepare)
