"""Recipes of kind `imitation`: a diffusion policy learns from demonstrations, with optional auxiliary losses.

The defaults are those of ICon's experiments (Wang and Lin, 2025, Appendix A). Values that the appendix does not give
are from Diffusion Policy's configurations, which ICon follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from accelerate.utils import set_seed
from pydantic import BaseModel, Field, create_model, model_validator

from counterpoint.config import FrozenConfig, validate
from counterpoint.data.cache import prepared
from counterpoint.data.robot_masks import mask_camera, rgb_cameras
from counterpoint.data.spec import BoundSpec
from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import relocated, require
from counterpoint.formats import split_names, validation_split
from counterpoint.objectives import StepObjective, objective_class
from counterpoint.objectives.crossway import CrosswayConfig, CrosswayDecoder
from counterpoint.objectives.icon import IConConfig
from counterpoint.objectives.imitation import AuxiliaryTerm, CrosswayTerm, IConTerm, Imitation, ObjectiveTerm
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy, condition_width
from counterpoint.policies.networks import DiffusionConfig
from counterpoint.training.cloning import (
    DemonstrationsConfig,
    RolloutsConfig,
    check_frames,
    frame_size,
    open_demonstrations,
    weighted,
    weights_identity,
    with_states,
)
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.offline import OfflineRecipe, Opened
from counterpoint.training.plan import Given, objective_section
from counterpoint.training.settings import TrainConfig

PAPER_ENCODER = ObservationConfig(kind="vit", size=224, stack=1, cameras=2)


class NoObjective(FrozenConfig):
    """The settings for no auxiliary objective."""

    name: Literal["none"] = "none"


class AuxiliaryConfig(FrozenConfig):
    """An objective on transitions that is added to the imitation loss.

    Attributes:
        weight: Weight of the objective in the loss (lambda); 0 leaves the objective out.
        objective: The objective and its settings; no objective if its name is `none`.
    """

    weight: float = Field(default=1.0, ge=0)
    objective: Any = NoObjective()

    @model_validator(mode="before")
    @classmethod
    def _type(cls, tree: Any) -> Any:
        """Return the section with its settings read into the configuration class of the objective that it names."""
        return tree | {"objective": _auxiliary(tree, "auxiliary")} if isinstance(tree, dict) else tree


def _auxiliary(section: Mapping[str, Any], where: str) -> FrozenConfig:
    """Return the settings of the objective in an auxiliary section."""
    own = section.get("objective", NoObjective())
    if isinstance(own, FrozenConfig):
        return own
    none = isinstance(own, Mapping) and own.get("name") == "none"
    return validate(NoObjective if none else objective_section(section, where, StepObjective), own, where)


class ImitationRecipe(OfflineRecipe):
    """A diffusion policy and its training.

    Attributes:
        encoder: The encoder of the images of one time step, with one network per camera; by default the paper's
            ViT-S/16 at 224 x 224.
        frame: Height and width of the demonstrations' images, in pixels. They are cropped to the encoder's size: at
            random in training, at the centre when the policy acts.
        use_state: True for a policy that also reads proprioception.
        state_embed_dim: Outputs of the linear layer that embeds proprioception; 0 passes proprioception on as it is.
        diffusion: The denoising network and its schedule.
        icon: Inter-token contrast (ICon) in the encoder; off with a weight of 0.
        crossway: Reconstruction from the U-Net's bottleneck (Crossway Diffusion); off with a weight of 0.
        auxiliary: Another objective of this library that is added to the loss; none by default.
        data: The demonstrations.
        evaluation: Rollouts in a simulator while training; none by default.
        optimizer: AdamW at 1e-4 and a moving average, as in Diffusion Policy. The matrices of a transformer always have
            a weight decay of 1e-3, whatever `weight_decay` is.
        train: The loop's settings; the paper takes 600 epochs with batches of 64, or 300 epochs to fine-tune a policy.
    """

    kind: Literal["imitation"] = "imitation"
    encoder: ObservationConfig = PAPER_ENCODER
    frame: int = Field(default=256, ge=1)
    use_state: bool = True
    state_embed_dim: int = Field(default=128, ge=0)
    diffusion: DiffusionConfig = DiffusionConfig()
    icon: IConConfig = IConConfig(weight=0)
    crossway: CrosswayConfig = CrosswayConfig(weight=0)
    auxiliary: AuxiliaryConfig = AuxiliaryConfig()
    data: DemonstrationsConfig = DemonstrationsConfig()
    evaluation: RolloutsConfig = RolloutsConfig()
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
        if self.icon.weight and self.encoder.kind != "vit":
            raise ValueError(f"icon needs an encoder with tokens, of kind 'vit', not {self.encoder.kind!r}")
        if self.crossway.weight and self.diffusion.network != "unet":
            raise ValueError("crossway reads the bottleneck of a U-Net: it needs diffusion.network = 'unet'")
        beside = bool(self.crossway.weight) or not isinstance(self.auxiliary.objective, NoObjective)
        if not self.encoder.cameras and (beside or not self.use_state):
            raise ValueError("a policy without cameras needs use_state = true, and has neither crossway nor auxiliary")
        return self

    @classmethod
    def sections(cls, tree: Any, where: str) -> dict[str, type[BaseModel]]:
        """Return the configuration class of the section `auxiliary`, with the settings of the named objective."""
        given = _auxiliary(tree.get("auxiliary", {}), f"{where} [auxiliary]")
        fields: dict[str, Any] = {"objective": (type(given), given)}
        kind = create_model("AuxiliaryConfig", __base__=AuxiliaryConfig, __doc__=AuxiliaryConfig.__doc__, **fields)
        return {"auxiliary": kind}

    def open(self, given: Given) -> Opened:
        """Open the demonstrations and build the policy."""
        data = given.one()
        source = open_demonstrations(data, self.data)
        cameras = camera_names(self.data.camera, source, self.encoder.cameras, known=rgb_cameras(source.cameras))
        validation = None if given.validation is None else with_states(given.validation, self.data)
        with relocated("--start-from, "):
            start = None if given.start_from is None else DiffusionPolicy.from_pretrained(given.start_from)
        set_seed(self.train.seed)
        recorded = frame_size(source, cameras[0]) if cameras else None
        objective = build_imitation(self, source, cameras, start, recorded)
        weights = self.data.step_weights(data, source)
        masked = contrasted_cameras(self.icon, cameras, source.cameras) if self.icon.weight else ()
        masks = [mask_camera(camera) for camera in masked]

        def prepare(store: EpisodeStore) -> EpisodeStore:
            """Decode the cameras at the policy's frame size, with masks where ICon needs them."""
            kept = (*cameras, *(mask for mask in masks if mask in store.cameras))
            return prepared(store, size=self.frame, decode=self.data.decode, root=self.data.cache, cameras=kept)

        def build(store: EpisodeStore) -> tuple[Imitation, EpisodeStore, BoundSpec]:
            for camera in cameras[:1]:
                check_frames(store, camera, self.frame, "the configuration's frame")
            store, spec = weighted(store, objective.sampling(), weights)
            return objective, store, spec.bind(store, cameras)

        start_from = None if given.start_from is None else str(Path(given.start_from).resolve())
        identity = {"cameras": list(cameras), "start_from": start_from} | weights_identity(weights)
        held_out = validation or self._held_out(data)
        return Opened(source, held_out, prepare, build, identity, rescored=bool(self.train.eval_every))

    def rollouts(self, learner: ObjectiveLearner, folder: Path) -> Callable[[int], dict[str, float]] | None:
        """Return the function that evaluates the policy by rollouts: see `RolloutsConfig.of`."""
        return self.evaluation.of(learner, self.train.seed, folder)

    def _held_out(self, data: str | Path | EpisodeStore) -> EpisodeStore | None:
        """Return the episodes to validate on, if the data set has any."""
        if isinstance(data, EpisodeStore) or not self.train.eval_every:
            return None
        split = validation_split(Path(data), "val")
        if split is None or split not in split_names(Path(data)):
            return None
        return open_demonstrations(
            data, self.data.model_copy(update={"split": split, "episodes": None, "weights": None})
        )


