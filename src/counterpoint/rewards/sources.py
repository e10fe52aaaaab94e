"""Open a reward and compute its curves over a video: a run of this library, a LeRobot model, or a Python function."""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.encoders.calibration import RewardForm
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.pooled import Backbone
from counterpoint.errors import BadInputError, require
from counterpoint.files import read_object
from counterpoint.rewards.model import STATE, FrozenPart, RewardModel, embed_frames, embed_text, gains

Array = NDArray[np.float64]
Frames = Mapping[str, NDArray[Any]]
"""Frames of each camera, uint8 [T, H, W, 3], and the robot's state under the key `STATE`, float [T, S]."""
EPISODE = "episode"
"""Key of the episode's number in the values that rewards share (`shared`)."""
PREFIXES = 16
"""Number of video lengths at which a LeRobot model scores a video; values in between are interpolated."""


class Curves(Protocol):
    """The curves of one video."""

    def __call__(
        self, steps: Int[NDArray[np.int64], " N"], instructions: Sequence[str], *, progress: bool = False
    ) -> Float[Array, "L N"]:
        """Return the curves, or with `progress` the progress, of a video of N steps, in any order and also repeated."""


class Reward(Protocol):
    """A reward of videos under instructions.

    Attributes:
        name: The name in tables.
        progress: True if the reward has progress in [0, 1], as its own values or by its calibration.
    """

    name: str
    progress: bool

    def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
        """Return the curves of a video.

        Args:
            frames: Frames by camera; with several cameras the curves are the mean over the cameras. The key `STATE`
                holds the robot's state, for rewards that read it.
            shared: Values that other rewards have computed from this video: embeddings, or features of a frozen
                backbone.
        """


class EncoderReward:
    """A reward of this library: the gain of its potential since the first frame; for a single frame, the potential.

    An encoder without language (VIP, TCN) needs `goals`: its reward for an instruction is the mean over images of the
    instruction's outcome.

    Args:
        model: The reward.
        name: The name in tables.

    Attributes:
        goals: For each instruction, its embedded goal images: [K, D], or [K, C, D] with several cameras.
        judges: With cross-fitting, the reward that judges an episode because it did not learn from it, keyed by the
            episode's number.
        run: The run's folder, if the reward is a run.
    """

    def __init__(self, model: RewardModel, name: str) -> None:
        self.model, self.name = model, name
        self.progress = model.form == "language" or model.calibration is not None
        self.goals: dict[str, Array] = {}
        self.judges: dict[int, Reward] = {}
        self.run: Path | None = None
        self._texts: dict[str, Array] = {}

    def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
        """Embed the video once; all curves are computed from these embeddings."""
        if (judge := self.judges.get(shared.get(EPISODE, -1))) is not None:
            return judge.watch(frames, shared)
        model, embedded = self.model, self._embedded(frames, shared)

        def curves(
            steps: Int[NDArray[np.int64], " N"], instructions: Sequence[str], *, progress: bool = False
        ) -> Float[Array, "L N"]:
            calibration = model.calibration if progress else None
            alone = len(steps) == 1 and calibration is None  # a change needs two frames
            form: RewardForm = "potential" if alone and model.form == "transition" else model.form
            form = form if calibration is None else calibration.form
            if form == "goal":
                each = [model.score(form, embedded[steps], self._goal(text)).mean(axis=0) for text in instructions]
                values = np.stack(each)
            else:
                values = model.score(form, embedded[steps], np.concatenate([self._text(t) for t in instructions]))
            values = values if alone else gains(values, form)
            return values if calibration is None else calibration.progress_of(values)

        return curves

    def _embedded(self, frames: Frames, shared: dict[Any, Any]) -> Float[Array, "T *C D"]:
        encoder = self.model.encoder
        if not (isinstance(encoder, DualEncoder) and encoder.config.freeze_image):
            if id(encoder) not in shared:
                shared[id(encoder)] = embed_frames(encoder, frames, self.model.batch_size)
            return np.asarray(shared[id(encoder)])
        digest = encoder.backbone_digest
        if digest not in shared:
            shared[digest] = embed_frames(FrozenPart(encoder), frames, self.model.batch_size)
        features = torch.from_numpy(shared[digest]).float().to(encoder.mean.device)
        state = torch.from_numpy(frames[STATE]) if encoder.reads_state and STATE in frames else None
        if state is not None and features.ndim == 3:  # every camera's image gets the same state
            state = state[:, None].expand(*features.shape[:2], -1)
        with torch.no_grad():
            return np.asarray(encoder.eval().embed_features(features, state).double().cpu())

    def _text(self, instruction: str) -> Float[Array, "1 D"]:
        if instruction not in self._texts:
            self._texts[instruction] = embed_text(self.model.encoder, instruction)
        return self._texts[instruction]

    def _goal(self, instruction: str) -> Float[Array, "K *C D"]:
        found, expected = f"no goal image of {instruction!r}", "training episodes under every instruction"
        require(instruction in self.goals, self.name, found, expected, "it reads no instructions: leave it out")
        return self.goals[instruction]

    def untrained(self, seed: int = 0) -> EncoderReward | None:
        """Return the same architecture with random weights; `None` if the user supplied a trainable network.

        A frozen backbone keeps its weights, because only the heads on top of it were trained.
        """
        encoder = self.model.encoder
        if not isinstance(encoder, DualEncoder):
            return None
        config: EncoderConfig = encoder.config.model_copy(update={"pretrained": None, "calibration": None})
        own = copy.deepcopy(encoder.image.backbone) if isinstance(encoder.image, Backbone) else None
        if config.image == "module" and not config.freeze_image:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh = DualEncoder(config, own if config.image == "module" else None)
        if config.freeze_image and isinstance(fresh.image, Backbone) and own is not None:
            fresh.image.backbone.load_state_dict(own.state_dict())
        fresh = fresh.to(encoder.mean.device).eval()
        form = self.model.form if self.model.form in ("similarity", "transition") else "potential"
        fresh.config = fresh.config.model_copy(update={"reward_form": form})
        return EncoderReward(RewardModel(fresh), "random weights")


