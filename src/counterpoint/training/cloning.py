"""Recipes of kind `cloning`: a policy learns from a few demonstrations (Premier-TACO, section 4 and Appendix C)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from counterpoint.config import FrozenConfig, free
from counterpoint.data.anchors import Anchors
from counterpoint.data.cache import Decode, prepared
from counterpoint.data.episode import Array
from counterpoint.data.spec import BoundSpec, Read, Spec
from counterpoint.data.store import Cameras, EpisodeStore, camera_names
from counterpoint.data.store_views import StateStore, SubsetStore, with_column
from counterpoint.encoders.embed import observations
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.weights import digest_of
from counterpoint.envs.make import make_env
from counterpoint.errors import relocated, require
from counterpoint.evaluation.evaluate import task_maker
from counterpoint.evaluation.rollout import RESULT, episode_seed, rollout, write_report
from counterpoint.formats import open_dataset, split_names
from counterpoint.objectives.base import WEIGHT
from counterpoint.objectives.cloning import FEATURES, Cloning, CloningConfig
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.encoded import EncodedPolicy
from counterpoint.progress import ProgressBar
from counterpoint.rewards.instructions import placeholders_in_words
from counterpoint.rewards.weighting import KAPPA, step_weights
from counterpoint.training.distributed import rank
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.offline import OfflineRecipe, Opened
from counterpoint.training.plan import Given
from counterpoint.training.settings import TrainConfig
from counterpoint.training.transitions import centred


class DemonstrationsConfig(FrozenConfig):
    """The choice of demonstrations.

    Attributes:
        camera: Name of the camera or, for an encoder of several cameras, their names in the encoder's order; by default
            the data's first cameras.
        split: Split to read, if the data have splits; `None` takes all episodes.
        state: Sources of the state that a policy reads: `state` (proprioception), `environment_state` (poses of
            objects, which simulators know), or both.
        instruction: Take only demonstrations of this instruction; by default demonstrations of all instructions.
        instruction_key: Key of the instructions to use, if the data record several per episode (`counterpoint data
            info` lists the keys), or `sample` to draw one of them for each sample of a batch; by default the first
            instruction that is not empty.
        episodes: Number of demonstrations; all by default.
        decode: `once` decodes all frames into a training store on disk; `always` decodes the frames of each batch when
            it is read.
        cache: Folder for training stores; by default the user's cache folder.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.
        weights: Progress file of the whole data set, which `counterpoint label` or LeRobot wrote. Steps that make more
            progress then weigh more (RA-BC); by default all weigh the same.
        weights_column: The file's column of progress.
        weights_chunk: Number of steps over which progress is compared; LeRobot takes the policy's chunk size.
        kappa: A step whose chunk makes more progress than this has the full weight; `counterpoint label` suggests one.
    """

    camera: str | tuple[str, ...] | None = None
    split: str | None = "train"
    state: tuple[Literal["state", "environment_state"], ...] = Field(default=("state",), min_length=1)
    instruction: str | None = None
    instruction_key: str | None = None
    episodes: int | None = Field(default=None, ge=1)
    decode: Decode = free("once")
    cache: str | None = free(None)
    dialect: str | None = None
    weights: str | None = None
    weights_column: str = "progress_sparse"
    weights_chunk: int = Field(default=16, ge=1)
    kappa: float = KAPPA

    def step_weights(self, data: str | Path | EpisodeStore, store: EpisodeStore) -> Array | None:
        """Return the weight of each step of the chosen demonstrations, [all steps]; `None` without a file."""
        if self.weights is None:
            return None
        whole = data if isinstance(data, EpisodeStore) else open_dataset(Path(data), dialect=self.dialect)
        options: dict[str, Any] = {"column": self.weights_column, "chunk": self.weights_chunk, "kappa": self.kappa}
        return step_weights(Path(self.weights), whole, store, **options)


class RolloutsConfig(FrozenConfig):
    """Rollouts of a policy while it is trained, every `train.eval_every` steps and at the end.

    Attributes:
        env: The environment, SUITE/TASK; `none` runs no rollouts. `--env` is a short form of this option.
        episodes: Number of episodes in one evaluation; every evaluation uses the same episodes.
        envs: Number of environments that run in parallel.
    """

    env: str = free("none")
    episodes: int = free(10, ge=1)
    envs: int = free(2, ge=1)

    def check(self, demonstrations: Demonstrations) -> None:
        """Check, before frames are decoded, that the environment exists and takes actions of the demonstrations' width.

        Raises:
            BadInputError: When the environment does not exist, or its actions have another width.
            MissingExtraError: When the simulator is not installed.
        """
        if self.env == "none":
            return
        env, hint = make_env(self.env), "evaluate where the demonstrations are from"
        env.close()
        found, expected = f"actions of {env.action_dim} dimensions", f"{demonstrations.action_dim}, as in the data"
        require(env.action_dim == demonstrations.action_dim, f"--env {self.env}", found, expected, hint)

    def of(self, learner: ObjectiveLearner, seed: int, folder: Path) -> Callable[[int], dict[str, float]] | None:
        """Return a function that rolls the learner's policy out and writes `FOLDER/result.json`.

        Returns `None` if `env` is `none`.

        Raises:
            BadInputError: When the policy cannot act in the environment.
        """
        if self.env == "none":
            return None
        first = cast(EncodedPolicy, learner.exports()["policy"])
        make, until_solved = task_maker(first, self.env)
        make().close()  # raises an error now if the policy does not fit; gives a policy of several tasks the env's task
        seeds = [episode_seed(seed, 1, number) for number in range(self.episodes)]

        def evaluate(steps: int) -> dict[str, float]:
            policy = cast(EncodedPolicy, learner.exports()["policy"])
            if rank():
                return {}
            policy.instruction = first.instruction
            with ProgressBar("Evaluating", len(seeds), "episodes") as bar:
                results = rollout(
                    policy,
                    make,
                    seeds,
                    envs=self.envs,
                    stop_at_success=until_solved,
                    on_episode=lambda _: bar.advance(),
                )
            return write_report(folder / RESULT, results, steps=steps)

        return evaluate


class CloningRecipe(OfflineRecipe):
    """A policy that is cloned from demonstrations; the default numbers are those of Premier-TACO.

    If the encoder is frozen and images are not augmented, the demonstrations are embedded once, and the head trains on
    the features.

    Attributes:
        cloning: Settings of the policy's head, and `freeze`, which keeps the encoder fixed.
        encoder: Architecture of the encoder that is trained from scratch, if no saved encoder is given to start from.
        data: The demonstrations.
        evaluation: Rollouts in a simulator while training; none by default.
        train: The loop's settings; the paper takes 100,000 steps, with batches of 128 for dm_control and of 64 for
            LIBERO.
    """

    kind: Literal["cloning"] = "cloning"
    cloning: CloningConfig = CloningConfig()
    encoder: ObservationConfig = ObservationConfig()
    data: DemonstrationsConfig = DemonstrationsConfig()
    evaluation: RolloutsConfig = RolloutsConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-4)
    train: TrainConfig = TrainConfig(steps=100_000, batch_size=128, eval_every=0, save_every=1000, keep=1)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.cloning.freeze and self.optimizer.encoder_lr is not None:
            raise ValueError("optimizer.encoder_lr is for an encoder that trains: leave it out with cloning.freeze")
        return self

    def open(self, given: Given) -> Opened:
        """Open the demonstrations and load the encoder."""
        source = open_demonstrations(given.one(), self.data)
        if given.start_from is not None:
            with relocated("--start-from, "):
                encoder = ObservationEncoder.from_pretrained(given.start_from)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.train.seed)
                encoder = ObservationEncoder(self.encoder)
        cameras = camera_names(self.data.camera, source, encoder.config.cameras)
        size = encoder.config.size
        if encoder.takes_instruction:
            _check_instructions(encoder, sorted({info.instruction for info in source.episodes}))
        demonstrations = Demonstrations.of(source, frame_size(source, cameras[0]) if cameras else None)
        self.evaluation.check(demonstrations)
        weights = self.data.step_weights(given.one(), source)

        def build(store: EpisodeStore) -> tuple[Cloning, EpisodeStore, BoundSpec]:
            encoder.to(given.device)
            for camera in cameras:
                check_frames(store, camera, size, "the encoder's size")
            if given.start_from is None and cameras:
                centred(encoder, store, cameras)  # the demonstrations are the only frames that it gets
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.train.seed)
                dims = demonstrations.action_dim, demonstrations.state_dim
                objective = Cloning(encoder, *dims, self.cloning, demonstrations)
            spec = objective.sampling()
            changed = self.cloning.shift or self.cloning.brightness
            if not cameras or (self.cloning.freeze and not changed):
                store, spec = embedded(encoder, store, spec, cameras)
            store, spec = weighted(store, spec, weights)
            return objective, store, spec.bind(store, cameras)

        def prepare(store: EpisodeStore) -> EpisodeStore:
            return prepared(store, size=size, decode=self.data.decode, root=self.data.cache, cameras=cameras)

        def words() -> str:
            read = encoder.takes_instruction or self.cloning.language
            return placeholders_in_words(info.instruction for info in source.episodes if read and info.instruction)

        identity = {"cameras": list(cameras), "encoder": digest_of(encoder)} | weights_identity(weights)
        return Opened(source, None, prepare, build, identity, words=words)

    def rollouts(self, learner: ObjectiveLearner, folder: Path) -> Callable[[int], dict[str, float]] | None:
        """Return the function that evaluates the policy by rollouts: see `RolloutsConfig.of`."""
        return self.evaluation.of(learner, self.train.seed, folder)


@torch.no_grad()
def _check_instructions(encoder: ObservationEncoder, instructions: Sequence[str]) -> None:
    """Raise an error, before frames are decoded, if an instruction is too long for the encoder."""
    config = encoder.config
    blank = torch.zeros(1, config.cameras * config.stack, config.size, config.size, 3, dtype=torch.uint8)
    encoder.eval()  # in evaluation mode, batch statistics are not updated
    for text in instructions:
        encoder(blank, [text])


def frame_size(store: EpisodeStore, camera: str) -> tuple[int, int]:
    """Return the height and the width of a camera's frames."""
    height, width = store.frames(0, np.zeros(1, np.int64), camera).shape[1:3]
    return int(height), int(width)


