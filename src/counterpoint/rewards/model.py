"""Rewards of a video for instructions or a goal image, from a pretrained encoder, without training or gradients.

S is the cosine, phi(o) the raw embedding of a frame, psi(l) the embedding of an instruction, g a goal image::

    potential    S(phi(o_t), psi(l))               AcTOL, section 5.4; its change per step is DecisionNCE, Eq. 3
    similarity   S(phi(o_t), psi(l))               trained by CLIP's loss: its level has a meaning, not only its gain
    transition   S(phi(o_t) - phi(o_0), psi(l))    DecisionNCE-T, Eq. 6, of the segment from the start to t
    goal         -||phi(o_t) - phi(g)||            VIP, section 4; S(phi(o_t), phi(g)) for encoders with language (LIV)
    language     G(phi(o_0), phi(o_t), psi(l))     R3M's perceptron, in (0, 1)

A transition scores 0 at t = 0, and for a frame with the same embedding as the first. For several cameras, embedded as
[T, C, D], the reward is the mean of the cameras' rewards (late fusion). An encoder trained with the robot's state reads
the state together with each camera's images, under the key `STATE`, as in an environment's observations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoint.encoders.calibration import Calibration, RewardForm
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.hub import further_weights, saved_kind
from counterpoint.encoders.weights import fit_weights
from counterpoint.errors import require
from counterpoint.rewards.embedding import STATE, Embedder, embed_frames, embed_text

Array = NDArray[np.float64]
Video = TypeVar("Video", NDArray[Any], Tensor)
Score = TypeVar("Score", bound=Callable[..., Array])
SegmentScore = Callable[[Array, Array, Array], Array]
"""(start frames [N, *C, D], goal frames [N, *C, D], text [L, D]) -> score of each segment for each text, [N, L]."""
LANGUAGE_REWARD = "language_reward"
"""Name of the weights of R3M's perceptron in the folder of a saved encoder."""
STILL = 1e-5
"""Embeddings count as equal if their distance is below this share of their length (float32 networks' precision)."""


def cosine(left: Float[Array, "N D"], right: Float[Array, "L D"]) -> Float[Array, "N L"]:
    """Return the cosine of every row of `left` with every row of `right`; 0 where either is the zero vector."""
    lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
    return np.asarray(left @ right.T / np.where(lengths == 0.0, 1.0, lengths))


def late_fusion(score: Score) -> Score:
    """Extend a score of embeddings [N, D] to several cameras, [N, C, D], by taking the mean over cameras."""

    @wraps(score)
    def fused(*parts: Array) -> Array:
        cameras = [part.shape[1] for part in parts if part.ndim == 3]
        if not cameras:
            return score(*parts)
        views = range(cameras[0])
        each = [score(*(part[:, view] if part.ndim == 3 else part for part in parts)) for view in views]
        return np.asarray(np.mean(each, axis=0))

    return cast(Score, fused)


@late_fusion
def potential(frames: Float[Array, "T *C D"], text: Float[Array, "L D"]) -> Float[Array, "L T"]:
    """Return S(phi(o_t), psi(l)) of every frame."""
    return cosine(text, frames)


@late_fusion
def transition(frames: Float[Array, "T *C D"], text: Float[Array, "L D"]) -> Float[Array, "L T"]:
    """Return S(phi(o_t) - phi(o_0), psi(l)) of every frame."""
    return transition_score(np.broadcast_to(frames[:1], frames.shape), frames, text).T


@late_fusion
def potential_gain(
    start: Float[Array, "N *C D"], goal: Float[Array, "N *C D"], text: Float[Array, "L D"]
) -> Float[Array, "N L"]:
    """Return S(phi(o_goal), psi(l)) - S(phi(o_start), psi(l)), DecisionNCE-P's segment score (Eq. 4), in [-2, 2]."""
    return cosine(goal, text) - cosine(start, text)


@late_fusion
def goal_similarity(
    start: Float[Array, "N *C D"], goal: Float[Array, "N *C D"], text: Float[Array, "L D"]
) -> Float[Array, "N L"]:
    """Return S(phi(o_goal), psi(l)), CLIP's score of a segment, which uses only the last frame, in [-1, 1]."""
    return cosine(goal, text)


