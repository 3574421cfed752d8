"""Train with torch and transformers as one contestant of a benchmark, as fast as torch can.

bert_jax is not imported here; `torch_contestants.py` starts it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from serving import Prepared, Refusal, peak_memory

# pyright: reportMissingImports=false


STEPS_TRIED = 3  # by which two forms of a step of pre-training are compared
FORM_SECONDS = 240  # in which a form of a step, or of attention, must have compiled
ATTENTION_TRIED = 4  # times that a kernel of attention is measured
ATTENTION_AT_ONCE = 5  # calls of it, forward and backward, before the device is waited for
ATTENTION_ERROR = 0.02  # relative, of results in bfloat16
NO_DECAY = ("bias", "norm.weight")
INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def step(job: dict[str, Any]) -> Prepared:
    """Prepare training steps of BERT or ModernBERT on the batches that our step gets.

    stock is the model of transformers as it is: logits at every position. tuned is the same encoder with the fastest
    attention that torch has, states in the data type of the products, and the heads at the masked positions only,
    compiled by torch where that is faster, with our allocator settings. Both: dropout, clipping, fused AdamW, autocast
    to bfloat16 where the job says so, batches on the device from the start.
    """
    import numpy
    import torch
    import transformers

    set_up(job["device"], job["threads"], job["seed"])
    transformers.utils.logging.set_verbosity_error()
    with numpy.load(job["batches"], allow_pickle=False) as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
    with torch.device(job["device"]):  # random numbers are made faster there
        model = new_model(job["model"], "next_sentence_labels" in arrays)
    training = Step(job, model.train(), batches(arrays, job["micro_batches"], job["device"]), job["device"])
    if job["role"] == "stock":
        forms, failed, attention = {"stock": training.stock_loss}, {}, {}
    else:
        torch.set_float32_matmul_precision("high")
        attention, failed = training.tune(compiles=job["compile"])
        forms = training.tuned_forms(job["compile"], failed)
    chosen, tried = fastest(training, forms, failed)
    forget_memory(job["device"])

    def work(units: int):
        for _ in range(units):
            training.take(forms[chosen])
        wait(job["device"])

    work(1)
    facts = {
        "first_loss": training.first_loss,
        "form": chosen,
        "seconds_per_step_of_each_form": tried,
        "failed": failed,
        "allocator": os.environ.get("GLIBC_TUNABLES", ""),
        "threads": torch.get_num_threads(),
        "attention": training.kernels or model.config._attn_implementation,
        "seconds_of_each_attention": attention,
        "peak_memory_bytes": peak_memory(),
        "peak_device_memory_bytes": device_memory(job["device"]),
        "versions": versions(torch, transformers),
    }
    return work, facts


def new_model(values: dict[str, Any], pairs: bool) -> Any:
    """Return a model with random weights.

    Args:
      values: config.json of a model of type bert or modernbert.
      pairs: whether BERT also predicts the order of pairs.
    """
    import transformers

    others = {key: value for key, value in values.items() if key not in ("architectures", "dtype", "model_type")}
    if values.get("model_type", "bert") == "modernbert":
        return transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**others, attn_implementation="sdpa"))
    kind = transformers.BertForPreTraining if pairs else transformers.BertForMaskedLM
    return kind(transformers.BertConfig(**others, attn_implementation="sdpa"))


class Step:
    """The state of training: model, optimizer, and the next batch."""

    def __init__(self, job: dict[str, Any], model: Any, parts: Any, device: Any):
        import torch

        self.job: dict[str, Any] = job
        self.model: Any = model
        self.parts: Any = parts
        self.device: Any = device
        self.padded: bool = not all(part["attention_mask"].all() for each in parts for part in each)
        self.near: Any = None
        self.kernels: dict[str, str] = {}
        self.attention: dict[str, Any] = {}
        self.first_loss: float | None = None
        self.done: int = 0
        named = list(model.named_parameters())
        decays = [parameter for name, parameter in named if not name.lower().endswith(NO_DECAY)]
        others = [parameter for name, parameter in named if name.lower().endswith(NO_DECAY)]
        self.optimizer: Any = torch.optim.AdamW(
            [{"params": decays, "weight_decay": job["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
            lr=job["learning_rate"],
            betas=tuple(job["betas"]),
            eps=job["epsilon"],
            fused=True,
        )

    def take(self, loss_of: Any) -> None:
        """Take one step with the loss that `loss_of` computes of a batch; the device is not waited for."""
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        parts, total = self.parts[self.done % len(self.parts)], 0.0
        for part in parts:
            with precision(self.device, self.job["bfloat16"]):
                loss = loss_of(part) / len(parts)
            loss.backward()
            total += loss.detach()
        if self.job["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job["clip_norm"], foreach=True)
        self.optimizer.step()
        self.done += 1
        if self.first_loss is None:
            self.first_loss = float(total)

    def stock_loss(self, batch: Any) -> Any:
        """Return the loss of the model as transformers ships it."""
        import torch

        labels = torch.full_like(batch["input_ids"], -100)
        labels.scatter_(1, batch["masked_positions"], batch["labels"])
        pairs = {"next_sentence_label": batch["pairs"]} if "pairs" in batch else {}
        names = INPUTS if self.model.config.model_type == "bert" else ("input_ids", "attention_mask")
        return self.model(**{name: batch[name] for name in names}, labels=labels, **pairs).loss

    def tune(self, compiles: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """Prepare the model for `tuned_loss`; return the seconds of each kernel of attention, and why others failed."""
        import torch
        import transformers

        config, rows, taken, failed = self.model.config, self.parts[0][0]["input_ids"], {}, {}
        if self.job["bfloat16"]:
            narrow_norms(self.model)
        if config.model_type == "bert":
            join_projections(self.model, self.attend)
        transformers.AttentionInterface.register("tuned", self.attend)
        config._attn_implementation = "tuned"
        width = config.sliding_window if "sliding_attention" in (getattr(config, "layer_types", None) or ()) else None
        if width is not None:
            places = torch.arange(rows.shape[1], device=self.device)
            self.near = ((places[:, None] - places[None]).abs() <= width)[None, None]
        self.kernels = {"whole": "plain"} | ({} if width is None else {"windows": "plain"})
        self.attention = dict.fromkeys(self.kernels, plain_attention)
        if self.device == "cuda" and self.job["bfloat16"] and not self.padded:
            shape = (*rows.shape, config.num_attention_heads, config.hidden_size // config.num_attention_heads)
            dropout = getattr(config, "attention_probs_dropout_prob", None) or getattr(config, "attention_dropout", 0.0)
            for layers in self.kernels:
                try:
                    mask = None if layers == "whole" else self.near
                    those = kernels() if mask is None else window_kernels(rows.shape[1], width, self.device)
                    name, taken[layers] = fastest_attention(those, shape, mask, dropout, compiles, failed)
                    self.kernels[layers], self.attention[layers] = name, those[name]
                except Exception as error:  # the plain one works everywhere
                    failed[f"choice of attention, {layers}"] = f"{type(error).__name__}: {error}"[:300]
        return taken, failed

    def attend(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        dropout: float = 0.0,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[Any, None]:
        """Attend as a layer of transformers asks for it, arrays [B, A, L, D], by the kernel that was chosen."""
        kernel = self.attention["whole" if sliding_window is None else "windows"]
        return kernel(query, key, value, attention_mask, dropout, scaling).transpose(1, 2), None

    def tuned_loss(self, batch: Any) -> Any:
        """Return the same loss with logits at the masked positions only.

        The encoder gets ready masks, none where no row is padded: inside a compiled function transformers always makes
        one, and then no flash kernel can be taken.
        """
        import torch

        ids, model = batch["input_ids"], self.model
        visible = batch["attention_mask"].bool()[:, None, None] if self.padded else None
        if model.config.model_type == "modernbert":
            near = self.near if visible is None or self.near is None else self.near & visible
            masks = {"full_attention": visible, "sliding_attention": near}
            states = model.model(ids, attention_mask=masks).last_hidden_state
        else:
            embedded = model.bert.embeddings(input_ids=ids, token_type_ids=batch["token_type_ids"])
            states = model.bert.encoder(embedded, attention_mask=visible).last_hidden_state
        starts = torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)
        chosen = states.flatten(0, 1).index_select(0, (batch["masked_positions"] + starts[:, None]).flatten())
        of = torch.nn.functional.cross_entropy
        if "pairs" in batch:
            words, pairs = model.cls(chosen, model.bert.pooler(states))
            return of(words.float(), batch["labels"].flatten()) + of(pairs.float(), batch["pairs"])
        words = model.cls(chosen) if model.config.model_type == "bert" else model.decoder(model.head(chosen))
        return of(words.float(), batch["labels"].flatten())

    def tuned_forms(self, compiles: bool, failed: dict[str, str]) -> dict[str, Any]:
        """Return the forms of the tuned loss that work here by name; say in `failed` why another does not."""
        import torch

        forms, chosen, plain = {}, (self.kernels, self.attention), dict.fromkeys(self.kernels, "plain")
        others = ("compiled, plain attention", plain, dict.fromkeys(plain, plain_attention))
        for name, *attention in (
            [("compiled", *chosen), *([others] if self.kernels != plain else [])] if compiles else ()
        ):
            torch.compiler.reset()
            (self.kernels, self.attention), form = attention, torch.compile(self.tuned_loss, dynamic=False)
            with failure_noted(failed, name):
                self.take(form)
                wait(self.device)
                forms[name] = form
                break
        else:
            self.kernels, self.attention = chosen
        return forms | {"eager": self.tuned_loss}


def batches(arrays: Any, micro_batches: int, device: str) -> list[Any]:
    """Return the batches on the device as torch's loss wants them, each in `micro_batches` parts.

    Unused slots have label -100.
    """
    import torch

    whole = {name: arrays[name].long() for name in (*INPUTS, "masked_positions")}
    whole["labels"] = torch.where(arrays["masked_weights"] > 0, arrays["masked_ids"].long(), -100)
    if "next_sentence_labels" in arrays:
        whole["pairs"] = arrays["next_sentence_labels"].long()
    whole = {name: array.to(device) for name, array in whole.items()}
    count = len(whole["input_ids"])
    cut = lambda number: {name: array[number].chunk(micro_batches) for name, array in whole.items()}
    return [
        [{name: chunks[part] for name, chunks in cut(number).items()} for part in range(micro_batches)]
        for number in range(count)
    ]


def fastest(training: Step, forms: dict[str, Any], failed: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the name of the fastest of `forms`, and the seconds of a step of each; say in `failed` which do not work.

    Raises:
      Refusal: none works.
    """
    taken: dict[str, list[float]] = {}
    for name, form in forms.items():
        with failure_noted(failed, name):
            training.take(form)
            wait(training.device)
            taken[name] = []
    for _ in range(STEPS_TRIED if len(taken) > 1 else 0):
        for name in taken:
            began = time.perf_counter()
            training.take(forms[name])
            wait(training.device)
            taken[name].append(time.perf_counter() - began)
    if not taken:
        raise Refusal(f"no form of the step works here: {failed}")
    least = {name: min(values) for name, values in taken.items() if values}
    return min(taken, key=lambda name: least.get(name, 0.0)), least


