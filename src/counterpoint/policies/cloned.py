"""A cloned policy: an encoder and a head that predicts one action per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from torch import Tensor

from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.policies.chunking import RecedingHorizon
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.encoded import EncodedPolicy, EncodedPolicyConfig, Window
from counterpoint.policies.heads import ActionHead, HeadConfig


class PolicyConfig(EncodedPolicyConfig):
    """The settings from which a saved policy is rebuilt.

    Attributes:
        head: Settings of the head.
    """

    head: HeadConfig


class ClonedPolicy(EncodedPolicy):
    """A policy that predicts one action from the newest observations.

    Args:
        encoder: The encoder of observations into D dimensions.
        head: The head from embeddings to actions.
        demonstrations: Statistics of the training data. If the policy reads language, its default instruction comes
            from them; set `instruction` to change it.
        cameras: Names of the cameras, in the encoder's order.
    """

    kind = "cloned_policy"
    config_type = PolicyConfig

    def __init__(
        self,
        encoder: ObservationEncoder,
        head: ActionHead,
        demonstrations: Demonstrations | None = None,
        *,
        cameras: Sequence[str] = (),
    ) -> None:
        super().__init__(
            encoder,
            RecedingHorizon(1),
            history=head.config.history,
            state_dim=head.state_dim,
            use_state=head.config.use_state,
            cameras=cameras,
            demonstrations=demonstrations,
        )
        self.head = head

    @property
    def reads_language(self) -> bool:
        """True if the policy reads an instruction."""
        return self.head.config.language or super().reads_language

    def plan(self, window: Window) -> Tensor:
        """Return the head's actions [n, 1, A] in the environment's units."""
        found = self.head(window.embedded, window.valid, window.state, window.instructions)
        return self.head.normalizer.restore(found)[:, None]

    def config(self) -> PolicyConfig:
        """Return the configuration of the saved policy."""
        head = HeadConfig(**{name: getattr(self.head.config, name) for name in HeadConfig.model_fields})
        return PolicyConfig(**self.shared_config(), action_dim=self.head.action_dim, head=head)

    @classmethod
    def build(cls, config: PolicyConfig) -> Self:
        """Return a policy with random weights."""
        encoder = ObservationEncoder.rebuilt(config.encoder)
        dims = (encoder.embed_dim, config.action_dim, config.state_dim)
        head = ActionHead(*dims, config.head, cameras=config.encoder.cameras)
        return cls(encoder, head, config.demonstrations, cameras=config.cameras)
