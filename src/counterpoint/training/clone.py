"""Demonstrations embedded once: what a frozen encoder without augmentation makes of them never changes.

From an encoder and a few demonstrations to a policy (Premier-TACO, section 4 and Appendix C).
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from counterpoint.config import FrozenConfig
from counterpoint.data.anchors import Anchors
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Read, Spec
from counterpoint.data.store import Cameras, EpisodeStore, camera_images, camera_names, with_column
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError, require
from counterpoint.files import write_atomically
from counterpoint.objectives.base import NonFiniteError
from counterpoint.objectives.cloning import FEATURES, Cloning, CloningConfig
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.provenance import provenance
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.fit import BatchSource, TrainConfig, train
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.run import claim_run

__all__ = ["CloneConfig", "clone", "embed_store", "embedded"]


CHUNK = 256
"""Observations a pass."""


@torch.no_grad()
def embed_store(encoder: ObservationEncoder, store: EpisodeStore, camera: Cameras = None) -> Float[Tensor, "T D"]:
    """Every step's observation through an encoder in evaluation mode, episodes end to end; on the CPU."""
    encoder.eval()
    cameras = camera_names(camera, store.cameras, encoder.config.cameras)
    device = next(encoder.parameters()).device
    parts: list[Tensor] = []
    for episode, info in enumerate(store.episodes):
        frames = torch.from_numpy(camera_images(store, episode, np.arange(info.length), cameras))
        # The steps before the first repeat it, as in the loader.
        behind = torch.arange(1 - encoder.config.stack, 1)
        steps = (torch.arange(info.length)[:, None] + behind).clamp_min(0)
        told = [info.instruction] if encoder.takes_instruction else None
        parts += [
            # [n, S, C, H, W, 3] -> the S frames of the first camera, then those of the next.
            encoder(frames[chunk].transpose(1, 2).flatten(1, 2).to(device), told).float().cpu()
            for chunk in torch.split(steps, CHUNK)
        ]
    return torch.cat(parts)


def embedded(
    encoder: ObservationEncoder, store: EpisodeStore, spec: Spec, camera: Cameras = None
) -> tuple[EpisodeStore, Spec]:
    """Replace the frames that a spec reads by features [B, H, D] of a frozen encoder, computed once.

    Raises:
        BadInputError: When the spec has random shifts or negatives.
    """
    plain = not spec.transforms and isinstance(spec.index, Anchors) and spec.index.near is None
    expected = "observations as they are, which can be embedded once"
    hint = "set shift = 0 with freeze, or train through the encoder"
    require(plain, "features", "random shifts or near negatives", expected, hint)
    features = embed_store(encoder, store, camera).numpy()
    return with_column(store, FEATURES, features), spec.with_read("frames", None).with_read(
        FEATURES, Read(FEATURES, "views")
    )


SAVE_EVERY = 1000
"""Steps between checkpoints where nothing is evaluated."""


class CloneConfig(FrozenConfig):
    """How a policy is cloned; Premier-TACO's numbers.

    Attributes:
        steps: Gradient steps; 100,000 in the paper for dm_control.
        batch_size: 128; 64 for LIBERO.
        lr: Of Adam.
        seed: Of the head's initial weights and of every draw.
        cloning: Which head, and what becomes of the encoder.
    """

    steps: int = Field(default=100_000, ge=1)
    batch_size: int = Field(default=128, ge=1)
    lr: float = Field(default=1e-4, gt=0)
    seed: int = Field(default=0, ge=0)
    cloning: CloningConfig = CloningConfig()


