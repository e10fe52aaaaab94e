"""Open a reward and compute its curves over a video: a run of this library, a LeRobot model, or a Python function."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from counterpoint.encoders.calibration import RewardForm
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.hub import is_foreign
from counterpoint.encoders.pooled import Backbone
from counterpoint.errors import BadInputError, MissingExtraError, require
from counterpoint.rewards.embedding import STATE, FrozenPart, embed_frames, embed_text, reads_state
from counterpoint.rewards.model import RewardModel, gains
from counterpoint.workers import IN_PROCESS, Foreign

if TYPE_CHECKING:
    from counterpoint.rewards.foreign import Scorer
    from counterpoint.rewards.isolated import ScoreCache

Array = NDArray[np.float64]
Frames = Mapping[str, NDArray[Any]]
"""Frames of each camera, uint8 [T, H, W, 3], and the robot's state under the key `STATE`, float [T, S]."""
EPISODE = "episode"
"""Key of the episode's number in the values that rewards share (`shared`)."""


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

    @property
    def reads_state(self) -> bool:
        """True if the encoder reads the robot's state."""
        return reads_state(self.model.encoder)

    def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
        """Embed the video once; all curves are computed from these embeddings."""
        if (judge := self.judges.get(shared.get(EPISODE, -1))) is not None:
            return judge.watch(frames, shared)
        model, embedded = self.model, self.embedded(frames, shared)

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
            return values if calibration is None else calibration.progress_of(values, instructions)

        return curves

    def embedded(self, frames: Frames, shared: dict[Any, Any]) -> Float[Array, "T *C D"]:
        """Return the embeddings of a video; arguments are those of `watch`."""
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


@dataclass(frozen=True)
class Prediction:
    """The prediction of a reward for the T frames of a video under one instruction.

    Attributes:
        progress: The reward's values, progress in [0, 1] if the reward has it.
        success: True for frames at which the task is done; `None` for a reward that does not say.
        stage: Number of the stage that a frame belongs to; `None` for a reward without stages.
        known: True for frames that the reward judged; values between them are interpolated.
    """

    progress: Float[Array, " T"]
    success: Bool[NDArray[np.bool_], " T"] | None = None
    stage: Int[NDArray[np.int64], " T"] | None = None
    known: Bool[NDArray[np.bool_], " T"] | None = None

    @classmethod
    def of(cls, arrays: Mapping[str, Array], length: int, name: str) -> Prediction:
        """Check the scores of `length` frames by a model of others.

        Raises:
            BadInputError: If an array has another length, or a known value is not finite.
        """
        strange = sorted(arrays.keys() - {field.name for field in fields(cls)})
        hint = "return an array [T], or such arrays by name"
        require(not strange, name, f"{', '.join(strange)}", "progress, success, stage and known", hint)
        require("progress" in arrays, name, f"{', '.join(arrays) or 'nothing'}", "progress [T]", hint)
        for key, values in arrays.items():
            found = f"{key} of shape {values.shape} for {length} frames"
            require(values.shape == (length,), name, found, "one number a frame", hint)
        known = arrays["known"].astype(bool) if "known" in arrays else np.ones(length, bool)
        for key, values in arrays.items():
            finite = known.any() and np.isfinite(values[known]).all()
            require(finite, name, f"{key} that is not finite", "one finite number a frame", hint)
        at = np.flatnonzero(known)
        filled = np.interp(np.arange(length), at, arrays["progress"][at])
        return cls(
            filled,
            arrays["success"].astype(bool) if "success" in arrays else None,
            arrays["stage"].astype(np.int64) if "stage" in arrays else None,
            known if "known" in arrays else None,
        )


