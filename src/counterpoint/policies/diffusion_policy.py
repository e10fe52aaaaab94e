"""What a policy that plans remembers of an episode: the newest observations it looked at, and how often it planned.

Diffusion Policy: a window of observations becomes a plan of actions, of which the first few are executed.

Chi et al., "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion", RSS 2023. Each camera has an encoder,
their embeddings and the normalised proprioception of To observations condition the denoising of K actions, and those
from the newest observation's step on are executed (or averaged with earlier plans).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import centre_corner
from counterpoint.data.episode import Array
from counterpoint.encoders.hub import read_model, write_model
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.policies.base import images_of
from counterpoint.policies.chunking import ActionChunks, RecedingHorizon, TemporalEnsemble
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionConfig, DiffusionHead
from counterpoint.policies.normalizer import LinearNormalizer

__all__ = ["DiffusionPolicy", "DiffusionPolicyConfig", "Episode", "Moment"]


@dataclass(slots=True)
class Moment:
    """An observation that was looked at; encoded when the first plan needs it.

    Attributes:
        frames: uint8 [C, h, w, 3], cropped.
        state: float32 [P].
        condition: [O], once it is encoded.
    """

    frames: Array
    state: Array
    condition: Tensor | None = None


class Episode:
    """The newest To moments, and the noise of plans.

    Args:
        seed: Of the episode.
        steps: To.
    """

    def __init__(self, seed: int, steps: int) -> None:
        self._seed, self._steps, self._plans = seed, steps, 0
        self.moments: deque[Moment] = deque(maxlen=steps)

    def see(self, moment: Moment) -> None:
        """The newest; before the first of an episode lies the first itself."""
        self.moments.extend([moment] * (1 if self.moments else self._steps))

    def condition(self) -> Float[Tensor, "To O"]:
        """All moments, encoded, the oldest first."""
        return torch.stack([moment.condition for moment in self.moments if moment.condition is not None])

    def next_generator(self) -> torch.Generator:
        """Of the next plan's noise: a function of the episode's seed and the plan's number."""
        mixed = np.random.SeedSequence([self._seed % 2**64, self._plans]).generate_state(1, np.uint64)
        self._plans += 1
        return torch.Generator().manual_seed(int(mixed[0]))


class DiffusionPolicyConfig(FrozenConfig):
    """Everything needed to build a saved policy again.

    Attributes:
        encoder: Of the encoder.
        diffusion: Of the head.
        action_dim: A.
        state_dim: P.
        use_state: Whether it reads proprioception.
        frame: Height and width of its pictures before they are cropped, in pixels.
        cameras: Their names, in the encoder's order; none where they are not known.
        ensemble: Decay of the temporal ensemble; `None`: receding horizon.
        demonstrations: What it learned from; a record. What normalises is among the weights.
    """

    encoder: ObservationConfig
    diffusion: DiffusionConfig
    action_dim: int
    state_dim: int
    use_state: bool
    frame: int
    cameras: tuple[str, ...] = ()
    ensemble: float | None = None
    demonstrations: Demonstrations | None = None


