"""A cloned policy: an encoder and a head that act in many environments at once, and the folder it is saved in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.episode import Array
from counterpoint.encoders.hub import read_model, write_model
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.policies.base import images_of
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.heads import ActionHead, HeadConfig

__all__ = ["ClonedPolicy", "PolicyConfig"]


class PolicyConfig(FrozenConfig):
    """Everything needed to build a saved policy again.

    Attributes:
        encoder: Of the encoder.
        head: Of the head.
        action_dim: A.
        state_dim: P.
        instruction: What it is told to do, where it reads language.
        demonstrations: What it was cloned from; a record. What normalises proprioception is among the weights.
    """

    encoder: ObservationConfig
    head: HeadConfig
    action_dim: int
    state_dim: int
    instruction: str = ""
    demonstrations: Demonstrations | None = None


class ClonedPolicy(nn.Module):
    """Acts on stacks of frames; a `Policy`.

    Args:
        encoder: Observations into D dimensions.
        head: Embeddings into actions.
        demonstrations: What it was cloned from, kept beside it. Their instruction is what it is told to do, where it
            reads language; another may be given as `instruction`.
    """

    def __init__(
        self, encoder: ObservationEncoder, head: ActionHead, demonstrations: Demonstrations | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.head, self.demonstrations = encoder, head, demonstrations
        self.instruction = demonstrations.instruction if demonstrations is not None else ""
        # Row -> its last embeddings [h, D] and states [h, P], the oldest first, h at most `history`.
        self._past: dict[int, tuple[Tensor, Tensor]] = {}
        self._frames: dict[int, Array] = {}  # row -> its last images [C, S, H, W, 3]

    @property
    def stack(self) -> int:
        """S, the frames of an observation and camera."""
        return self.encoder.config.stack

    @property
    def history(self) -> int:
        """H, the observations it acts on."""
        return self.head.config.history

    @property
    def listens(self) -> bool:
        """Whether it acts on an instruction."""
        return self.head.config.language or self.encoder.takes_instruction

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Forget what these rows have seen; nothing is drawn at random."""
        for row in rows:
            self._past.pop(int(row), None)
            self._frames.pop(int(row), None)

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """At every observation."""
        return [True] * len(rows)

    @torch.no_grad()
    def act(self, observation: Mapping[str, Array], *, rows: Sequence[int], explore: bool = False) -> Array:
        """Return actions of n rows, float32 [n, A] in [-1, 1].

        Args:
            observation: Images by camera, uint8 [n, H, W, 3], in the encoder's order; "state", float32 [n, P].
            rows: Environments that the observations come from.
            explore: Ignored.
        """
        self.eval()
        frames, state = self._stacked(images_of(observation), rows), observation["state"]
        device = self.head.state_mean.device
        pixels = torch.from_numpy(np.ascontiguousarray(frames)).to(device)
        told = [self._told()] * len(pixels) if self.listens else None
        embedded = self.encoder(pixels, told if self.encoder.takes_instruction else None)[:, None]
        numbers = torch.from_numpy(np.asarray(state, np.float32)).to(device)[:, None]
        valid = torch.ones(embedded.shape[:2], dtype=torch.bool, device=device)
        if self.history > 1:
            embedded, numbers, valid = self._remember(embedded, numbers, rows)
        actions = self.head(embedded, valid, numbers, told)
        return np.asarray(actions.clamp(-1, 1).float().cpu().numpy(), np.float32)

    def _stacked(self, images: Array, rows: Sequence[int]) -> Array:
        """Return each row's last S images of every camera, [n, C S, H, W, 3]; the first one is repeated."""
        for row, newest in zip(rows, images[:, :, None], strict=True):
            past = self._frames.get(int(row), np.repeat(newest, self.stack, axis=1))
            self._frames[int(row)] = np.concatenate([past[:, 1:], newest], axis=1)
        return np.stack([self._frames[int(row)].reshape(-1, *images.shape[2:]) for row in rows])

    def _remember(self, embedded: Tensor, state: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The rows' histories with what they see now: [n, H, D], [n, H, P], and what of it is real [n, H]."""
        made: list[tuple[Tensor, Tensor]] = []
        for row, *newest in zip(rows, embedded, state, strict=True):
            past = self._past.get(int(row))
            if past is not None:
                newest = [torch.cat(both)[-self.history :] for both in zip(past, newest, strict=True)]
            self._past[int(row)] = (newest[0], newest[1])
            made.append(self._past[int(row)])
        lengths = torch.tensor([len(seen) for seen, _ in made], device=embedded.device)
        places = torch.arange(self.history, device=embedded.device)
        valid = places >= self.history - lengths[:, None]
        parts = (nn.utils.rnn.pad_sequence(list(p), True, padding_side="left") for p in zip(*made, strict=True))
        whole = [nn.functional.pad(part, (0, 0, self.history - part.shape[1], 0)) for part in parts]
        return whole[0], whole[1], valid

    def _told(self) -> str:
        if not self.instruction:
            raise BadInputError(
                "instruction",
                "none, and demonstrations of several or of none",
                "what the policy shall do, in words",
                'set policy.instruction = "..."',
            )
        return self.instruction

    def config(self) -> PolicyConfig:
        """What `config.json` says of it."""
        head = self.head.config
        return PolicyConfig(
            encoder=self.encoder.config,
            head=HeadConfig(**{name: getattr(head, name) for name in HeadConfig.model_fields}),
            action_dim=self.head.action_dim,
            state_dim=self.head.state_dim,
            instruction=self.instruction,
            demonstrations=self.demonstrations,
        )

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the model's folder, made when absent, and return it."""
        return write_model(Path(folder), "cloned_policy", self.config().model_dump(mode="json"), self.state_dict())

    @classmethod
    def from_pretrained(cls, path_or_hub_id: str | Path, *, map_location: str = "cpu", **hub: Any) -> Self:
        """Load a saved policy, ready to act; arguments and errors as `counterpoint.load`."""
        saved = read_model(path_or_hub_id, "cloned_policy", **hub)
        config = saved.settings(PolicyConfig)
        encoder = ObservationEncoder.rebuilt(config.encoder)
        head = ActionHead(
            encoder.embed_dim, config.action_dim, config.state_dim, config.head, cameras=config.encoder.cameras
        )
        policy = cls(encoder, head, config.demonstrations)
        policy.instruction = config.instruction
        return saved.fill(policy, map_location)