def build_imitation(
    config: ImitationRecipe,
    store: EpisodeStore,
    cameras: tuple[str, ...],
    start_from: DiffusionPolicy | None = None,
    recorded: tuple[int, int] | None = None,
) -> Imitation:
    """Return the objective: a policy that is normalised by the demonstrations, with auxiliary terms of the loss.

    Args:
        config: The recipe.
        store: The demonstrations in the training split.
        cameras: The encoder's cameras, in order.
        start_from: A policy to take weights from.
        recorded: Height and width at which the images were recorded; by default those of the store.

    Raises:
        BadInputError: When demonstrations, masks or the policy to start from do not fit.
    """
    demonstrations = Demonstrations.of(store, (recorded or (config.frame, config.frame)) if cameras else None)
    config.evaluation.check(demonstrations)
    masked = contrasted_cameras(config.icon, cameras, store.cameras) if config.icon.weight else ()
    needed = "proprioception, which use_state asks for"
    hint = "set use_state = false, or use demonstrations with it"
    require(not config.use_state or demonstrations.state is not None, "demonstrations", "no state", needed, hint)
    policy = _fresh_policy(config, demonstrations, cameras)
    if start_from is not None:
        _take_weights(policy, start_from)
    terms: dict[str, AuxiliaryTerm] = {}
    if config.icon.weight:
        terms["icon"] = IConTerm(policy.encoder, [cameras.index(camera) for camera in masked], config.icon)
    if config.crossway.weight:
        decoder = CrosswayDecoder(
            config.diffusion.down_dims[-1],
            len(cameras),
            config.encoder.size,
            policy.state_dim if config.use_state else 0,
            config.crossway,
        )
        terms["crossway"] = CrosswayTerm(decoder, config.crossway.weight)
    settings = config.auxiliary.objective
    if config.auxiliary.weight and not isinstance(settings, NoObjective):
        kind = objective_class(settings.name, StepObjective)
        objective: StepObjective = kind(policy.encoder, demonstrations.action_dim, settings)
        crop = config.encoder.size if config.frame > config.encoder.size else 0
        terms[settings.name] = ObjectiveTerm(objective, config.auxiliary.weight, crop=crop)
    return Imitation(policy, terms)


