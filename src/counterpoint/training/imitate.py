"""Settings of a diffusion policy's training: the policy, what stands beside its loss, and how long.

The numbers of ICon's experiments (Wang and Lin, 2025, Appendix A) and, where that is silent, of Diffusion Policy's
configurations, which it follows.

From demonstrations to a diffusion policy, with ICon, Crossway Diffusion or any objective on transitions beside it.

`imitation_config.py` has the settings.

`counterpoint train icon_diff_c-robosuite` and its like: demonstrations become a diffusion policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pydantic import Field, model_validator

from counterpoint.config import FrozenConfig, override, read_recipe, recipe_names, validate
from counterpoint.data.cache import cached
from counterpoint.data.formats import split_names
from counterpoint.data.masks.robot import mask_camera, masked_cameras, rgb_cameras
from counterpoint.data.prepared import validation_split
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import Cameras, EpisodeStore, camera_names
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.files import write_atomically
from counterpoint.objectives import StepObjective, objective_config
from counterpoint.objectives.crossway import CrosswayConfig, CrosswayDecoder
from counterpoint.objectives.icon import IConConfig
from counterpoint.objectives.imitation import AuxiliaryTerm, CrosswayTerm, IConTerm, Imitation, ObjectiveTerm
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionConfig, DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.provenance import provenance
from counterpoint.training.clone_command import DEMONSTRATIONS, CloneDataConfig, chosen_demonstrations
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.fit import BatchSource, TrainConfig, train
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.run import FREE, claim_run

__all__ = [
    "AuxiliaryConfig",
    "ImitationConfig",
    "ImitationRunConfig",
    "build_imitation",
    "imitate",
    "is_imitation",
    "prepared_demonstrations",
    "train_imitation",
]


PAPER_ENCODER = ObservationConfig(kind="vit", size=224, stack=1, cameras=2)


class AuxiliaryConfig(FrozenConfig):
    """An objective on transitions beside the imitation loss.

    Attributes:
        weight: lambda.
        objective: `name`, of a `StepObjective`, and its settings.
    """

    weight: float = Field(default=1.0, gt=0)
    objective: dict[str, Any]


class ImitationConfig(FrozenConfig):
    """A diffusion policy and how it is trained.

    Attributes:
        encoder: Of one moment's pictures, one network a camera; the paper's ViT-S/16 at 224 x 224.
        frame: Height and width of the demonstrations' pictures, in pixels, out of which windows of the encoder's size
            are cut: at random in training, from the middle when acting.
        use_state: Read proprioception too.
        diffusion: The denoising network and its schedule.
        icon: Inter-token contrast in the encoder; `None` for none.
        crossway: Reconstruction from the U-Net's bottleneck (Crossway Diffusion); `None` for none.
        auxiliary: Another objective of the library; `None` for none.
        optimizer: AdamW at 1e-4 and a moving average, as Diffusion Policy's. The matrices of a transformer decay
            by 1e-3 whatever `weight_decay` says.
        train: How long and in what batches: 600 epochs of 64 in the paper, 300 where a policy is fine-tuned.
    """

    encoder: ObservationConfig = PAPER_ENCODER
    frame: int = Field(default=256, ge=1)
    use_state: bool = True
    diffusion: DiffusionConfig = DiffusionConfig()
    icon: IConConfig | None = None
    crossway: CrosswayConfig | None = None
    auxiliary: AuxiliaryConfig | None = None
    optimizer: OptimizerConfig = OptimizerConfig(
        name="adamw",
        lr=1e-4,
        betas=(0.95, 0.999),
        weight_decay=1e-6,
        schedule="cosine",
        warmup_steps=500,
        ema=0.9999,
        ema_power=0.75,
    )
    train: TrainConfig = TrainConfig(epochs=600, batch_size=64)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.encoder.stack != 1:
            raise ValueError("encoder.stack must be 1: a policy sees obs_steps moments, each by itself")
        if self.frame < self.encoder.size:
            raise ValueError(f"frame = {self.frame} is smaller than the encoder's {self.encoder.size} pixels")
        if self.icon is not None and self.encoder.kind != "vit":
            raise ValueError(f"icon needs an encoder with tokens, of kind 'vit', not {self.encoder.kind!r}")
        if self.crossway is not None and self.diffusion.network != "unet":
            raise ValueError("crossway reads the bottleneck of a U-Net: it needs diffusion.network = 'unet'")
        return self


def imitate(
    config: ImitationConfig,
    store: EpisodeStore,
    *,
    run: Path,
    camera: Cameras = None,
    validation: EpisodeStore | None = None,
    start_from: DiffusionPolicy | None = None,
    on_checkpoint: Callable[[int, DiffusionPolicy], None] | None = None,
    recorded: tuple[int, int] | None = None,
    about: dict[str, Any] | None = None,
) -> DiffusionPolicy:
    """Train a diffusion policy on demonstrations; the same call again continues an interrupted run.

    Args:
        config: What to train, and how.
        store: Demonstrations, their pictures of `config.frame` pixels; with masks for ICon.
        run: The run's folder.
        camera: The encoder's cameras in order; the store's first ones by default.
        validation: Episodes to score now and then.
        start_from: A policy to fine-tune. Its normalisation stays: its weights have learned with it.
        on_checkpoint: Told the steps done and the averaged policy of that moment, every `train.eval_every` steps and
            after the last.
        recorded: Height and width the pictures were recorded at, where `store` holds them resized; an evaluation draws
            and resizes alike.
        about: What else tells this run from others, kept in its `config.json`.

    Returns:
        The averaged policy after the last step, ready to act, as it is saved in `run/model`.

    Raises:
        BadInputError: Demonstrations without actions, proprioception or masks that are asked for, of another size,
            a run of other settings; a loss that stops being finite.
    """
    accelerator = accelerator_of(config.train.precision)
    cameras = camera_names(camera, store.cameras, config.encoder.cameras)
    settings = config.model_dump(mode="json")
    identity: dict[str, Any] = {"fingerprint": store.fingerprint, "cameras": list(cameras)} | (about or {})
    claim_run(run, settings | identity, {"train": FREE})
    set_seed(config.train.seed)
    objective = build_imitation(config, store, cameras, start_from, recorded)
    source, scored = _sources(objective, store, validation, config, cameras, accelerator)
    total = config.train.total_steps(source.epoch_size)
    learner = ObjectiveLearner(objective, config.optimizer, total_steps=total, accelerator=accelerator)
    if accelerator.is_main_process:
        record = settings | identity | {"provenance": provenance()}
        write_atomically(run / "config.json", json.dumps(record, indent=1))

    def evaluation(done: int) -> dict[str, float]:
        if on_checkpoint is not None:
            # What an evaluation draws shall not change what is learned after it.
            devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            with torch.random.fork_rng(devices=devices):
                on_checkpoint(done, _policy(learner))
        return {}

    train(
        learner,
        source,
        scored,
        config.train,
        run=run,
        accelerator=accelerator,
        settings=settings,
        evaluation=evaluation,
    )
    if accelerator.is_main_process:
        _policy(learner).save_pretrained(run / "model")
    accelerator.wait_for_everyone()
    # Read back: on the learner's own hang the hooks of auxiliary terms.
    return DiffusionPolicy.from_pretrained(run / "model", map_location=str(accelerator.device))


def build_imitation(
    config: ImitationConfig,
    store: EpisodeStore,
    cameras: tuple[str, ...],
    start_from: DiffusionPolicy | None = None,
    recorded: tuple[int, int] | None = None,
) -> Imitation:
    """The policy, normalised by the demonstrations, and its auxiliary terms.

    Args:
        config: Which.
        store: Demonstrations: training episodes alone.
        cameras: The encoder's, in order.
        start_from: A policy to take weights and normalisation from.
        recorded: Height and width the pictures were recorded at; by default the store's.

    Raises:
        BadInputError: When demonstrations, masks or the policy to start from do not fit.
    """
    demonstrations = Demonstrations.of(store, recorded or (config.frame, config.frame))
    height, width = store.frames(0, np.zeros(1, np.int64), cameras[0]).shape[1:3]
    if (height, width) != (config.frame, config.frame):
        raise BadInputError(
            "frames",
            f"{height} x {width}",
            f"{config.frame} x {config.frame}, the configuration's frame",
            "open the data through `counterpoint.data.cache.cached(store, size=...)`, or set frame",
        )
    if config.icon is not None and not set(masked_cameras(store.cameras)) & set(cameras):
        raise BadInputError(
            "masks",
            f"cameras {list(store.cameras)}",
            f"a mask of one of {list(cameras)} at least, such as {mask_camera(cameras[0])!r}",
            "record masks with the data, make them with `counterpoint data masks`, or leave icon out",
        )
    if config.use_state and demonstrations.state is None:
        raise BadInputError(
            "demonstrations",
            "no state",
            "proprioception, which use_state asks for",
            "set use_state = false, or use demonstrations with it",
        )
    policy = _fresh_policy(config, demonstrations, cameras)
    if start_from is not None:
        _take_weights(policy, start_from)
    terms: dict[str, AuxiliaryTerm] = {}
    if config.icon is not None:
        masked = tuple(mask_camera(camera) in store.cameras for camera in cameras)
        terms["icon"] = IConTerm(policy.encoder, masked, config.icon)
    if config.crossway is not None:
        decoder = CrosswayDecoder(
            config.diffusion.down_dims[-1],
            len(cameras),
            config.encoder.size,
            policy.state_dim if config.use_state else 0,
            config.crossway,
        )
        terms["crossway"] = CrosswayTerm(decoder, config.crossway.weight)
    if config.auxiliary is not None:
        kind, settings = objective_config(config.auxiliary.objective, "auxiliary", StepObjective)
        dims = (demonstrations.action_dim,) if kind.actions else ()
        objective = kind(policy.encoder, *dims, settings)
        crop = config.encoder.size if config.frame > config.encoder.size else 0
        terms[config.auxiliary.objective["name"]] = ObjectiveTerm(objective, config.auxiliary.weight, crop=crop)
    return Imitation(policy, terms)


def _fresh_policy(config: ImitationConfig, demonstrations: Demonstrations, cameras: tuple[str, ...]) -> DiffusionPolicy:
    encoder = ObservationEncoder(config.encoder)
    state_dim = demonstrations.state_dim if config.use_state else 0
    head = DiffusionHead(demonstrations.action_dim, encoder.embed_dim + state_dim, config.diffusion)
    head.normalizer.normalise_by(demonstrations.actions)
    return DiffusionPolicy(
        encoder,
        head,
        state_dim=demonstrations.state_dim,
        use_state=config.use_state,
        frame=config.frame,
        cameras=cameras,
        demonstrations=demonstrations,
    )


def _take_weights(policy: DiffusionPolicy, start: DiffusionPolicy) -> None:
    mine, theirs = policy.state_dict(), start.state_dict()
    differ = [key for key in mine if key not in theirs or theirs[key].shape != mine[key].shape]
    if differ or len(mine) != len(theirs):
        raise BadInputError(
            "start_from",
            f"a policy whose {(differ or list(theirs))[0]} has another shape",
            "a policy of the same networks, cameras, action and state dimensions",
            "configure encoder and diffusion as in the policy's config.json",
        )
    policy.load_state_dict(theirs)


def _sources(
    objective: Imitation,
    store: EpisodeStore,
    validation: EpisodeStore | None,
    config: ImitationConfig,
    cameras: tuple[str, ...],
    accelerator: Accelerator,
) -> tuple[BatchSource, BatchSource | None]:
    """Batches of training and of validation, which scores the policy alone and needs nothing that terms ask for."""
    common = {
        "batch_size": config.train.batch_size,
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "workers": config.train.workers,
    }
    spec = objective.sampling()
    source = Sampler(store, spec.bind(store, cameras), seed=config.train.seed, **common)
    if validation is None:
        return source, None
    plain = replace(spec.with_read("masks", None), beside={})
    return source, Sampler(validation, plain.bind(store, cameras), seed=config.train.seed, **common)


def _policy(learner: ObjectiveLearner) -> DiffusionPolicy:
    policy = learner.exports()["policy"]
    assert isinstance(policy, DiffusionPolicy)
    return policy


class ImitationRunConfig(ImitationConfig):
    """Everything a recipe of imitation says.

    Attributes:
        data: Which demonstrations.
    """

    data: CloneDataConfig = CloneDataConfig()


def is_imitation(name: str) -> bool:
    """Whether `counterpoint train NAME` trains a diffusion policy: a recipe with a `[diffusion]` section."""
    known = name.endswith(".toml") or name in recipe_names()
    return known and "diffusion" in read_recipe(name)


def train_imitation(
    name: str, data: str | None, out: Path, overrides: Mapping[str, Any], *, start_from: str | None = None
) -> Path:
    """Train a diffusion policy on demonstrations; running it again continues where it stopped.

    Args:
        name: A recipe's name or the path of a TOML file.
        data: A data set of demonstrations with actions, and with masks where ICon is asked for.
        out: The run's folder.
        overrides: Dotted keys and their values.
        start_from: A run whose policy is fine-tuned; random weights without.

    Returns:
        The folder of the policy, `out/model`.

    Raises:
        BadInputError: When the configuration, the demonstrations or the run's folder cannot be used.
    """
    if data is None:
        raise BadInputError("--data", "nothing", "demonstrations", "name a data set")
    config = validate(ImitationRunConfig, override(read_recipe(name), overrides), f"train {name}")
    source = chosen_demonstrations(Path(data), config.data)
    cameras = camera_names(config.data.camera, rgb_cameras(source.cameras), config.encoder.cameras)
    store = prepared_demonstrations(source, cameras, config)
    held_out = validation_split(Path(data), "val")
    validation = None
    if config.train.eval_every and held_out is not None and held_out in split_names(Path(data)):
        chosen = config.data.model_copy(update={"split": held_out, "episodes": None})
        validation = prepared_demonstrations(chosen_demonstrations(Path(data), chosen), cameras, config)
    start = None if start_from is None else DiffusionPolicy.from_pretrained(start_from)
    height, width = source.frames(0, np.zeros(1, np.int64), cameras[0]).shape[1:3]
    imitate(
        config,
        store,
        run=out,
        camera=cameras,
        validation=validation,
        start_from=start,
        recorded=(height, width),
        about={"start_from": None if start_from is None else str(Path(start_from).resolve())},
    )
    about = {"path": str(Path(data).resolve()), "cameras": cameras}
    write_atomically(out / DEMONSTRATIONS, json.dumps(about, indent=1) + "\n")
    return out / "model"


def prepared_demonstrations(source: EpisodeStore, cameras: tuple[str, ...], config: ImitationRunConfig) -> EpisodeStore:
    """The training store of these cameras at the policy's frame size, with their masks where ICon wants them."""
    masks = tuple(mask_camera(camera) for camera in cameras) if config.icon is not None else ()
    kept = (*cameras, *(mask for mask in masks if mask in source.cameras))
    root = Path(config.data.cache) if config.data.cache else None
    return cached(source, size=config.frame, root=root, cameras=kept)
