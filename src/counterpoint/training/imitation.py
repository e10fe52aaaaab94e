"""Recipes of kind `imitation`: a diffusion policy learns from demonstrations, with auxiliary losses beside it.

The numbers are those of ICon's experiments (Wang and Lin, 2025, Appendix A) and, where that is silent, of Diffusion
Policy's configurations, which it follows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from accelerate import Accelerator
from accelerate.utils import set_seed
from pydantic import Field, model_validator

from counterpoint.config import FrozenConfig, validate
from counterpoint.data.cache import cached
from counterpoint.data.formats import split_names, validation_split
from counterpoint.data.masks.robot import mask_camera, masked_cameras, rgb_cameras
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import require
from counterpoint.objectives import StepObjective, objective_class
from counterpoint.objectives.crossway import CrosswayConfig, CrosswayDecoder
from counterpoint.objectives.icon import IConConfig
from counterpoint.objectives.imitation import AuxiliaryTerm, CrosswayTerm, IConTerm, Imitation, ObjectiveTerm
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.networks import DiffusionConfig
from counterpoint.training.cloning import DemonstrationsConfig, open_demonstrations
from counterpoint.training.fit import Batches, Source
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.recipe import Recipe, TrainConfig, objective_section
from counterpoint.training.run import Run
from counterpoint.training.train import Given, Job, Plan, data_facts

PAPER_ENCODER = ObservationConfig(kind="vit", size=224, stack=1, cameras=2)


class AuxiliaryConfig(FrozenConfig):
    """An objective on transitions beside the imitation loss.

    Attributes:
        weight: lambda.
        objective: The objective and its settings.
    """

    weight: float = Field(default=1.0, gt=0)
    objective: Any

    @model_validator(mode="before")
    @classmethod
    def _type(cls, tree: Any) -> Any:
        """Give the objective's settings their class."""
        own = tree.get("objective") if isinstance(tree, dict) else None
        if not isinstance(own, dict):
            return tree
        return tree | {"objective": validate(objective_section(tree, "auxiliary", StepObjective), own, "auxiliary")}


class ImitationRecipe(Recipe):
    """A diffusion policy and how it is trained.

    Attributes:
        kind: The kind of recipe.
        encoder: The encoder of one moment's images, one network a camera; the paper's ViT-S/16 at 224 x 224.
        frame: Height and width of the demonstrations' images, in pixels, out of which windows of the encoder's size
            are cut: at random in training, from the middle when acting.
        use_state: Whether it reads proprioception too.
        diffusion: The denoising network and its schedule.
        icon: Inter-token contrast in the encoder; none by default.
        crossway: Reconstruction from the U-Net's bottleneck (Crossway Diffusion); none by default.
        auxiliary: Another objective of the library; none by default.
        data: Which demonstrations.
        optimizer: AdamW at 1e-4 and a moving average, as Diffusion Policy's. The matrices of a transformer decay
            by 1e-3 whatever `weight_decay` says.
        train: The loop: 600 epochs of 64 in the paper, 300 where a policy is fine-tuned.
    """

    kind: Literal["imitation"] = "imitation"
    encoder: ObservationConfig = PAPER_ENCODER
    frame: int = Field(default=256, ge=1)
    use_state: bool = True
    diffusion: DiffusionConfig = DiffusionConfig()
    icon: IConConfig | None = None
    crossway: CrosswayConfig | None = None
    auxiliary: AuxiliaryConfig | None = None
    data: DemonstrationsConfig = DemonstrationsConfig()
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

    @property
    def loop(self) -> TrainConfig:
        """The settings of the loop."""
        return self.train

    def plan(self, given: Given, accelerator: Accelerator) -> Plan:
        """Open the demonstrations and build the policy."""
        self.train.total_steps(1)
        data = given.one()
        source = open_demonstrations(data, self.data)
        cameras = camera_names(self.data.camera, rgb_cameras(source.cameras), self.encoder.cameras)
        height, width = source.frames(0, np.zeros(1, np.int64), cameras[0]).shape[1:3]
        start = None if given.start_from is None else DiffusionPolicy.from_pretrained(given.start_from)
        set_seed(self.train.seed)
        objective = build_imitation(self, source, cameras, start, (height, width))
        held_out = given.validation or self._held_out(data)

        def build(run: Run) -> Job:
            with accelerator.main_process_first():
                train = source if given.is_open else self._prepared(source, cameras)
                validation = held_out if given.is_open else held_out and self._prepared(held_out, cameras)
            self._check_frames(train, cameras)
            loader, scored = self._batches(objective, train, validation, cameras, accelerator)
            steps = self.train.total_steps(loader.epoch_size)
            learner = ObjectiveLearner(
                objective, self.optimizer, total_steps=steps, accelerator=accelerator, seed=self.train.seed
            )

            def save(folder: Path) -> None:
                policy = learner.exports()["policy"]
                assert isinstance(policy, DiffusionPolicy)
                policy.save_pretrained(folder)

            return Job(learner, Source(loader), save, scored)

        start_from = None if given.start_from is None else str(Path(given.start_from).resolve())
        identity = {"fingerprint": source.fingerprint, "cameras": list(cameras), "start_from": start_from}
        return Plan(identity, build, data_facts(self.data, given))

    def _held_out(self, data: str | Path | EpisodeStore) -> EpisodeStore | None:
        """Return the episodes to validate on, where the data set has any."""
        if isinstance(data, EpisodeStore) or not self.train.eval_every:
            return None
        split = validation_split(Path(data), "val")
        if split is None or split not in split_names(Path(data)):
            return None
        return open_demonstrations(data, self.data.model_copy(update={"split": split, "episodes": None}))

    def _prepared(self, source: EpisodeStore, cameras: tuple[str, ...]) -> EpisodeStore:
        """Return the cameras' training store at the policy's frame size, with masks where ICon needs them."""
        masks = tuple(mask_camera(camera) for camera in cameras) if self.icon is not None else ()
        kept = (*cameras, *(mask for mask in masks if mask in source.cameras))
        root = Path(self.data.cache) if self.data.cache else None
        return cached(source, size=self.frame, root=root, cameras=kept)

    def _check_frames(self, store: EpisodeStore, cameras: tuple[str, ...]) -> None:
        height, width = store.frames(0, np.zeros(1, np.int64), cameras[0]).shape[1:3]
        hint = "open the data through `counterpoint.data.cache.cached(store, size=...)`, or set frame"
        expected = f"{self.frame} x {self.frame}, the configuration's frame"
        require((height, width) == (self.frame, self.frame), "frames", f"{height} x {width}", expected, hint)

    def _batches(
        self,
        objective: Imitation,
        store: EpisodeStore,
        validation: EpisodeStore | None,
        cameras: tuple[str, ...],
        accelerator: Accelerator,
    ) -> tuple[Batches, Batches | None]:
        """Return the samplers of training and of validation; validation scores the policy without auxiliary terms."""
        common = {
            "batch_size": self.train.batch_size,
            "rank": accelerator.process_index,
            "world_size": accelerator.num_processes,
            "workers": self.train.workers,
        }
        spec, seed = objective.sampling(), self.train.seed
        source = Sampler(store, spec.bind(store, cameras), seed=seed, **common)
        if validation is None:
            return source, None
        plain = replace(spec.with_read("masks", None), beside={})
        return source, Sampler(validation, plain.bind(store, cameras), seed=seed, **common)