def check_frames(store: EpisodeStore, camera: str, size: int, expected: str) -> None:
    """Raise `BadInputError` unless frames are `size` x `size`."""
    height, width = frame_size(store, camera)
    hint = "open the data through `counterpoint.data.cache.cached(store, size=...)`"
    found = f"{height} x {width}"
    require((height, width) == (size, size), "frames", found, f"{size} x {size}, {expected}", hint)


def open_demonstrations(data: str | Path | EpisodeStore, config: DemonstrationsConfig) -> EpisodeStore:
    """Return the demonstrations that a configuration selects; frames are decoded only when they are read.

    Raises:
        BadInputError: When the data have fewer demonstrations than asked for.
    """
    source = data
    if not isinstance(source, EpisodeStore):
        split = config.split if split_names(Path(source)) else None
        source = open_dataset(Path(source), split=split, dialect=config.dialect, instruction_key=config.instruction_key)
    instruction = config.instruction
    chosen = [n for n, info in enumerate(source.episodes) if instruction is None or info.instruction == instruction]
    wanted = config.episodes or max(1, len(chosen))
    found = f"{len(chosen)} demonstrations" + (f" of {instruction!r}" if instruction else "")
    known = sorted({info.instruction for info in source.episodes})[:5]
    where = "data" if isinstance(data, EpisodeStore) else data
    hint = "choose another instruction, or ask for fewer"
    require(len(chosen) >= wanted, where, found, f"{wanted} or more; its instructions are {known}", hint)
    return with_states(
        source if len(chosen) == wanted == len(source.episodes) else SubsetStore(source, chosen[:wanted]), config
    )


