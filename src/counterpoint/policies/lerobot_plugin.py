"""Cloned and diffusion policies with LeRobot's policy interface, so that LeRobot can evaluate and deploy them.

    CounterpointPolicy.of(counterpoint.load("runs/push")).save_pretrained("push-lerobot")

    lerobot-eval --env.discover_packages_path=counterpoint.policies --policy.path=push-lerobot --env.type=pusht

Importing this module registers the policy type `counterpoint` in LeRobot, from version 0.6 on. LeRobot looks for a
policy and its processors in the module of their configuration, so all three are in this file. As everywhere in this
library, normalisation is part of the policy: the processors only rename, batch and move data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

from jaxtyping import Float
from torch import Tensor

from counterpoint.config import validate
from counterpoint.encoders.weights import fit_weights, read_weights
from counterpoint.errors import BadInputError, MissingExtraError, require
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.encoded import EncodedPolicy

try:
    from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
    from lerobot.policies import PreTrainedPolicy
    from lerobot.processor import (
        AddBatchDimensionProcessorStep,
        DeviceProcessorStep,
        RenameObservationsProcessorStep,
        make_policy_processor_pipelines,
    )
except ImportError as error:
    raise MissingExtraError(error.name or "lerobot", "lerobot") from None

KINDS: dict[str, type[EncodedPolicy]] = {kind.kind: kind for kind in (ClonedPolicy, DiffusionPolicy)}
IMAGE, STATE, ACTION = "observation.image", "observation.state", "action"


@PreTrainedConfig.register_subclass("counterpoint")
@dataclass
class CounterpointConfig(PreTrainedConfig):  # type: ignore[misc]
    """LeRobot's configuration of a policy.

    Attributes:
        model: The policy's saved configuration: `kind` and `config`.
    """

    model: dict[str, Any] = field(default_factory=dict)
    push_to_hub: bool = False

    @property
    def observation_delta_indices(self) -> None:
        """None, since the policy stores its observations and needs no history from LeRobot."""

    @property
    def action_delta_indices(self) -> None:
        """See `observation_delta_indices`."""

    @property
    def reward_delta_indices(self) -> None:
        """See `observation_delta_indices`."""

    def get_optimizer_preset(self) -> NoReturn:
        """Raise an error, since LeRobot cannot train this policy."""
        raise _not_trained_here()

    def get_scheduler_preset(self) -> None:
        """Return no learning rate schedule."""

    def validate_features(self) -> None:
        """Raise if there is no saved policy, which determines the features."""
        require(self.model.get("kind") in KINDS, "policy", "no saved policy", _EXPECTED, _HINT)


_EXPECTED, _HINT = f"one of kind {' or '.join(KINDS)}", "make one with CounterpointPolicy.of(policy)"


def _not_trained_here() -> BadInputError:
    hint = "train with `counterpoint train`, then CounterpointPolicy.of(counterpoint.load(RUN))"
    return BadInputError("policy type counterpoint", "training by LeRobot", "a trained policy", hint)


class SavedWithProcessors:
    """A mixin of LeRobot models that saves processors with the model, and requires all weights when loading."""

    def _save_pretrained(self, save_directory: Path, *given: Any, **named: Any) -> None:
        super()._save_pretrained(save_directory, *given, **named)  # type: ignore[misc]
        for processor in make_counterpoint_pre_post_processors(self.config):  # type: ignore[attr-defined]
            processor.save_pretrained(save_directory)

    @classmethod
    def _load_as_safetensor(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        fit_weights(model, read_weights(Path(model_file)), Path(model_file))
        return model


class CounterpointPolicy(SavedWithProcessors, PreTrainedPolicy):  # type: ignore[misc]
    """A LeRobot policy that runs a `ClonedPolicy` or a `DiffusionPolicy`.

    Each row of a batch is one environment, whose history the policy keeps until `reset`. Cameras, proprioception and
    task have LeRobot's names (`observation.images.NAME` or `observation.image`, `observation.state`, `task`).

    Args:
        config: The configuration; `of` creates it.
        dataset_stats: Ignored, like `dataset_meta`, since normalisation is among the policy's weights.

    Raises:
        BadInputError: If the configuration holds no saved policy.
    """

    config_class = CounterpointConfig
    name = "counterpoint"

    def __init__(self, config: CounterpointConfig, dataset_stats: Any = None, dataset_meta: Any = None) -> None:
        super().__init__(config)
        config.validate_features()
        kind = KINDS[config.model["kind"]]
        settings = validate(kind.config_type, config.model["config"], "policy")
        self.policy = kind.build(settings)
        self.policy.instruction = settings.instruction

    @classmethod
    def of(cls, policy: EncodedPolicy) -> Self:
        """Return a trained policy as a LeRobot policy; weights are copied.

        Raises:
            BadInputError: If the model is not a policy of a known kind.
        """
        require(isinstance(policy, tuple(KINDS.values())), "policy", type(policy).__name__, _EXPECTED, "train one")
        saved = policy.config()
        C, size = saved.encoder.cameras, saved.frame
        names = saved.cameras or ("image",) * C
        images = {
            IMAGE if name == "image" else f"{IMAGE}s.{name}": (FeatureType.VISUAL, (3, size, size)) for name in names
        }
        kinds = {"state": FeatureType.STATE, "environment_state": FeatureType.ENV}
        state = {f"observation.{name}": (kinds[name], (dim,)) for name, dim in policy.state_sources.items()}
        config = CounterpointConfig(
            model={"kind": policy.kind, "config": saved.model_dump(mode="json")},
            n_obs_steps=policy.history,
            input_features={key: PolicyFeature(*found) for key, found in {**images, **state}.items()},
            output_features={ACTION: PolicyFeature(FeatureType.ACTION, (saved.action_dim,))},
            device=str(next(policy.parameters()).device),
        )
        made: Self = cls(config).to(config.device).eval()
        made.policy.load_state_dict(policy.state_dict())
        return made

    def reset(self) -> None:
        """Begin an episode in every row."""
        self.policy.reset()

    def select_action(self, batch: dict[str, Any], **_: Any) -> Float[Tensor, "n A"]:
        """Return the next action of n environments, in their units."""
        action: Tensor = self.policy.select_action(_seen(batch))
        return action

    def predict_action_chunk(self, batch: dict[str, Any], **_: Any) -> Float[Tensor, "n K A"]:
        """Return all planned actions, starting at these observations' step, in the environments' units."""
        plan: Tensor = self.policy.predict_action_chunk(_seen(batch))
        return plan

    def forward(self, batch: dict[str, Any]) -> NoReturn:
        """Raise an error, since LeRobot cannot train this policy.

        Raises:
            BadInputError: Always.
        """
        raise _not_trained_here()

    def get_optim_params(self) -> NoReturn:
        """See `forward`."""
        raise _not_trained_here()


def make_counterpoint_pre_post_processors(config: Any, dataset_stats: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """Return LeRobot's pipelines before and after a policy or a reward model.

    Args:
        config: The configuration of the policy or reward model, which names the device.
        dataset_stats: Ignored; see `CounterpointPolicy`.
    """
    moved = DeviceProcessorStep(device=config.device)
    before = [RenameObservationsProcessorStep(rename_map={}), AddBatchDimensionProcessorStep(), moved]
    pipelines: tuple[Any, Any] = make_policy_processor_pipelines(before, [DeviceProcessorStep(device="cpu")])
    return pipelines


def _seen(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch's observations without rewards and flags, and its tasks if every task has text."""
    seen = {key: value for key, value in batch.items() if key.startswith("observation.")}
    return seen | ({"task": batch["task"]} if batch.get("task") and all(batch["task"]) else {})