class DiffusionPolicy(nn.Module):
    """Acts on windows of observations; a `Policy`.

    Args:
        encoder: Observations into D dimensions: of single frames, without language.
        head: Embeddings into plans; its actions are normalised by whoever builds it.
        state_dim: P, numbers of proprioception.
        use_state: Whether it reads them. They are normalised by the demonstrations' range.
        frame: Height and width of its pictures, in pixels. Where they are larger than the encoder's, training crops
            at random and acting in the centre.
        cameras: Their names, in the encoder's order, kept beside it.
        demonstrations: What it learned from, kept beside it.
        ensemble: Decay of ACT's temporal ensemble, which plans at every step; `None` executes
            `head.config.executed` actions of each plan.

    Raises:
        BadInputError: When encoder, head, frame and cameras do not fit together.
    """

    def __init__(
        self,
        encoder: ObservationEncoder,
        head: DiffusionHead,
        *,
        state_dim: int = 0,
        use_state: bool = False,
        frame: int | None = None,
        cameras: Sequence[str] = (),
        demonstrations: Demonstrations | None = None,
        ensemble: float | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.state_dim, self.use_state = state_dim, use_state
        self.frame = frame or encoder.config.size
        self.cameras, self.demonstrations, self.ensemble = tuple(cameras), demonstrations, ensemble
        self._check_parts()
        self.state_normalizer = LinearNormalizer(state_dim) if use_state else None
        if self.state_normalizer is not None and demonstrations is not None and demonstrations.state:
            self.state_normalizer.normalise_by(demonstrations.state)
        self._chunks: ActionChunks = (
            RecedingHorizon(head.config.executed) if ensemble is None else TemporalEnsemble(ensemble)
        )
        self._episodes: dict[int, Episode] = {}
        self._begun = 0

    def normal_state(self, state: Float[Tensor, "... P"]) -> Float[Tensor, "... P"]:
        """Proprioception as the networks get it."""
        assert self.state_normalizer is not None
        normal: Tensor = self.state_normalizer(state.float())
        return normal

    def condition(
        self, frames: UInt8[Tensor, "B To C h w 3"], state: Float[Tensor, "B To P"] | None
    ) -> Float[Tensor, "B To O"]:
        """What the head is given: of each observation its embedded cameras, then its normalised proprioception.

        Args:
            frames: Cropped to the encoder's size.
            state: As the robot tells it; not looked at unless the policy uses it.
        """
        B, To = frames.shape[:2]
        embedded: Tensor = self.encoder(frames.flatten(0, 1)).view(B, To, -1)
        if not self.use_state:
            return embedded
        if state is None:
            raise BadInputError(
                "state",
                "none",
                f"{self.state_dim} numbers of proprioception an observation",
                "give them, or train with use_state = false",
            )
        return torch.cat([embedded, self.normal_state(state)], -1)

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        """Forget what these rows have seen and planned."""
        numbers = range(self._begun, self._begun + len(rows)) if seeds is None else seeds
        self._begun += len(rows)
        for row, seed in zip(rows, numbers, strict=True):
            self._episodes[int(row)] = Episode(int(seed), self.head.config.obs_steps)
        self._chunks.reset(rows)

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """At the newest To observations of each plan."""
        found: list[bool] = (self._chunks.left(rows) < self.head.config.obs_steps).tolist()
        return found

    @torch.no_grad()
    def act(self, observation: Mapping[str, Array], *, rows: Sequence[int], explore: bool = False) -> Array:
        """Return actions of n rows, float32 [n, A] in [-1, 1].

        Args:
            observation: Images by camera, uint8 [n, H, W, 3], H = W = `frame`, in the encoder's order; "state",
                float32 [n, P].
            rows: Environments that the observations come from.
            explore: Ignored.

        Raises:
            BadInputError: When images or state have another shape, or a plan is not finite.
        """
        frames, state = images_of(observation), observation["state"]
        if self.training:  # asked first: to set every module's mode takes longer than to look an action up
            self.eval()
        rows = [int(row) for row in rows]
        begun = [row for row in rows if row not in self._episodes]
        if begun:
            self.reset(begun)
        self._check_seen(frames, state)
        self._look(frames, state, rows)
        due = [row for row, left in zip(rows, self._chunks.left(rows), strict=True) if left == 0]
        if due:
            self._chunks.give(due, self._plans([self._episodes[row] for row in due]))
        return np.clip(self._chunks.take(rows), -1, 1)

    def _look(self, frames: Array, state: Array, rows: list[int]) -> None:
        """Keep the centre of what is looked at; before the first observation lies the first."""
        size = self.encoder.config.size
        x, y = centre_corner(self.frame, self.frame, size)
        for place, look in enumerate(self.looks(rows)):
            if look:
                window = frames[place, :, y : y + size, x : x + size].copy()
                self._episodes[rows[place]].see(Moment(window, np.array(state[place], np.float32)))

    def _plans(self, episodes: list[Episode]) -> Array:
        """One plan each, from this step on: float32 [m, K - To + 1, A]."""
        self._encode([moment for episode in episodes for moment in episode.moments])
        condition = torch.stack([episode.condition() for episode in episodes])
        generators = [episode.next_generator() for episode in episodes]
        planned = self.head.sample(condition, generator=generators)
        plans = planned[:, self.head.config.obs_steps - 1 :].float().cpu().numpy()
        if not np.isfinite(plans).all():
            raise BadInputError(
                "policy",
                "a plan that is not finite",
                "finite actions",
                "look for weights, pictures or proprioception that are not finite",
            )
        return np.asarray(plans)

    def _encode(self, moments: list[Moment]) -> None:
        """All that no plan has used yet, at once; a moment that stands for several is encoded once."""
        fresh = list({id(moment): moment for moment in moments if moment.condition is None}.values())
        if not fresh:
            return
        device = next(self.parameters()).device
        frames = torch.from_numpy(np.stack([moment.frames for moment in fresh])).to(device)
        state = torch.from_numpy(np.stack([moment.state for moment in fresh])).to(device)
        for moment, one in zip(fresh, self.condition(frames[:, None], state[:, None])[:, 0], strict=True):
            moment.condition = one

    def _check_seen(self, frames: Array, state: Array) -> None:
        C = self.encoder.config.cameras
        given: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        given.append(("frames", frames.shape[1:], (C, self.frame, self.frame, 3)))
        if self.use_state:
            given.append(("state", state.shape[1:], (self.state_dim,)))
        for what, found, expected in given:
            if found != expected:
                raise BadInputError(
                    what,
                    f"shape {list(found)} of a row",
                    f"{list(expected)}, as in training",
                    "draw the policy's cameras at its frame size, and give the same robot's state",
                )

    def _check_parts(self) -> None:
        encoder, head = self.encoder, self.head
        C, size = encoder.config.cameras, encoder.config.size
        wide = encoder.embed_dim + (self.state_dim if self.use_state else 0)
        for what, found, expected in (
            ("encoder.stack", encoder.config.stack, 1),
            ("encoder that takes an instruction", encoder.takes_instruction, False),
            ("head.condition_dim", head.condition_dim, wide),
            ("cameras", len(self.cameras) or C, C),
            ("frame", self.frame, max(self.frame, size)),
        ):
            if found != expected:
                raise BadInputError(
                    what,
                    f"{found}",
                    f"{expected}",
                    "build encoder and head for each other: single frames, one picture a camera, and "
                    "embeddings with proprioception beside them where it is used",
                )

    def config(self) -> DiffusionPolicyConfig:
        """What `config.json` says of it."""
        return DiffusionPolicyConfig(
            encoder=self.encoder.config,
            diffusion=self.head.config,
            action_dim=self.head.action_dim,
            state_dim=self.state_dim,
            use_state=self.use_state,
            frame=self.frame,
            cameras=self.cameras,
            ensemble=self.ensemble,
            demonstrations=self.demonstrations,
        )

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the model's folder, made when absent, and return it."""
        return write_model(Path(folder), "diffusion_policy", self.config().model_dump(mode="json"), self.state_dict())

    @classmethod
    def from_pretrained(cls, path_or_hub_id: str | Path, *, map_location: str = "cpu", **hub: Any) -> Self:
        """Load a saved policy, ready to act; arguments and errors as `counterpoint.load`."""
        saved = read_model(path_or_hub_id, "diffusion_policy", **hub)
        config = saved.settings(DiffusionPolicyConfig)
        encoder = ObservationEncoder.rebuilt(config.encoder)
        state_dim = config.state_dim if config.use_state else 0
        head = DiffusionHead(config.action_dim, encoder.embed_dim + state_dim, config.diffusion)
        policy = cls(
            encoder,
            head,
            state_dim=config.state_dim,
            use_state=config.use_state,
            frame=config.frame,
            cameras=config.cameras,
            demonstrations=config.demonstrations,
            ensemble=config.ensemble,
        )
        return saved.fill(policy, map_location)