@contextlib.contextmanager
def failure_noted(failed: dict[str, str], name: str) -> Iterator[None]:
    """Note in `failed` why the block did not come to its end within FORM_SECONDS, and go on."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not ready after {FORM_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, FORM_SECONDS)
    try:
        yield
    except Exception as error:  # no compiler, too little memory, or one of torch's many own classes
        failed[name] = f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def narrow_norms(model: Any) -> None:
    """Let norms return bfloat16, statistics in float32, as our encoder does.

    Autocast would have them, and every sum of the residual branches, in float32.
    """
    import torch

    class NarrowNorm(torch.nn.LayerNorm):
        def forward(self, x: Any) -> Any:
            weight, bias = (None if each is None else each.bfloat16() for each in (self.weight, self.bias))
            with torch.autocast(x.device.type, enabled=False):
                return torch.nn.functional.layer_norm(x.bfloat16(), self.normalized_shape, weight, bias, self.eps)

    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.__class__ = NarrowNorm


def join_projections(model: Any, attend: Any) -> None:
    """Let one product make the queries, keys and values of a layer of BERT, as ModernBERT does."""
    import torch
    from transformers.models.bert.modeling_bert import BertSelfAttention

    class Joined(BertSelfAttention):
        def forward(self, hidden_states: Any, attention_mask: Any = None, **_: Any) -> tuple[Any, None]:
            parts = (self.query, self.key, self.value)
            weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
            joined = torch.nn.functional.linear(hidden_states, weight, bias)
            arrays = joined.unflatten(-1, (3, self.num_attention_heads, self.attention_head_size)).unbind(-3)
            rate = self.dropout.p if self.training else 0.0
            found, _ = attend(self, *(array.transpose(1, 2) for array in arrays), attention_mask, rate, self.scaling)
            return found.reshape(hidden_states.shape), None

    for layer in model.bert.encoder.layer:
        layer.attention.self.__class__ = Joined


def plain_attention(query: Any, key: Any, value: Any, mask: Any, dropout: float, scale: float) -> Any:
    """Attend by the kernel that torch chooses; all kernels take and return arrays [B, A, L, D]."""
    import torch

    of = torch.nn.functional.scaled_dot_product_attention
    return of(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)


def cudnn_attention(query: Any, key: Any, value: Any, _: None, dropout: float, scale: float) -> Any:
    """Attend by cuDNN, without a mask."""
    import torch

    of = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    return of(query, key, value, None, True, dropout, False, False, scale=scale)[0]


def flash_attention(query: Any, key: Any, value: Any, _: None, dropout: float, scale: float) -> Any:
    """Attend by the FlashAttention that torch contains, without a mask."""
    import torch

    of = torch.ops.aten._scaled_dot_product_flash_attention.default
    return of(query, key, value, dropout, False, False, scale=scale)[0]


def kernels() -> dict[str, Any]:
    """Return the kernels without a window, the plain one first."""
    return {"plain": plain_attention, "cudnn": cudnn_attention, "flash": flash_attention}


def window_kernels(length: int, width: Any, device: str) -> dict[str, Any]:
    """Return the plain kernel, and those that compute only the scores within `width` positions of a query."""
    import torch
    from torch.nn.attention import flex_attention

    near = lambda row, head, place, other: (place - other).abs() <= width
    blocks = flex_attention.create_block_mask(near, None, None, length, length, device=device)
    compiled = torch.compile(flex_attention.flex_attention, dynamic=False)

    def flash(query: Any, key: Any, value: Any, _: Any, dropout: float, scale: float) -> Any:
        arrays = [array.transpose(1, 2) for array in (query, key, value)]
        settings = {"scale": scale, "window_size_left": width, "window_size_right": width}
        of = torch.ops.aten._flash_attention_forward.default
        return of(*arrays, None, None, length, length, dropout, False, False, **settings)[0].transpose(1, 2)

    def flex(query: Any, key: Any, value: Any, _: Any, dropout: float, scale: float) -> Any:
        if dropout:
            raise Refusal("it has no dropout")
        return compiled(query, key, value, block_mask=blocks, scale=scale)

    return {"plain": plain_attention, "flash": flash, "flex": flex}


def fastest_attention(
    kernels: dict[str, Any], shape: Any, mask: Any, dropout: float, compiles: bool, failed: dict[str, str]
) -> tuple[str, dict[str, float]]:
    """Return the kernel that is fastest forward and backward on a GPU, and the seconds of each.

    Args:
      kernels: by name; the results of all must be those of the first.
      shape: B, L, A, D.
      mask: what the first reads.
      dropout: rate to measure with.
      compiles: whether they are measured as torch compiles them.
      failed: gets the reasons why others cannot be taken.
    """
    import torch

    options = {"dtype": torch.bfloat16, "device": "cuda"}
    arrays = [torch.randn(shape, **options).requires_grad_() for _ in range(3)]
    gradient = torch.randn(shape, **options).transpose(1, 2)

    def results(kernel: Any, rate: float) -> list[Any]:
        found = kernel(*(array.transpose(1, 2) for array in arrays), mask, rate, shape[-1] ** -0.5)
        return [found.detach(), *torch.autograd.grad(found, arrays, gradient)]

    expected, taken = results(next(iter(kernels.values())), 0.0), {}
    for name, kernel in kernels.items():
        with failure_noted(failed, f"attention by {name}{'' if mask is None else ', windows'}"):
            for one, other in zip(results(kernel, 0.0), expected, strict=True):
                error = float((one - other).float().norm() / other.float().norm())
                if not error < ATTENTION_ERROR:
                    raise Refusal(f"its results differ by {error:.3g}")
            measured = torch.compile(kernel, dynamic=False) if compiles else kernel
            rounds = []
            for _ in range(ATTENTION_TRIED):
                began = time.perf_counter()
                for _ in range(ATTENTION_AT_ONCE):
                    results(measured, dropout)
                wait("cuda")
                rounds.append((time.perf_counter() - began) / ATTENTION_AT_ONCE)
            taken[name] = min(rounds)
    return min(taken, key=lambda name: taken[name]), taken


def set_up(device: str, threads: int, seed: int = 0) -> None:
    """Give torch its seed and threads; refuse a GPU that it does not see."""
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    if device == "cuda" and not torch.cuda.is_available():
        raise Refusal(f"torch {torch.__version__} of this environment sees no GPU; install torch for CUDA there")


def precision(device: str, bfloat16: bool) -> Any:
    """Return the context in which the model computes."""
    import torch

    return torch.autocast(device, dtype=torch.bfloat16) if bfloat16 else contextlib.nullcontext()


def wait(device: str) -> None:
    """Wait until the device has done everything."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def forget_memory(device: str) -> None:
    """Forget the memory that forms held which were not chosen."""
    import torch

    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def device_memory(device: str) -> int | None:
    """Return the most bytes of arrays that a GPU has held for this process since `forget_memory`."""
    import torch

    return torch.cuda.max_memory_allocated() if device == "cuda" else None


def versions(*modules: Any) -> dict[str, str]:
    """Return the version of each module."""
    return {module.__name__: module.__version__ for module in modules}