def contrasted_cameras(config: IConConfig, cameras: Sequence[str], recorded: Sequence[str]) -> tuple[str, ...]:
    """Return the cameras of ICon's loss: `config.cameras`, or by default the policy's first camera that has masks.

    Args:
        config: Settings of ICon.
        cameras: The policy's cameras, in order.
        recorded: The cameras of the demonstrations, including masks.

    Raises:
        BadInputError: When the policy does not read a chosen camera, a chosen camera has no masks, or no camera has
            masks.
    """
    strange = sorted(set(config.cameras) - set(cameras))
    require(not strange, "icon.cameras", ", ".join(strange), f"some of {', '.join(cameras)}", "name the policy's own")
    able = [camera for camera in cameras if mask_camera(camera) in recorded]
    chosen = config.cameras or tuple(able[:1])
    expected = f"a mask of {' and '.join(config.cameras) or f'one of {list(cameras)} at least'}"
    hint = "record masks with the data, make them with `counterpoint data masks`, or leave icon out"
    require(chosen and set(chosen) <= set(able), "masks", f"cameras {list(recorded)}", expected, hint)
    return chosen


def _fresh_policy(config: ImitationRecipe, demonstrations: Demonstrations, cameras: tuple[str, ...]) -> DiffusionPolicy:
    encoder = ObservationEncoder(config.encoder)
    state_dim = demonstrations.state_dim if config.use_state else 0
    width = condition_width(encoder, state_dim, config.state_embed_dim)
    head = DiffusionHead(demonstrations.action_dim, width, config.diffusion)
    head.normalizer.normalise_by(demonstrations.actions)
    return DiffusionPolicy(
        encoder,
        head,
        state_dim=demonstrations.state_dim,
        use_state=config.use_state,
        state_embed_dim=config.state_embed_dim,
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
    # The ranges of the new demonstrations are kept, as in ICon's code: another robot's joints have other ranges.
    own = {key: mine[key] for key in mine if key.rpartition(".")[0].endswith("normalizer")}
    policy.load_state_dict(theirs | own)