class FunctionReward:
    """A function of frames and an instruction as a reward, such as a model of others.

    Args:
        function: The function, in this process or in its own.
        name: The name in tables.
        progress: True if the function's values are progress in [0, 1]; by default what its `progress` says.
        cache: Scores that were computed before.

    Attributes:
        files: Digest of the model's files; empty for a function that was not opened by its source.
        stages: Names of the stages that the function numbers; empty if they are those of the scored episode, in order.
    """

    def __init__(
        self, function: Scorer, name: str, *, progress: bool | None = None, cache: ScoreCache | None = None
    ) -> None:
        self.function, self.name, self.cache = function, name, cache
        self.files = ""
        self.progress = bool(getattr(function, "progress", False) if progress is None else progress)
        self.reads_state = bool(getattr(function, "reads_state", False))
        self.stages: tuple[str, ...] = tuple(getattr(function, "stages", ()))

    def predict(self, frames: Frames, instruction: str) -> Prediction:
        """Return the prediction for a video; with several cameras the mean of progress, and what the first one says.

        Raises:
            BadInputError: If the function fails, or its answer is not one number a frame.
        """
        beside = {"state": frames[STATE]} if self.reads_state else {}
        each = [self._one(view, instruction, **beside) for camera, view in frames.items() if camera != STATE]
        return replace(each[0], progress=np.mean([one.progress for one in each], axis=0))

    def _one(self, view: NDArray[np.uint8], text: str, **beside: Any) -> Prediction:
        from counterpoint.rewards.foreign import as_scores

        key = self.cache.key(view, text, **beside) if self.cache else ""
        kept = self.cache.get(key) if self.cache else None
        try:
            found = as_scores(self.function(view, text, **beside)) if kept is None else kept
        except BadInputError:
            raise
        except Exception as error:  # a model may raise anything
            hint = "repair it, or leave it out"
            raise BadInputError(self.name, f"{type(error).__name__}: {error}", "scores", hint) from error
        prediction = Prediction.of(found, len(view), self.name)
        if self.cache and kept is None:
            self.cache.put(key, found)
        return prediction

    def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
        """Call the function once per curve and camera."""

        def curves(
            steps: Int[NDArray[np.int64], " N"], instructions: Sequence[str], *, progress: bool = False
        ) -> Float[Array, "L N"]:
            part = {camera: view[steps] for camera, view in frames.items()}
            return np.stack([self.predict(part, text).progress for text in instructions])

        return curves


class TolerantReward(FunctionReward):
    """A function that may fail: after its first failure, its values are 0 and it is not called again.

    Args:
        reward: The function.

    Attributes:
        failure: The failure, if there was one.
    """

    failure: BadInputError | None = None

    def __init__(self, reward: FunctionReward) -> None:
        super().__init__(reward.function, reward.name, progress=reward.progress, cache=reward.cache)

    def predict(self, frames: Frames, instruction: str) -> Prediction:
        """Return the prediction for a video, or zeros."""
        if self.failure is None:
            try:
                return super().predict(frames, instruction)
            except BadInputError as error:
                self.failure = error
        return Prediction(np.zeros(len(next(iter(frames.values())))))


def ramp(frames: NDArray[np.uint8], instruction: str) -> Float[Array, " T"]:
    """Return values that rise evenly from 0 to 1, like a clock, whatever the frames show."""
    return np.linspace(0.0, 1.0, len(frames))


def constant(frames: NDArray[np.uint8], instruction: str) -> Float[Array, " T"]:
    """Return 0.5 for every frame."""
    return np.full(len(frames), 0.5)


def open_reward(source: str, *, name: str = "", device: str = "cpu", foreign: Foreign = IN_PROCESS) -> Reward:
    """Open a reward.

    Args:
        source: A run, a folder of saved weights, a Hub id or the name of a released model, such as liv; a folder of a
            LeRobot reward model (its config.json has a `type`); or `module:name`, a function of frames and instruction,
            or an object with `compute_reward`.
        name: The reward's name in tables; by default the name of the source.
        device: The device that computes.
        foreign: How models of others run.

    Raises:
        BadInputError: If the source is none of these.
        MissingExtraError: If LeRobot is needed and not installed.
    """
    if is_foreign(source):
        return open_function(source, name=name, device=device, foreign=foreign)
    foreign.check()
    reward = EncoderReward(RewardModel.from_pretrained(source, device=device), name or Path(source).resolve().name)
    reward.run = Path(source) if (Path(source) / "config.json").is_file() else None
    return reward


def open_function(source: str, *, name: str = "", device: str = "cpu", foreign: Foreign = IN_PROCESS) -> FunctionReward:
    """Open a model of others; arguments and errors are those of `open_reward`."""
    from counterpoint.rewards.isolated import ScoreCache  # imported here, since a run of this library needs none of it

    foreign.check()
    function, files = _opened(source, device, foreign)
    named = name or (source if ":" in source else Path(source).name)
    reward = FunctionReward(function, named, cache=ScoreCache(files) if foreign.cached else None)
    reward.files = files
    return reward


def _opened(source: str, device: str, foreign: Foreign) -> tuple[Scorer, str]:
    """Open a model of others; return it with the digest of its files."""
    from counterpoint.rewards.foreign import open_scorer

    if foreign.python is not None:
        from counterpoint.rewards.isolated import IsolatedScorer

        isolated = IsolatedScorer(source, foreign, device=device)
        return isolated, isolated.files
    try:
        return open_scorer(source, device)
    except (ImportError, AttributeError, TypeError) as error:
        if ":" not in source:
            raise MissingExtraError(getattr(error, "name", None) or "lerobot", "lerobot") from None
        hint = "write module:name, with the module's file in this folder or installed"
        raise BadInputError(source, str(error), "a function that can be imported", hint) from None
