"""A trained reward behind LeRobot's interface for reward models: it maps frames and a task to progress or success.

    CounterpointRewardModel.of(RewardModel.from_pretrained("runs/drawer")).save_pretrained("drawer-lerobot")
    model = CounterpointRewardModel.from_pretrained("drawer-lerobot")
    model.compute_reward({"observation.images.top": frames, "task": ["open the drawer"]})  # [B, T, 3, H, W] -> [B]

Importing this module registers the reward model type `counterpoint` in LeRobot (0.6 or later). LeRobot looks for a
model and its processors in the module of their configuration, so this module has all three. The encoder does its own
preprocessing, so the processors only rename, batch and move tensors, like those of this library's policies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from counterpoint.config import validate
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import MissingExtraError, require
from counterpoint.objectives.r3m import LanguageReward
from counterpoint.policies.lerobot_plugin import SavedWithProcessors, make_counterpoint_pre_post_processors
from counterpoint.rewards.embedding import STATE
from counterpoint.rewards.model import RewardModel

try:
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.configs.rewards import RewardModelConfig
    from lerobot.rewards import PreTrainedRewardModel
except ImportError as error:
    raise MissingExtraError(error.name or "lerobot", "lerobot") from None
try:
    from lerobot.rewards.capabilities import ProgressPrediction  # proposed, not in version 0.6
except ImportError:

    @dataclass(frozen=True)
    class ProgressPrediction:  # type: ignore[no-redef]
        """Progress in [0, 1] at every frame of every video, [B, T]."""

        progress: Float[Tensor, "B T"]


__all__ = ["CounterpointConfig", "CounterpointRewardModel", "make_counterpoint_pre_post_processors"]
OUTPUTS = ("progress", "success")


@RewardModelConfig.register_subclass("counterpoint")
@dataclass
class CounterpointConfig(RewardModelConfig):  # type: ignore[misc]
    """LeRobot's configuration of a reward.

    There is no `max_frames`: progress at a frame depends only on that frame and on the episode's first frame.

    Attributes:
        model: The encoder's saved configuration: `kind` and `config`, including its calibration.
        language_hidden: Width of R3M's perceptron; 0 for the other methods.
        image_key: Key of the frames.
        task_key: Key of the instruction.
        state_key: Key of the robot's state, if the reward reads it.
        reward_output: `progress` in [0, 1], or `success`, which is 1 if progress reaches the threshold and 0 otherwise.
        success_threshold: Minimum progress at which a task counts as done; by default the calibration's threshold.
    """

    model: dict[str, Any] = field(default_factory=dict)
    language_hidden: int = 0
    image_key: str = "observation.images.top"
    task_key: str = "task"
    state_key: str = "observation.state"
    reward_output: str = "progress"
    success_threshold: float | None = None

    def __post_init__(self) -> None:
        """Add the input and output features that are missing.

        Raises:
            BadInputError: If `reward_output` is unknown.
        """
        super().__post_init__()
        found, hint = repr(self.reward_output), "progress is the default"
        require(self.reward_output in OUTPUTS, "reward_output", found, " or ".join(OUTPUTS), hint)
        self.input_features.setdefault(self.image_key, PolicyFeature(FeatureType.VISUAL, (3, 224, 224)))
        if state := self.model.get("config", {}).get("state"):
            self.input_features.setdefault(self.state_key, PolicyFeature(FeatureType.STATE, (len(state["mean"]),)))
        self.output_features.setdefault(self.reward_output, PolicyFeature(FeatureType.REWARD, (1,)))


class CounterpointRewardModel(SavedWithProcessors, PreTrainedRewardModel):  # type: ignore[misc]
    """A LeRobot reward model that computes the calibrated progress of a `RewardModel`.

    It is trained by `counterpoint train`, not by LeRobot.

    Args:
        config: The configuration; `of` makes one from a trained reward.
        dataset_stats: Ignored, like `dataset_meta`, because the encoder does its own preprocessing.

    Raises:
        BadInputError: If the configuration has no encoder, or an encoder without calibration.
    """

    config_class = CounterpointConfig
    name = "counterpoint"

    def __init__(self, config: CounterpointConfig, dataset_stats: Any = None, dataset_meta: Any = None) -> None:
        super().__init__(config)
        kind, hint = (
            config.model.get("kind"),
            "make one with CounterpointRewardModel.of(RewardModel.from_pretrained(RUN))",
        )
        require(
            kind == DualEncoder.kind, "reward model", f"kind {kind!r}", f"an encoder of kind {DualEncoder.kind}", hint
        )
        self.encoder = DualEncoder.rebuilt(validate(EncoderConfig, config.model["config"], "reward model"))
        D, hidden = self.encoder.embed_dim, config.language_hidden
        self.language_reward = LanguageReward(D, D, hidden) if hidden else None
        self.rewards = RewardModel(self.encoder, language_reward=self.language_reward)
        self.rewards.check_calibration()

    @classmethod
    def of(cls, model: RewardModel, **settings: Any) -> Self:
        """Return a trained reward as a LeRobot reward model; weights are copied.

        Args:
            model: A calibrated reward of a `DualEncoder`.
            settings: Fields of `CounterpointConfig`, such as `image_key`.

        Raises:
            BadInputError: If the model has no calibration, or its encoder is of another kind.
        """
        encoder, head = model.encoder, model.language_reward
        hint = "train it with `counterpoint train`"
        require(isinstance(encoder, DualEncoder), "model.encoder", type(encoder).__name__, "a DualEncoder", hint)
        assert isinstance(encoder, DualEncoder)
        saved = {"kind": encoder.kind, "config": encoder.config.model_dump(mode="json")}
        hidden = 0 if head is None else len(head.state_dict()["layers.0.bias"])
        device = str(next(encoder.parameters()).device)
        config = CounterpointConfig(model=saved, language_hidden=hidden, device=device, **settings)
        made: Self = cls(config).to(device).eval()
        made.encoder.load_state_dict(encoder.state_dict())
        if head is not None and made.language_reward is not None:
            made.language_reward.load_state_dict(head.state_dict())
        return made

    @torch.no_grad()
    def compute_reward(self, batch: dict[str, Any]) -> Float[Tensor, " B"]:
        """Return the reward at the newest frame of every video.

        Args:
            batch: Under `image_key`, frames [B, T, 3, H, W] or [B, T, H, W, 3], uint8 or float in [0, 1], from each
                episode's first frame to the newest. Under `task_key`, one instruction, or one per video. Under
                `state_key`, the state at each frame, [B, T, S], if the reward reads the state.

        Raises:
            BadInputError: If a shape is wrong, or instructions or states are missing.
        """
        videos, texts = self._videos(batch)
        ends = [{name: part[[0, -1]] for name, part in seen.items()} for seen in videos]
        return torch.stack([self._at_the_end(pair, text) for pair, text in zip(ends, texts, strict=True)]).float()

    @torch.no_grad()
    def predict_progress(self, batch: dict[str, Any]) -> ProgressPrediction:
        """Return progress in [0, 1] at every frame of every video, [B, T], as LeRobot's pull request 4553 proposes.

        Arguments and errors are those of `compute_reward`.
        """
        videos, texts = self._videos(batch)
        each = [self.rewards.progress(seen, text) for seen, text in zip(videos, texts, strict=True)]
        return ProgressPrediction(progress=torch.stack(each).float())

    def _videos(self, batch: dict[str, Any]) -> tuple[list[dict[str, Tensor]], list[str]]:
        """Return the frames [T, H, W, 3] of each video, with its states if the reward reads them, and the tasks."""
        config = self.config
        videos, tasks = batch.get(config.image_key), batch.get(config.task_key)
        shape = list(videos.shape) if isinstance(videos, Tensor) else type(videos).__name__
        expected = "videos [B, T, 3, H, W] or [B, T, H, W, 3]"
        hint = "give every episode's first frame and its newest, or all between: torch.stack([first, now], 1)"
        good = isinstance(videos, Tensor) and videos.ndim == 5 and 3 in (videos.shape[2], videos.shape[4])
        require(good, config.image_key, shape, expected, hint)
        assert isinstance(videos, Tensor)
        if videos.shape[4] != 3:
            videos = videos.movedim(2, 4)
        B, T = videos.shape[:2]
        texts = [tasks] * B if isinstance(tasks, str) else list(tasks or ())
        found, hint = f"{len(texts)} instructions", "say what should happen"
        require(len(texts) == B, config.task_key, found, f"one, or {B}", hint)
        seen = {"": videos}
        if self.encoder.reads_state:
            states: Any = batch.get(config.state_key)
            shape = list(states.shape) if isinstance(states, Tensor) else type(states).__name__
            good, hint = isinstance(states, Tensor) and states.shape[:2] == (B, T), "give the state at every frame"
            require(good, config.state_key, shape, f"states [{B}, {T}, S], which the reward reads", hint)
            seen[STATE] = states
        return [{name: part[row] for name, part in seen.items()} for row in range(B)], texts

    def _at_the_end(self, pair: dict[str, Tensor], text: str) -> Float[Tensor, ""]:
        threshold = self.config.success_threshold
        if self.config.reward_output == "progress":
            return self.rewards.progress(pair, text)[-1]
        return (
            self.rewards.success(pair, text)[-1]
            if threshold is None
            else self.rewards.progress(pair, text)[-1] >= threshold
        )