def build_imitation(
    config: ImitationRecipe,
    store: EpisodeStore,
    cameras: tuple[str, ...],
    start_from: DiffusionPolicy | None = None,
    recorded: tuple[int, int] | None = None,
) -> Imitation:
    """Return the policy, normalised by the demonstrations, and its auxiliary terms.

    Args:
        config: The recipe.
        store: Demonstrations: training episodes alone.
        cameras: The encoder's cameras, in order.
        start_from: A policy to take weights and normalisation from.
        recorded: Height and width at which the images were recorded; by default the store's.

    Raises:
        BadInputError: When demonstrations, masks or the policy to start from do not fit.
    """
    demonstrations = Demonstrations.of(store, recorded or (config.frame, config.frame))
    masked = tuple(mask_camera(camera) in store.cameras for camera in cameras)
    if config.icon is not None:
        expected = f"a mask of one of {list(cameras)} at least, such as {mask_camera(cameras[0])!r}"
        hint = "record masks with the data, make them with `counterpoint data masks`, or leave icon out"
        require(
            set(masked_cameras(store.cameras)) & set(cameras), "masks", f"cameras {list(store.cameras)}", expected, hint
        )
    needed = "proprioception, which use_state asks for"
    hint = "set use_state = false, or use demonstrations with it"
    require(not config.use_state or demonstrations.state is not None, "demonstrations", "no state", needed, hint)
    policy = _fresh_policy(config, demonstrations, cameras)
    if start_from is not None:
        _take_weights(policy, start_from)
    terms: dict[str, AuxiliaryTerm] = {}
    if config.icon is not None:
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
        settings = config.auxiliary.objective
        kind = objective_class(settings.name, StepObjective)
        objective: StepObjective = kind(policy.encoder, demonstrations.action_dim, settings)
        crop = config.encoder.size if config.frame > config.encoder.size else 0
        terms[settings.name] = ObjectiveTerm(objective, config.auxiliary.weight, crop=crop)
    return Imitation(policy, terms)


def _fresh_policy(config: ImitationRecipe, demonstrations: Demonstrations, cameras: tuple[str, ...]) -> DiffusionPolicy:
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
    found = f"a policy whose {(differ or list(theirs))[0]} has another shape"
    expected = "a policy of the same networks, cameras, action and state dimensions"
    hint = "configure encoder and diffusion as in the policy's config.json"
    require(not differ and len(mine) == len(theirs), "start_from", found, expected, hint)
    policy.load_state_dict(theirs)
