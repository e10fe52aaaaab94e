"""Diffusion Policy: a window of observations becomes a plan of actions, of which the first few are executed.

Chi et al., "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion", RSS 2023. Each camera has an encoder.
Embeddings and normalised proprioception of To observations condition the denoising of K actions. The first few of
these, from the newest observation's step on, are executed (or averaged with earlier plans).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from counterpoint.config import validate
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import require
from counterpoint.policies.chunking import RecedingHorizon, TemporalEnsemble
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.encoded import EncodedPolicy, EncodedPolicyConfig, Window
from counterpoint.policies.networks import DiffusionConfig, Sampler, Spacing
from counterpoint.policies.normalizer import LinearNormalizer


class DiffusionPolicyConfig(EncodedPolicyConfig):
    """The settings from which a saved policy is rebuilt.

    Attributes:
        diffusion: Settings of the head.
        use_state: Read proprioception.
        state_embed_dim: Number of outputs of the linear layer that embeds proprioception; 0 for no layer.
        ensemble: Decay of the temporal ensemble; `None` for a receding horizon.
    """

    diffusion: DiffusionConfig
    use_state: bool
    state_embed_dim: int = 0
    ensemble: float | None = None


def condition_width(encoder: ObservationEncoder, state_dim: int, state_embed_dim: int = 0) -> int:
    """Return the width of one observation that a head is conditioned on.

    Args:
        encoder: Encoder of images.
        state_dim: Number of proprioception dimensions; 0 if proprioception is not read.
        state_embed_dim: Number of outputs of the layer that embeds proprioception; 0 for no layer.
    """
    return encoder.embed_dim + ((state_embed_dim or state_dim) if state_dim else 0)


class DiffusionPolicy(EncodedPolicy):
    """A policy that denoises plans of actions.

    Args:
        encoder: The encoder of observations into D dimensions, for single frames and without language.
        head: The head from embeddings to plans, with the normalisation of actions already set.
        state_dim: Number of proprioception dimensions (P).
        use_state: Read proprioception, normalised by the demonstrations' range.
        state_embed_dim: Number of outputs of a linear layer between normalised proprioception and head; 0 for no layer.
        frame: See `EncodedPolicy`, also for `cameras` and `demonstrations`.
        ensemble: Decay of ACT's temporal ensemble, which plans at every step and averages the first
            `head.config.executed` actions of plans, as in ICon. With `None`, the first `head.config.executed` actions
            of each plan are executed.

    Raises:
        BadInputError: If encoder, head, frame and cameras do not fit together.
    """

    kind = "diffusion_policy"
    config_type = DiffusionPolicyConfig

    def __init__(
        self,
        encoder: ObservationEncoder,
        head: DiffusionHead,
        *,
        state_dim: int = 0,
        use_state: bool = False,
        state_embed_dim: int = 0,
        frame: int | None = None,
        cameras: Sequence[str] = (),
        demonstrations: Demonstrations | None = None,
        ensemble: float | None = None,
    ) -> None:
        super().__init__(
            encoder,
            RecedingHorizon(head.config.executed)
            if ensemble is None
            else TemporalEnsemble(ensemble, head.config.executed),
            history=head.config.obs_steps,
            state_dim=state_dim,
            use_state=use_state,
            frame=frame,
            cameras=cameras,
            demonstrations=demonstrations,
        )
        self.head, self.ensemble, self.state_embed_dim = head, ensemble, state_embed_dim
        width = condition_width(encoder, state_dim if use_state else 0, state_embed_dim)
        hint = "build encoder and head for each other: single frames, proprioception beside their embeddings"
        require(self.stack == 1, "encoder.stack", self.stack, "1", hint)
        require(not self.reads_language, "encoder that takes an instruction", "True", "False", hint)
        require(head.condition_dim == width, "head.condition_dim", head.condition_dim, f"{width}", hint)
        self.state_normalizer = LinearNormalizer(state_dim) if use_state else None
        embeds = use_state and state_embed_dim
        self.state_encoder = nn.Linear(state_dim, state_embed_dim) if embeds else nn.Identity()
        if self.state_normalizer is not None and demonstrations is not None and demonstrations.state:
            self.state_normalizer.normalise_by(demonstrations.state)

    def normal_state(self, state: Float[Tensor, "... P"]) -> Float[Tensor, "... P"]:
        """Return normalised proprioception."""
        assert self.state_normalizer is not None
        normal: Tensor = self.state_normalizer(state.float())
        return normal

    def condition(
        self, frames: UInt8[Tensor, "B To C h w 3"], state: Float[Tensor, "B To P"] | None
    ) -> Float[Tensor, "B To O"]:
        """Return the head's input: for each observation, its embedded cameras, then its proprioception.

        Args:
            frames: Images, cropped to the encoder's size.
            state: Proprioception in the robot's units; ignored unless the policy uses it.
        """
        B, To = frames.shape[:2]
        return self._condition(self.encoder(frames.flatten(0, 1)).view(B, To, self.encoder.embed_dim), state)

    def _condition(self, embedded: Tensor, state: Tensor | None) -> Tensor:
        if not self.use_state:
            return embedded
        hint = "give them, or train with use_state = false"
        require(state is not None, "state", "none", f"{self.state_dim} numbers of proprioception an observation", hint)
        assert state is not None
        return torch.cat([embedded, self.state_encoder(self.normal_state(state))], -1)

    def plan(self, window: Window) -> Tensor:
        """Return the denoised actions [n, K - To + 1, A], starting at the newest observation's step."""
        condition = self._condition(window.embedded, window.state)
        return self.head.sample(condition, generator=window.generators)[:, self.history - 1 :]

    def acting(
        self,
        *,
        ensemble: float | None = None,
        sampler: Sampler | None = None,
        steps: int | None = None,
        spacing: Spacing | None = None,
    ) -> Self:
        """Return a copy with the same weights and other settings for acting; `None` keeps a setting.

        Args:
            ensemble: Decay of the temporal ensemble.
            sampler: The sampler; if `steps` is not given, its usual number of steps is used.
            steps: Number of sampling steps.
            spacing: Rule that chooses the sampling steps from the training schedule.

        Raises:
            BadInputError: If the training schedule has fewer steps than `steps`, or the decay is below 0.
        """
        config = self.config()
        tree = config.diffusion.model_dump(exclude={"inference_steps"} if sampler else set())
        tree |= {"sampler": sampler} if sampler else {}
        tree |= {"inference_steps": steps} if steps is not None else {}
        tree |= {"timestep_spacing": spacing} if spacing else {}
        changes: dict[str, object] = {"diffusion": validate(DiffusionConfig, tree, "acting")}
        changes |= {"ensemble": ensemble} if ensemble is not None else {}
        made = self.build(config.model_copy(update=changes)).to(next(self.parameters()).device)
        made.load_state_dict(self.state_dict())
        made.instruction = self.instruction
        return made

    def config(self) -> DiffusionPolicyConfig:
        """Return the configuration of the saved policy."""
        return DiffusionPolicyConfig(
            **self.shared_config(),
            action_dim=self.head.action_dim,
            diffusion=self.head.config,
            use_state=self.use_state,
            state_embed_dim=self.state_embed_dim,
            ensemble=self.ensemble,
        )

    @classmethod
    def build(cls, config: DiffusionPolicyConfig) -> Self:
        """Return a policy with random weights."""
        encoder = ObservationEncoder.rebuilt(config.encoder)
        width = condition_width(encoder, config.state_dim if config.use_state else 0, config.state_embed_dim)
        return cls(
            encoder,
            DiffusionHead(config.action_dim, width, config.diffusion),
            state_dim=config.state_dim,
            use_state=config.use_state,
            state_embed_dim=config.state_embed_dim,
            frame=config.frame,
            cameras=config.cameras,
            demonstrations=config.demonstrations,
            ensemble=config.ensemble,
        )