@late_fusion
def transition_score(
    start: Float[Array, "N *C D"], goal: Float[Array, "N *C D"], text: Float[Array, "L D"]
) -> Float[Array, "N L"]:
    """Return S(phi(o_goal) - phi(o_start), psi(l)), DecisionNCE-T's segment score (Eq. 6), in [-1, 1]."""
    moved = goal - start
    size = np.maximum(np.linalg.norm(start, axis=1), np.linalg.norm(goal, axis=1))
    still = np.linalg.norm(moved, axis=1) <= STILL * size
    return np.where(still[:, None], 0.0, cosine(moved, text))


def gains(curve: Float[Array, "L T"], form: str) -> Float[Array, "L T"]:
    """Return a curve as it is plotted: for a potential or a distance to a goal, the gain since the first frame.

    Only differences of a potential are rewards; its level means little. A similarity keeps its level, because training
    gave the level a meaning.
    """
    return curve - curve[:, :1] if form in ("potential", "goal") else curve


class RewardModel:
    """A reward function of videos: an encoder, used in the form (see the module's docstring) that it was trained for.

    Args:
        encoder: Image and text towers that embed into one space.
        form: The form of the reward; by default the one that the encoder was trained for (`config.reward_form`).
        batch_size: Number of frames encoded at once, which bounds memory for long videos.
        language_reward: R3M's perceptron G, for the form `language`.

    Raises:
        BadInputError: If the encoder was not trained for the form.

    Example:
        >>> model = RewardModel.from_pretrained("runs/drawer")  # doctest: +SKIP
        >>> model.reward(frames, ["open the drawer", "close the drawer"])  # doctest: +SKIP
    """

    def __init__(
        self,
        encoder: Embedder,
        *,
        form: RewardForm | None = None,
        batch_size: int = 64,
        language_reward: nn.Module | None = None,
    ) -> None:
        self.encoder, self.batch_size, self.language_reward = encoder, batch_size, language_reward
        self.trained_form: RewardForm = getattr(getattr(encoder, "config", None), "reward_form", "potential")
        self.calibration: Calibration | None = getattr(getattr(encoder, "config", None), "calibration", None)
        self.form = self.trained_form if form is None else self.check_form(form)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, device: str | torch.device = "cpu", form: RewardForm | None = None
    ) -> RewardModel:
        """Load the reward of a run, of a folder written by `save_pretrained`, or of a model on the Hub.

        Args:
            source: A run's folder, a folder with `config.json` and `model.safetensors`, a Hub id, or the name of a
                released model.
            device: The device that computes.
            form: The form of the reward; by default the one that the encoder was trained for.

        Raises:
            BadInputError: If the model is missing, is not trained yet, or is another kind of encoder.
        """
        kind = saved_kind(source)
        hint = "measure policies and agents, and encoders for control through them, by `counterpoint evaluate`"
        require(kind == "dual_encoder", source, f"kind {kind!r}", "an encoder of frames and instructions", hint)
        encoder = DualEncoder.from_pretrained(source, map_location=str(device))
        head = _language_reward(source, str(device)) if encoder.config.reward_form == "language" else None
        return cls(encoder, form=form, language_reward=head)

    def check_form(self, form: RewardForm, *, instructed: bool = False) -> RewardForm:
        """Return `form` if the encoder was trained for it and, with `instructed=True`, if the form reads instructions.

        Raises:
            BadInputError: Otherwise. For example, VIP, TCN and R3M do not align single frames with texts.
        """
        only = {"goal": ("goal",), "language": ("language", "goal")}.get(self.trained_form)
        works = only or ("potential", "similarity", "transition", "goal")
        good = form in works and not (instructed and form == "goal")
        good = good and (form != "language" or self.language_reward is not None)
        trained = f"an encoder trained for {self.trained_form!r}" + ("" if only else ", without R3M's language reward")
        ways = [f"the form {way}" for way in works if way != "goal"] + ["a goal image (goal=, --goal IMAGE)"]
        found = "an instruction" if form == "goal" else trained
        require(good, f"the reward form {form!r}", found, " or ".join(ways), "use what the encoder was trained for")
        return form

    def reward(
        self,
        frames: Video | Mapping[str, Video],
        instructions: str | Sequence[str] = (),
        *,
        goal: Video | Mapping[str, Video] | None = None,
        form: RewardForm | None = None,
    ) -> Video:
        """Return the reward of every frame, float32: an array if `frames` is an array, a tensor if it is a tensor.

        Args:
            frames: [T, H, W, 3], uint8 in [0, 255] or float in [0, 1]. Several cameras are given as a mapping of names
                to such frames; the result is the mean of their rewards. For a model that reads the robot's state, the
                mapping includes the state, [T, S]: `{"front": frames, "state": state}`.
            instructions: One instruction gives [T], a list of L instructions gives [L, T].
            goal: A goal image [H, W, 3] in place of instructions; the result is [T]. If `frames` is a mapping, this is
                a mapping from cameras to goal images.
            form: The form of the reward (see the module's docstring); by default `self.form`.

        Raises:
            BadInputError: If frames or instructions are not valid, or the encoder was not trained for the form.
        """
        chosen, targets = self.targets(instructions, goal=goal, form=form)
        curves = self.score(chosen, embed_frames(self.encoder, frames, self.batch_size), targets).astype(np.float32)
        rewards = curves[0] if goal is not None or isinstance(instructions, str) else curves
        return _like(frames, rewards)

    def progress(
        self,
        frames: Video | Mapping[str, Video],
        instructions: str | Sequence[str] = (),
        *,
        goal: Video | Mapping[str, Video] | None = None,
    ) -> Video:
        """Return progress in [0, 1] at every frame, in the shape of `reward`; the value at t depends on frames 0 to t.

        Args:
            frames: [T, H, W, 3], from the episode's first frame on; several cameras and the state as in `reward`.
            instructions: As in `reward`.
            goal: A goal image instead of instructions, as in `reward`, for encoders trained for goals.

        Raises:
            BadInputError: As in `reward`; also if the model has no calibration.
        """
        return self._calibrated(self.check_calibration().progress_of, frames, instructions, goal)

    def success(
        self,
        frames: Video | Mapping[str, Video],
        instructions: str | Sequence[str] = (),
        *,
        goal: Video | Mapping[str, Video] | None = None,
    ) -> Video:
        """Return True for frames whose progress reaches the success threshold; arguments are those of `progress`."""
        calibration = self.check_calibration()
        return self._calibrated(
            lambda x, texts: calibration.progress_of(x, texts) >= calibration.success, frames, instructions, goal
        )

    def stream(self, instruction: str) -> RewardStream:
        """Return the reward of a video that arrives frame by frame, such as a camera's.

        Raises:
            BadInputError: If the instruction is empty, or the model needs a goal instead of instructions.
        """
        return RewardStream(self, instruction)

    def novelty(self, frames: Video | Mapping[str, Video]) -> Video:
        """Return the distance [T] of frames [T, H, W, 3] from the training data; above 1, they are unlike the data."""
        embedded = embed_frames(self.encoder, frames, self.batch_size)
        found = late_fusion(self.check_calibration().novelty_of)(embedded)
        return _like(frames, found.astype(np.float32))

    def check_calibration(self) -> Calibration:
        """Return the calibration, if the model has one.

        Raises:
            BadInputError: If the model has none: no recipe of this library trained it, or an old version did.
        """
        hint = "train it with `counterpoint train`, which measures one (a released model or folder of weights: "
        hint += "--initialize-from NAME), or use its raw reward: counterpoint reward"
        require(self.calibration, "model", "no calibration", "a model that was calibrated on its data", hint)
        assert self.calibration is not None
        return self.calibration

    def check_target(self, goal: bool) -> RewardForm:
        """Return the form that was calibrated, if it reads the given target: a goal image or instructions.

        Raises:
            BadInputError: If the form reads the other kind of target, or there is no calibration.
        """
        form, ways = self.check_calibration().form, ("an instruction", "a goal image (goal=, --goal IMAGE)")
        found, expected = ways if not goal else ways[::-1]
        require((form == "goal") == goal, f"the calibrated form {form!r}", found, expected, "give that one")
        return form

    def _calibrated(
        self,
        measure: Callable[[Array, Sequence[str]], NDArray[Any]],
        frames: Video | Mapping[str, Video],
        instructions: str | Sequence[str],
        goal: Any,
    ) -> Video:
        form = self.check_target(goal is not None)
        curves = self.reward(frames, instructions, goal=goal, form=None if form == "goal" else form)
        values = np.asarray(curves.cpu() if isinstance(curves, Tensor) else curves, np.float64)
        texts = [instructions] if isinstance(instructions, str) else list(instructions)
        result = measure(gains(np.atleast_2d(values), form), texts if goal is None else ()).reshape(values.shape)
        return _like(frames, result if result.dtype == bool else result.astype(np.float32))

    def targets(
        self,
        instructions: str | Sequence[str] = (),
        *,
        goal: Video | Mapping[str, Video] | None = None,
        form: RewardForm | None = None,
    ) -> tuple[RewardForm, Float[Array, "L D"]]:
        """Return the form that is computed and the embedded instructions or goal; arguments are those of `reward`."""
        if goal is not None:
            still = {name: view[None] for name, view in goal.items()} if isinstance(goal, Mapping) else goal[None]
            return self.check_form("goal"), embed_frames(self.encoder, still)
        return self.check_form(form or self.form, instructed=True), embed_text(self.encoder, instructions)

    def score(
        self, form: RewardForm, frames: Float[Array, "T *C D"], targets: Float[Array, "L *C D"]
    ) -> Float[Array, "L T"]:
        """Return the reward of embedded frames for embedded instructions (or goal images, for the form `goal`)."""
        return late_fusion(partial(self._score, form))(frames, targets)

    def _score(self, form: RewardForm, frames: Array, targets: Array) -> Array:
        if form == "transition":
            return transition(frames, targets)
        if form == "language":
            assert self.language_reward is not None
            device = next(self.language_reward.parameters()).device
            now, text = (torch.from_numpy(part).float().to(device) for part in (frames, targets))
            with torch.no_grad():
                return np.asarray(self.language_reward(now[0], now, text[:, None]).double().cpu())
        if form == "goal" and self.trained_form == "goal":
            return -np.asarray(np.linalg.norm(frames[None] - targets[:, None], axis=2))
        return potential(frames, targets)