class FunctionReward:
    """A Python function as a reward.

    Args:
        function: Takes frames uint8 [T, H, W, 3] and an instruction, and returns T numbers.
        name: The name in tables.
        progress: True if the function's values are progress in [0, 1].
    """

    def __init__(self, function: Callable[[Any, str], Any], name: str, *, progress: bool = False) -> None:
        self.function, self.name, self.progress = function, name, progress

    def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
        """Call the function once per curve and camera."""

        def one(view: NDArray[np.uint8], text: str) -> Array:
            values = np.asarray(self.function(view, text), dtype=np.float64)
            good = values.shape == (len(view),) and bool(np.isfinite(values).all())
            found, expected = f"shape {values.shape} for {len(view)} frames", "one finite number a frame"
            require(good, self.name, found, expected, "return an array [T]")
            return values

        def curves(
            steps: Int[NDArray[np.int64], " N"], instructions: Sequence[str], *, progress: bool = False
        ) -> Float[Array, "L N"]:
            views = [view[steps] for camera, view in frames.items() if camera != STATE]
            return np.stack([np.mean([one(view, text) for view in views], axis=0) for text in instructions])

        return curves


class LeRobotReward(FunctionReward):
    """A reward model of LeRobot: anything with `compute_reward(batch) -> (B,)`.

    The model scores the first t frames of the video, [1, t, 3, H, W], for up to `PREFIXES` values of t, as in LeRobot's
    own progress scripts. A classifier (`config.num_classes`) scores each frame, [1, 3, H, W]. Pixels are floats from 0
    to 1.

    Args:
        model: The model; `config.image_key` and `config.task_key` name its inputs.
        name: The name in tables.
        prepare: The model's preprocessor.
    """

    def __init__(
        self, model: Any, name: str, prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    ) -> None:
        config = getattr(model, "config", None)
        super().__init__(self._score, name, progress=getattr(config, "reward_output", None) == "progress")
        self.model, self.prepare, self.videos = model, prepare, not hasattr(config, "num_classes")
        keys = [key for key in getattr(config, "input_features", None) or {} if "image" in key]
        self.image = getattr(config, "image_key", None) or (keys or ["observation.images.top"])[0]
        self.task = getattr(config, "task_key", None) or "task"

    def _score(self, frames: NDArray[np.uint8], text: str) -> Array:
        pixels = torch.from_numpy(np.ascontiguousarray(frames)).movedim(-1, 1).float() / 255
        count = min(PREFIXES, len(frames)) if self.videos else len(frames)
        lengths = np.unique(np.linspace(1, len(frames), count).round().astype(np.int64))
        values = []
        for length in lengths.tolist():
            batch = {self.image: (pixels[:length] if self.videos else pixels[length - 1])[None], self.task: [text]}
            with torch.no_grad():
                found = self.model.compute_reward(batch if self.prepare is None else self.prepare(batch))
            values.append(float(torch.as_tensor(found).reshape(-1)[0]))
        return np.interp(np.arange(1, len(frames) + 1), lengths, values)


def ramp(frames: NDArray[np.uint8], instruction: str) -> Float[Array, " T"]:
    """Return values that rise evenly from 0 to 1, like a clock, whatever the frames show."""
    return np.linspace(0.0, 1.0, len(frames))


def constant(frames: NDArray[np.uint8], instruction: str) -> Float[Array, " T"]:
    """Return 0.5 for every frame."""
    return np.full(len(frames), 0.5)


def open_reward(source: str, *, name: str = "", device: str = "cpu") -> Reward:
    """Open a reward.

    Args:
        source: A run, a folder of saved weights or a Hub id; a folder of a LeRobot reward model (its config.json has a
            `type`); or `module:name`, a function of frames and instruction or an object with `compute_reward`.
        name: The reward's name in tables; by default the name of the source.
        device: The device that computes.

    Raises:
        BadInputError: If the source is none of these.
        MissingExtraError: If LeRobot is needed and not installed.
    """
    found = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", source)
    if found:
        thing = _imported(*found.groups())
        if hasattr(thing, "compute_reward"):
            return LeRobotReward(thing, name or source)
        require(callable(thing), source, type(thing).__name__, "a function (frames, instruction) -> [T]", "name one")
        return FunctionReward(thing, name or source)
    config = Path(source) / "config.json"
    if config.is_file():
        settings = read_object(config, "a configuration", "restore the file")
        if "type" in settings and "kind" not in settings:
            return _lerobot(source, name or Path(source).name, device)
    reward = EncoderReward(RewardModel.from_pretrained(source, device=device), name or Path(source).resolve().name)
    reward.run = config.parent if config.is_file() else None
    return reward


def _imported(module: str, name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        hint = "write module:name, with the module's file in this folder or installed"
        raise BadInputError(f"{module}:{name}", str(error), "a function that can be imported", hint) from None


def _lerobot(source: str, name: str, device: str) -> LeRobotReward:
    names = ("counterpoint.rewards.lerobot_plugin", "lerobot.configs.rewards", "lerobot.rewards.factory")
    _, configs, factory = map(importlib.import_module, names)  # the first module registers our own type
    config = configs.RewardModelConfig.from_pretrained(source)
    config.device, config.pretrained_path = device, source
    model = factory.make_reward_model(config)
    prepare, _ = factory.make_reward_pre_post_processors(config)
    return LeRobotReward(model, name, prepare)
