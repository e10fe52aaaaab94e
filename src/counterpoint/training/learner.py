"""The simple `Learner`: an `Objective` with an optimiser."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, cast

import torch
from accelerate import Accelerator
from pydantic import Field
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from counterpoint.agents.base import FiniteCheck
from counterpoint.config import FrozenConfig
from counterpoint.data.draws import sample_seed
from counterpoint.errors import require
from counterpoint.objectives.base import Batch, Features, LossOutput, NonFiniteError, Objective, Score
from counterpoint.training.distributed import average_gradients, gather
from counterpoint.training.memory import MemoryConfig, blocks, buffers_kept, recompute, shard, spread, whole


class OptimizerConfig(FrozenConfig):
    """The optimiser and its schedule.

    Attributes:
        name: `adam` couples weight decay to the gradient (L2), as the papers' code does; `adamw` decouples weight
            decay.
        lr: Peak learning rate.
        encoder_lr: Peak learning rate of the encoder, in recipes of kind `transitions`, `cloning` and `imitation`,
            whose encoder is followed by heads; `lr` by default. Encoder and heads follow the same schedule.
        final_lr: Learning rate at the end of a cosine schedule; if it equals `lr`, the rate stays constant.
        warmup_steps: Number of steps in which the learning rate rises linearly from 0.
        clip_norm: Maximum gradient norm of each parameter group; `None` does not clip gradients.
        accumulate: Number of parts that a batch is split into; their gradients are accumulated. Samples do not serve as
            negatives for samples of another part.
        decay_vectors: True to apply weight decay to parameters of one dimension too (biases, gains of normalisation),
            unlike timm's optimisers.
        ema: Decay of a moving average of the parameters, which is evaluated and exported in place of the parameters;
            `None` for no average.
        ema_power: Power of a decay that rises to `ema`; `None` for a constant decay. The average is a copy of the
            parameters at the first two updates. At each later update n, the decay is 1 - (n - 1)^-power, but at most
            `ema`. Diffusion Policy's power is 0.75. n is part of the checkpoint.
    """

    name: Literal["adam", "adamw"] = "adam"
    lr: float = Field(1e-5, gt=0)
    encoder_lr: float | None = Field(None, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    decay_vectors: bool = True
    schedule: Literal["constant", "cosine"] = "constant"
    final_lr: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    clip_norm: float | None = Field(None, gt=0)
    accumulate: int = Field(1, ge=1)
    ema: float | None = Field(None, gt=0, lt=1)
    ema_power: float | None = Field(None, gt=0)


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """Return the rate of optimiser step `step` (0-based) of `total`: a pure function, so no state needs saving."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    progress = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    return config.final_lr + (config.lr - config.final_lr) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def _decayed(group: list[nn.Parameter], decay: float, vectors: bool) -> list[tuple[list[nn.Parameter], float]]:
    """Return parameters with their weight decay; vectors (one dimension) have no decay unless `vectors` is set."""
    if vectors:
        return [(group, decay)]
    parts = ([p for p in group if p.ndim > 1], decay), ([p for p in group if p.ndim <= 1], 0.0)
    return [(part, own) for part, own in parts if part]