@dataclass(frozen=True)
class Moment:
    """A frame of a stream.

    Attributes:
        reward: The reward at the frame, as by `RewardModel.reward`.
        progress: Progress in [0, 1]; `None` for a model without a calibration.
        success: True if progress reaches the success threshold; `None` for a model without a calibration.
    """

    reward: float
    progress: float | None
    success: bool | None


class RewardStream:
    """The reward of a video that arrives frame by frame; each value equals that of the whole video so far.

    Args:
        model: The reward.
        instruction: The task in words.

    Raises:
        BadInputError: If the instruction is empty, or the model needs a goal instead of instructions.
    """

    def __init__(self, model: RewardModel, instruction: str) -> None:
        self.model = model
        self.instruction, (self.form, self.target) = instruction, model.targets([instruction])
        self._first: Array | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, frame: NDArray[Any] | Mapping[str, NDArray[Any]]) -> Moment:
        """Return the values at the next frame.

        Args:
            frame: [H, W, 3], uint8 in [0, 255] or float in [0, 1]; or one of each camera by name, and under `state` the
                robot's state [S] for a model that reads it.

        Raises:
            BadInputError: If the frame has another size than the first one, or is not valid.
        """
        seen = dict(frame) if isinstance(frame, Mapping) else {"": frame}
        shapes = {name: np.shape(part) for name, part in seen.items()}
        self._shapes = self._shapes or shapes
        hint = "begin a new stream: model.stream(instruction)"
        require(shapes == self._shapes, "frame", f"{shapes}", f"{self._shapes}, as the first frame", hint)
        now = embed_frames(self.model.encoder, {name: part[None] for name, part in seen.items()})
        self._first = now if self._first is None else self._first
        pair, known = np.concatenate([self._first, now]), self.model.calibration
        reward = float(self.model.score(self.form, pair, self.target)[0, 1])
        if known is None or known.form == "goal":
            return Moment(reward, None, None)
        gained = gains(self.model.score(known.form, pair, self.target), known.form)
        progress = float(known.progress_of(gained, [self.instruction])[0, 1])
        return Moment(reward, progress, progress >= known.success)


def _like(frames: Video | Mapping[str, Video], values: NDArray[Any]) -> Video:
    one = next(view for key, view in frames.items() if key != STATE) if isinstance(frames, Mapping) else frames
    return torch.from_numpy(values).to(one.device) if isinstance(one, Tensor) else values


def _language_reward(source: str | Path, device: str) -> nn.Module | None:
    found = further_weights(source, LANGUAGE_REWARD)
    if found is None:
        return None
    from counterpoint.objectives.r3m import LanguageReward

    file, weights = found
    hidden, width = weights["layers.0.weight"].shape
    head = LanguageReward(width // 3, width // 3, hidden)
    fit_weights(head, weights, file)
    return head.to(device).eval()