def clone(
    encoder: ObservationEncoder,
    store: EpisodeStore,
    config: CloneConfig,
    *,
    evaluate_every: int = 0,
    on_evaluate: Callable[[int, ClonedPolicy], None] | None = None,
    camera: Cameras = None,
    frame: tuple[int, int] | None = None,
    run: Path | None = None,
    accelerator: Accelerator | None = None,
) -> ClonedPolicy:
    """Clone the policy of demonstrations.

    A frozen encoder without random shifts embeds the demonstrations once, and the head trains on the features.
    Neither the encoder given nor the caller's random numbers are touched.

    Args:
        encoder: Where the policy's encoder starts from.
        store: Demonstrations, their frames at the encoder's size.
        config: How.
        evaluate_every: Steps between calls of `on_evaluate`, which is called after the last step too; 0 for never.
        on_evaluate: Told the steps done and the policy of that moment (its parameters go on changing).
        camera: Which camera, or as many as the encoder has, in its order; the store's first by default.
        frame: Height and width the pictures were recorded at, kept with the policy.
        run: Folder for checkpoints, numbers and, in `model/`, the policy. The same call again continues there, from
            the last evaluation.
        accelerator: Placement and precision; by default a GPU where there is one, and float32.

    Returns:
        The policy after the last step, ready to act.

    Raises:
        BadInputError: Demonstrations without actions (or proprioception that is asked for), of
            another frame size; a run of other settings; a loss that stops being finite.
    """
    accelerator = accelerator or accelerator_of("no")
    demonstrations = Demonstrations.of(store, frame)
    cameras = camera_names(camera, store.cameras, encoder.config.cameras)
    _check_frames(encoder, store, cameras)
    current = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=current):
        torch.manual_seed(config.seed)
        objective = Cloning(
            copy.deepcopy(encoder), demonstrations.action_dim, demonstrations.state_dim, config.cloning, demonstrations
        )
        learner = ObjectiveLearner(
            objective, OptimizerConfig(lr=config.lr), total_steps=config.steps, accelerator=accelerator
        )
        source = _source(objective, store, config, cameras, accelerator)

        def evaluate(done: int) -> dict[str, float]:
            if on_evaluate is not None:
                # What an evaluation draws shall not change what is learned after it.
                with torch.random.fork_rng(devices=current):
                    on_evaluate(done, _policy(learner))
            return {}

        if run is None:
            _train(learner, source, config.steps, evaluate_every, evaluate)
        else:
            _train_in(run, learner, source, config, encoder, store, evaluate_every, evaluate)
    policy = _policy(learner)
    policy.eval()
    if run is not None and accelerator.is_main_process:
        policy.save_pretrained(run / "model")
    return policy


def _source(
    objective: Cloning, store: EpisodeStore, config: CloneConfig, cameras: tuple[str, ...], accelerator: Accelerator
) -> BatchSource:
    spec = objective.sampling()
    if config.cloning.freeze and not config.cloning.shift:
        store, spec = embedded(objective.encoder, store, spec, cameras)
    return Sampler(
        store,
        spec.bind(store, cameras),
        batch_size=config.batch_size,
        seed=config.seed,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )


def _train(
    learner: ObjectiveLearner,
    source: BatchSource,
    steps: int,
    evaluate_every: int,
    evaluate: Callable[[int], dict[str, float]],
) -> None:
    for step, batch in enumerate(source.batches(0, steps)):
        try:
            learner.update(batch, step)
        except NonFiniteError as error:
            raise BadInputError(
                f"training step {step + 1}",
                str(error),
                "a finite loss and finite gradients",
                "lower the learning rate, or look at the demonstrations",
            ) from None
        if evaluate_every and ((step + 1) % evaluate_every == 0 or step + 1 == steps):
            evaluate(step + 1)


def _train_in(
    run: Path,
    learner: ObjectiveLearner,
    source: BatchSource,
    config: CloneConfig,
    encoder: ObservationEncoder,
    store: EpisodeStore,
    evaluate_every: int,
    evaluate: Callable[[int], dict[str, float]],
) -> None:
    settings: dict[str, object] = {
        "clone": config.model_dump(mode="json"),
        "encoder": {"config": encoder.config.model_dump(mode="json"), "sha256": _digest(encoder)},
        "data": {"fingerprint": store.fingerprint},
    }
    claim_run(run, settings, {})
    accelerator = learner.accelerator
    if accelerator.is_main_process:
        write_atomically(run / "config.json", json.dumps(settings | {"provenance": provenance()}, indent=1))
    loop = TrainConfig(
        steps=config.steps,
        batch_size=config.batch_size,
        seed=config.seed,
        eval_every=evaluate_every,
        save_every=evaluate_every or SAVE_EVERY,
        keep=1,
        trackers=(),
    )
    train(learner, source, None, loop, run=run, accelerator=accelerator, settings=settings, evaluation=evaluate)


def _policy(learner: ObjectiveLearner) -> ClonedPolicy:
    policy = learner.exports()["policy"]
    assert isinstance(policy, ClonedPolicy)
    return policy


def _digest(encoder: ObservationEncoder) -> str:
    digest = hashlib.sha256()
    for name, value in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _check_frames(encoder: ObservationEncoder, store: EpisodeStore, cameras: tuple[str, ...]) -> None:
    size = encoder.config.size
    for camera in cameras:
        height, width = store.frames(0, np.zeros(1, np.int64), camera).shape[1:3]
        if (height, width) != (size, size):
            raise BadInputError(
                "demonstrations",
                f"frames of {height} x {width}",
                f"{size} x {size}, the encoder's size",
                "open them through `counterpoint.data.cache.cached(store, size=...)`",
            )