class ObjectiveLearner:
    """Minimises one `Objective` with one optimiser.

    Args:
        objective: The objective to minimise.
        config: The optimiser.
        total_steps: The number of steps of the learning-rate schedule.
        accelerator: Placement, precision and process group.
        seed: Random seed of dropout and noise. It is combined with the step's number, so that checkpoints need no
            generator state.
        memory: Ways to save memory.

    Raises:
        BadInputError: When a way to save memory does not fit the objective or the number of processes.
    """

    def __init__(
        self,
        objective: Objective,
        config: OptimizerConfig,
        *,
        total_steps: int,
        accelerator: Accelerator,
        seed: int = 0,
        memory: MemoryConfig | None = None,
    ) -> None:
        self._seed, self._memory = seed, memory or MemoryConfig()
        self._check_memory(objective, accelerator)
        self.config, self.total_steps, self.accelerator = config, total_steps, accelerator
        self.objective = objective.to(accelerator.device)
        self._average: AveragedModel | None = None
        if config.ema is not None:
            self._average = AveragedModel(self.objective, multi_avg_fn=_moving_average(config))
        self._copy = copy.deepcopy(self.objective).cpu() if self._memory.shard else None
        if self._memory.recompute:
            recompute(self.objective)
        if self._memory.shard:
            for network in (self.objective, *([self._average.module] if self._average is not None else [])):
                shard(network, accelerator.device.type)
        self._groups = {name: group for name, group in self.objective.param_groups().items() if group}
        kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
        decays = self.objective.weight_decays()
        parts = [
            ({"params": part, "name": name, "weight_decay": decay}, share)
            for name, group in self._groups.items()
            for some, share in self._by_rate(group)
            for part, decay in _decayed(some, decays.get(name, config.weight_decay), config.decay_vectors)
        ]
        self._shares = [share for _, share in parts]
        optimizer = kind(
            [part for part, _ in parts],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=not self._memory.shard,
        )
        model = self.objective if self._memory.shard else accelerator.prepare_model(self.objective)
        # accelerate's optimiser adds fp16's scaler, and looks for packages on the disk at every step.
        self.model = model
        self.optimizer: Any = optimizer if accelerator.scaler is None else accelerator.prepare_optimizer(optimizer)
        self._devices = [accelerator.device] if accelerator.device.type == "cuda" else []
        # On a GPU, reading a number waits for the device: the fused optimiser skips a step that is not finite.
        self._waits = not self._devices or self._memory.shard or accelerator.scaler is not None
        self._finite = FiniteCheck(type(objective).__name__)
        self._gathers = objective.across_ranks and accelerator.num_processes > 1
        self._stream = f"networks of rank {accelerator.process_index}"

    def update(self, batch: Batch, step: int) -> dict[str, Any]:
        """Take one optimiser step over `config.accumulate` parts of the batch.

        Returns:
            Loss, metrics and gradient norms, which on a GPU are scalars on the device.

        Raises:
            NonFiniteError: When the loss or a gradient is not finite; the parameters are then unchanged. On a GPU it is
                raised within 100 updates, and whenever the state is saved; the steps in between are skipped.
        """
        with torch.random.fork_rng(devices=self._devices):
            # Until a GPU is used, torch.manual_seed would format a stack trace at every step.
            self._draw_from(step)
            return self._step(batch, step)

    def _check_memory(self, objective: Objective, accelerator: Accelerator) -> None:
        memory = self._memory
        hint = "split the batch with optimizer.accumulate, which changes nothing there"
        ok = memory.chunk is None or objective.across_ranks
        require(ok, "memory.chunk", "an objective that scores each sample alone", "one with negatives", hint)
        there = not memory.recompute or bool(blocks(objective))
        require(
            there, "memory.recompute", "no blocks", "a network of blocks, such as a ResNet or a ViT", "leave it out"
        )
        ok = not memory.shard or accelerator.mixed_precision != "fp16"
        require(ok, "memory.shard", "precision fp16", "bf16 or no", "set train.precision=bf16")

    def _draw_from(self, step: int, *chunk: int) -> None:
        seeded = torch.manual_seed if self.accelerator.device.type != "cpu" else torch.default_generator.manual_seed
        name = f"{self._stream}, chunk {chunk[0]}" if chunk else self._stream
        seeded(sample_seed(self._seed, step, name))

    def _step(self, batch: Batch, step: int) -> dict[str, float | Tensor]:
        rate = learning_rate(self.config, step, self.total_steps)
        for group, share in zip(self.optimizer.param_groups, self._shares, strict=True):
            group["lr"] = rate * share
        self.model.train()
        parts = list(_split(self._move(batch), self.config.accumulate))
        outputs: list[LossOutput] = []
        for number, part in enumerate(parts):
            last, chunked = number == len(parts) - 1, self._memory.chunk is not None
            with self.accelerator.no_sync(self.model) if not (last or chunked or self._memory.shard) else nullcontext():
                backward = partial(self._backward_by_chunks, step) if chunked else self._backward
                outputs.append(backward(part, 1 / len(parts)))
        if self._memory.chunk is not None and not self._memory.shard:
            average_gradients(self.objective.parameters())
        means, norms = _mean(outputs), self._clip()
        metrics: dict[str, float | Tensor] = {**means, **norms, "lr": rate}
        if self._waits:
            metrics = {name: float(value) for name, value in metrics.items()}
        else:
            checked = {"loss": means["loss"], **norms}
            self.optimizer.found_inf = (~torch.stack(list(checked.values())).isfinite().all()).float()
            self._finite.add(checked, step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.objective.after_step()
        if self._average is not None:
            self._average.update_parameters(self.objective)
        return metrics

    def _backward(self, part: Batch, share: float) -> LossOutput:
        """Add the gradient of a part's loss, multiplied by `share`, to the gradients of the parameters."""
        with self.accelerator.autocast():
            output: LossOutput = self.model(part, self._score(self.objective))
        self._backpropagate(output, share)
        return output

    def _backward_by_chunks(self, step: int, part: Batch, share: float) -> LossOutput:
        """Add the same gradient as `_backward`, with only one chunk's activations in memory (gradient caching).

        First, all chunks are encoded without an autograd graph, and the loss of all rows gives the gradient of each
        embedding. Then each chunk is encoded a second time, to pass the gradient of its embeddings on to the
        parameters.
        """
        assert self._memory.chunk is not None
        chunks = list(_chunks(part, self._memory.chunk))
        found: list[Features] = []

        def encode(number: int, score: Score) -> LossOutput:
            self._draw_from(step, number)
            with self.accelerator.autocast():
                scored: LossOutput = self.objective(chunks[number], score)
            return scored

        def keep(features: Features, batch: Batch) -> LossOutput:
            found.append(features)
            return LossOutput(torch.zeros(()))

        with torch.no_grad(), buffers_kept(self.objective):
            for number in range(len(chunks)):
                encode(number, keep)
        rows = {name: torch.cat([one.rows[name] for one in found]) for name in found[0].rows}
        joined = Features(*({name: _leaf(value) for name, value in kept.items()} for kept in (rows, found[0].shared)))
        output: LossOutput = self.objective(part, self._score(self.objective), joined)
        self._backpropagate(output, share)
        gradients = {
            name: value.grad for name, value in (joined.rows | joined.shared).items() if value.grad is not None
        }
        parts = list(_chunks({name: gradients[name] for name in joined.rows if name in gradients}, self._memory.chunk))
        for number, of_rows in enumerate(parts):
            # Shared tensors, which are not rows of the batch, were read from the first chunk.
            more = {name: gradients[name] for name in joined.shared if name in gradients and number == 0}
            encode(number, partial(_along, of_rows | more)).loss.backward()  # type: ignore[no-untyped-call]
        return output

    def _score(self, objective: Objective) -> Score:
        """Return the loss function; if rows serve as negatives for each other, it covers the rows of all processes."""
        return (lambda features, batch: objective.loss(*gather(features, batch))) if self._gathers else objective.loss

    def _backpropagate(self, output: LossOutput, share: float) -> None:
        if self._waits and not bool(torch.isfinite(output.loss)):
            self.optimizer.zero_grad()
            raise NonFiniteError(f"the loss is {output.loss.item()}")
        self.accelerator.backward(output.loss * share)

    def _by_rate(self, group: list[nn.Parameter]) -> list[tuple[list[nn.Parameter], float]]:
        """Return the parts of a group that have different learning rates, each with its rate as a multiple of `lr`."""
        if self.config.encoder_lr is None:
            return [(group, 1.0)]
        encoder = {id(parameter) for parameter in self.objective.encoder_parameters()}
        hint = "leave optimizer.encoder_lr out"
        require(encoder, "encoder_lr", "no trained encoder beneath heads", "one, apart from what has `lr`", hint)
        parts = [p for p in group if id(p) not in encoder], [p for p in group if id(p) in encoder]
        shares = (1.0, self.config.encoder_lr / self.config.lr)
        return [(part, share) for part, share in zip(parts, shares, strict=True) if part]

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Return loss and metrics with the exported parameters."""
        objective = self._exported()
        objective.eval()
        with torch.no_grad(), self.accelerator.autocast():
            means = _mean([objective(self._move(batch), self._score(objective))])
        return {name: float(value) for name, value in means.items()}

    def state(self) -> dict[str, Any]:
        """Return parameters, optimiser, moving average and gradient scaler, in a form for any number of processes.

        With sharded parameters, all processes must call this method.

        Raises:
            NonFiniteError: On a GPU, if a loss or a gradient since the last check was not finite.
        """
        self._finite.check()
        scaler = self.accelerator.scaler
        state: dict[str, Any] = whole(
            {
                "objective": dict(self.objective.state_dict()),
                "optimizer": self.optimizer.state_dict(),
                "average": dict(self._average.state_dict()) if self._average is not None else None,
                "scaler": scaler.state_dict() if scaler is not None else None,
            }
        )
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a saved state, which may be from another number of processes."""
        self.objective.load_state_dict(spread(state["objective"], self.objective.state_dict()))
        optimizer = dict(state["optimizer"])
        if self._memory.shard:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            optimizer["state"] = {
                number: spread(values, dict.fromkeys(("exp_avg", "exp_avg_sq"), parameters[int(number)]))
                for number, values in optimizer["state"].items()
            }
        self.optimizer.load_state_dict(optimizer)
        for parameter, values in self.optimizer.state.items():
            for name, value in values.items():
                # The fused optimiser reads memory in order: moments need the layout (channels-last) of their parameter.
                if value.shape == parameter.shape and value.stride() != parameter.stride():
                    values[name] = torch.empty_like(parameter).copy_(value)
        if self._average is not None and state["average"] is not None:
            self._average.load_state_dict(spread(state["average"], self._average.state_dict()))
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def exports(self) -> dict[str, nn.Module]:
        """Return the objective's exports, from the moving average if there is one.

        With sharded parameters, they are copies on the CPU, and all processes must call this method.
        """
        if self._copy is None:
            return self._exported().exports()
        self._copy.load_state_dict(whole(dict(self._exported().state_dict())))
        return self._copy.eval().exports()

    def _exported(self) -> Objective:
        if self._average is None:
            return self.objective
        return cast(Objective, self._average.module)

    def _clip(self) -> dict[str, Tensor]:
        self.accelerator.unscale_gradients(self.optimizer)
        norms: dict[str, Tensor] = {}
        for name, group in self._groups.items():
            limit = self.config.clip_norm if self.config.clip_norm is not None else math.inf
            found = nn.utils.clip_grad_norm_(group, limit)
            norm: Tensor = whole(found) if self._memory.shard else found
            # Under fp16 the scaler handles an overflow: it skips the step and lowers the scale.
            if self._waits and not bool(norm.isfinite()) and self.accelerator.scaler is None:
                self.optimizer.zero_grad()
                raise NonFiniteError(f"the gradient norm of {name} is {norm.item()}")
            norms[f"grad_norm/{name}"] = norm
        return norms

    def _move(self, batch: Batch) -> dict[str, Any]:
        device = self.accelerator.device
        return {k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in batch.items()}


def _moving_average(config: OptimizerConfig) -> Callable[..., None]:
    """Return the averaging function that `AveragedModel` takes."""
    assert config.ema is not None
    if config.ema_power is None:
        constant: Callable[..., None] = get_ema_multi_avg_fn(config.ema)  # type: ignore[no-untyped-call]
        return constant
    greatest, power = config.ema, config.ema_power

    def average(averages: list[Tensor], present: list[Tensor], updates: Tensor | int) -> None:
        decay = min(greatest, 1 - max(1, int(updates)) ** -power)
        if averages[0].is_floating_point():
            torch._foreach_lerp_(averages, present, 1 - decay)
        else:
            torch._foreach_copy_(averages, present)

    return average


def _split(batch: dict[str, Any], parts: int) -> Iterator[dict[str, Any]]:
    size = len(batch["sample"])
    if size % parts:
        raise ValueError(f"a batch of {size} does not split into {parts} equal parts")
    return _chunks(batch, size // parts)


def _chunks(batch: Batch, size: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch, `size` at a time."""
    for start in range(0, len(next(iter(batch.values()))), size):
        yield {name: value[start : start + size] for name, value in batch.items()}


def _leaf(value: Tensor) -> Tensor:
    """Return a tensor; if it is floating-point, detach it and let it collect a gradient."""
    return value.detach().requires_grad_() if value.is_floating_point() else value


def _along(gradients: Mapping[str, Tensor], features: Features, batch: Batch) -> LossOutput:
    """Return a scalar with the same gradient as the loss, given the loss's gradient for each embedding."""
    found = features.rows | features.shared
    parts = [(found[name] * gradient).sum() for name, gradient in gradients.items() if found[name].requires_grad]
    return LossOutput(torch.stack(parts).sum())


def _mean(outputs: list[LossOutput]) -> dict[str, Tensor]:
    """Return the mean of the parts' losses and metrics, in double precision, without waiting for a device."""
    each = [{"loss": output.loss, **output.metrics} for output in outputs]

    def mean(name: str) -> Tensor:
        return torch.stack([torch.as_tensor(one[name]).detach().double() for one in each]).mean()

    return {name: mean(name) for name in each[0]}