def with_states(store: EpisodeStore, config: DemonstrationsConfig) -> EpisodeStore:
    """Return a view of the store whose `state` joins the sources in `config.state`."""
    return store if config.state == ("state",) else StateStore(store, config.state)


def weighted(store: EpisodeStore, spec: Spec, weights: Array | None) -> tuple[EpisodeStore, Spec]:
    """Return a store and a spec whose batches hold the weight of each sample's step, `weight` [B, H] (the last counts).

    Without weights, both are returned as they are.
    """
    if weights is None:
        return store, spec
    return with_column(store, "weights", weights), spec.with_read(WEIGHT, Read("weights", "offsets"))


def weights_identity(weights: Array | None) -> dict[str, str]:
    """Return the digest of steps' weights as a part of a run's identity; empty without weights."""
    return {} if weights is None else {"weights": hashlib.sha256(weights.tobytes()).hexdigest()}


CHUNK = 256
"""Number of observations in one forward pass."""


@torch.no_grad()
def embed_store(encoder: ObservationEncoder, store: EpisodeStore, camera: Cameras = None) -> Float[Tensor, "T D"]:
    """Return the embedding of every step, episode after episode, on the CPU; puts the encoder into evaluation mode."""
    encoder.eval()
    cameras = camera_names(camera, store, encoder.config.cameras)
    if not cameras:
        return torch.zeros(int(store.lengths.sum()), 0)
    each = [observations(encoder, store, episode, cameras, CHUNK) for episode in range(len(store.episodes))]
    return torch.cat([part for parts in each for part in parts])


def embedded(
    encoder: ObservationEncoder, store: EpisodeStore, spec: Spec, camera: Cameras = None
) -> tuple[EpisodeStore, Spec]:
    """Return a store and a spec in which features [B, H, D] of a frozen encoder, computed once, replace the frames.

    Raises:
        BadInputError: When the spec augments frames, or samples negatives from nearby steps.
    """
    plain = (
        not (encoder.config.cameras and spec.transforms) and isinstance(spec.index, Anchors) and spec.index.near is None
    )
    expected = "observations as they are, which can be embedded once"
    hint = "set shift = 0 and brightness = 0 with freeze, or train through the encoder"
    require(plain, "features", "augmented frames or near negatives", expected, hint)
    features = embed_store(encoder, store, camera).numpy()
    read = replace(spec, transforms={}).with_read("frames", None).with_read(FEATURES, Read(FEATURES, "views"))
    return with_column(store, FEATURES, features), read
