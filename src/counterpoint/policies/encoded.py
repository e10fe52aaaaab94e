"""The base class of cloned and diffusion policies: it encodes images, keeps observations, and executes plans.

Observations are kept for each environment; an environment is a row of a batch of observations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.data.augment import centre_corner
from counterpoint.data.draws import sample_seed
from counterpoint.data.episode import Array
from counterpoint.data.resize import as_rgb, resize
from counterpoint.encoders.card import Description
from counterpoint.encoders.hub import SavedModel, read_model
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError, require
from counterpoint.policies.chunking import ActionChunks
from counterpoint.policies.demonstrations import Demonstrations

Observation = Mapping[str, Any]
"""A mapping with images by camera (`front` or `observation.images.front`), "state" (or "observation.state"), and
optionally "environment_state" and "task"."""


@dataclass(slots=True)
class Moment:
    """An observation that was read; it is encoded when a plan first needs it.

    Attributes:
        images: uint8 [C S, h, w, 3], cropped, the first camera's S frames first; `None` without cameras.
        state: float32 [P].
        instruction: The task in words.
        embedded: [D]; `None` until the observation is encoded.
    """

    images: Array | None
    state: Array
    instruction: str
    embedded: Tensor | None = None


class Episode:
    """The memory of one row: its newest observations and its number of plans.

    Args:
        seed: Seed of the episode.
        history: Number of observations that a plan uses (H).
        stack: Number of frames per observation and camera (S).
    """

    def __init__(self, seed: int, history: int, stack: int) -> None:
        self._seed, self._plans = seed, 0
        self._frames: deque[Array] = deque(maxlen=stack)
        self.moments: deque[Moment] = deque(maxlen=history)

    def see(self, images: Array | None, state: Array, instruction: str) -> None:
        """Store an observation [C, h, w, 3]; before an episode's start, its first frame is repeated."""
        if images is not None:
            self._frames.extend([images] * (1 if self._frames else self._frames.maxlen or 1))
            images = np.stack(self._frames, axis=1).reshape(-1, *images.shape[1:])
        self.moments.append(Moment(images, state, instruction))

    def window(self) -> list[Moment]:
        """Return H observations, the oldest first; before an episode's start, its first observation is repeated."""
        return [self.moments[0]] * ((self.moments.maxlen or 1) - len(self.moments)) + list(self.moments)

    def next_generator(self) -> torch.Generator:
        """Return the generator of the next plan's noise, which depends only on the episode's seed and plan number."""
        self._plans += 1
        return torch.Generator().manual_seed(sample_seed(self._seed % 2**64, self._plans - 1, "plan"))


@dataclass(frozen=True)
class Window:
    """The inputs from which n rows' plans are computed.

    Attributes:
        embedded: [n, H, D], the oldest observation first; D is 0 without cameras.
        state: float32 [n, H, P].
        valid: False for observations before the episode's first.
        instructions: n texts.
        generators: n generators of noise.
    """

    embedded: Float[Tensor, "n H D"]
    state: Float[Tensor, "n H P"]
    valid: Bool[Tensor, "n H"]
    instructions: list[str]
    generators: list[torch.Generator]


class EncodedPolicyConfig(FrozenConfig):
    """The part of a saved policy's configuration that all kinds of policy have.

    Attributes:
        encoder: The encoder.
        action_dim: Number of action dimensions (A).
        state_dim: Number of proprioception dimensions (P).
        frame: Height and width of the policy's images before cropping, in pixels.
        cameras: Names of the cameras, in the encoder's order; empty if they are not known.
        instruction: The task, for policies that read language.
        demonstrations: Statistics of the training data, for information; the normalisation is among the weights.
    """

    encoder: ObservationConfig
    action_dim: int
    state_dim: int
    frame: int = 0
    cameras: tuple[str, ...] = ()
    instruction: str = ""
    demonstrations: Demonstrations | None = None


class EncodedPolicy(nn.Module, SavedModel):
    """A `Policy` that encodes images, keeps a history for each row, and executes plans of actions.

    Subclasses implement `plan`, `config` and `build`.

    Args:
        encoder: The encoder of observations into D dimensions; of kind "none" for a policy that reads only
            proprioception.
        chunks: The rule that turns plans into actions.
        history: Number of observations that a plan uses (H).
        state_dim: Number of proprioception dimensions (P).
        use_state: Read proprioception.
        frame: Height and width of the policy's images, in pixels. If they are larger than the encoder's, training crops
            the images at random, and acting crops their centre.
        cameras: Names of the cameras, in the encoder's order; without names, images keep the observation's order.
        demonstrations: Statistics of the training data, stored with the policy.

    Attributes:
        instruction: The task, for policies that read language; by default the demonstrations' instruction, if they have
            only one.
    """

    config_type: ClassVar[type[EncodedPolicyConfig]]

    def __init__(
        self,
        encoder: ObservationEncoder,
        chunks: ActionChunks,
        *,
        history: int,
        state_dim: int,
        use_state: bool,
        frame: int | None = None,
        cameras: Sequence[str] = (),
        demonstrations: Demonstrations | None = None,
    ) -> None:
        super().__init__()
        C, size = encoder.config.cameras, encoder.config.size
        self.encoder, self.history = encoder, history
        self.state_dim, self.use_state = state_dim, use_state
        self.frame, self.cameras, self.demonstrations = frame or size, tuple(cameras) if C else (), demonstrations
        self.instruction = demonstrations.instruction if demonstrations is not None else ""
        hint = "as many names as cameras, and images no smaller than the encoder's"
        require(len(self.cameras) in (0, C), "cameras", len(self.cameras), f"{C}", hint)
        require(self.frame >= size, "frame", self.frame, f"{size}", hint)
        self._chunks = chunks
        self._episodes: dict[int, Episode] = {}
        self._begun = 0

    @property
    def stack(self) -> int:
        """Number of frames per observation and camera (S)."""
        return self.encoder.config.stack

    @property
    def state_sources(self) -> dict[str, int]:
        """The number of dimensions of each source of the state, in order; empty if no state is read."""
        known = self.demonstrations.sources if self.demonstrations is not None else {}
        return (known or {"state": self.state_dim}) if self.use_state else {}

    @property
    def reads_language(self) -> bool:
        """True if the policy reads an instruction."""
        return self.encoder.takes_instruction

    def plan(self, window: Window) -> Float[Tensor, "n K A"]:
        """Return plans in the environment's units; their first action is for the newest observation's step."""
        raise NotImplementedError

    def config(self) -> EncodedPolicyConfig:
        """Return the configuration of the saved policy."""
        raise NotImplementedError

    def shared_config(self) -> dict[str, Any]:
        """Return the fields of `EncodedPolicyConfig`, without `action_dim`."""
        names = ("state_dim", "frame", "cameras", "instruction", "demonstrations")
        return {"encoder": self.encoder.config} | {name: getattr(self, name) for name in names}

    @classmethod
    def build(cls, config: Any) -> Self:
        """Return a policy with random weights."""
        raise NotImplementedError

    def reset(self, rows: Sequence[int] | None = None, seeds: Sequence[int] | None = None) -> None:
        """Begin an episode in each of these rows, by default in all rows; see `Policy`."""
        rows = list(self._episodes) if rows is None else [int(row) for row in rows]
        numbers = range(self._begun, self._begun + len(rows)) if seeds is None else seeds
        self._begun += len(rows)
        for row, seed in zip(rows, numbers, strict=True):
            self._episodes[row] = Episode(int(seed), self.history, self.stack)
        self._chunks.reset(rows)

    def looks(self, rows: Sequence[int]) -> list[bool]:
        """Return, for each row (environment), whether `act` reads its next images: True if a plan will use them."""
        return self._plans_soon(rows) if self.encoder.config.cameras else [False] * len(rows)

    @torch.no_grad()
    def act(self, observation: Observation, *, rows: Sequence[int], explore: bool = False) -> NDArray[Any]:
        """Return actions of n rows, float32 [n, A] in the environment's units.

        Args:
            observation: Images by camera, uint8 or float in [0, 1], numpy or torch, of any size, in a form that
                `counterpoint.data.resize.as_rgb` accepts; "state" [n, P]; for language, a "task" for each row (by
                default `instruction`).
            rows: Environments that the observations come from.
            explore: Ignored.

        Raises:
            BadInputError: If a camera or state is missing or has the wrong shape, or a plan is not finite.
        """
        rows = self._begin(rows)
        self._see(observation, rows, self._plans_soon(rows))
        due = [row for row, left in zip(rows, self._chunks.left(rows), strict=True) if left == 0]
        if due:
            self._chunks.give(due, self._plans(due))
        return self._chunks.take(rows)

    def select_action(self, observation: Observation) -> Any:
        """Return the next action of one robot [A] or of n robots [n, A], as LeRobot's policies do.

        `reset()` begins an episode. The result is a numpy array if observations are numpy arrays, a tensor for tensors.
        """
        batch, single, like = _batched(observation)
        return _as_given(self.act(batch, rows=range(_count(batch))), single, like)

    @torch.no_grad()
    def predict_action_chunk(self, observation: Observation) -> Any:
        """Return all planned actions, starting at this observation's step: [K, A], or [n, K, A] for n robots."""
        self.observe(observation)
        batch, single, like = _batched(observation)
        return _as_given(self._plans(list(range(_count(batch)))), single, like)

    def observe(self, observation: Observation) -> None:
        """Store an observation of one robot or of n robots without planning.

        A plan reads the newest `history` observations, which were one control step apart in training. If
        `predict_action_chunk` is not called at every step, pass the observations of the steps before it to this method.
        """
        batch, _, _ = _batched(observation)
        rows = self._begin(range(_count(batch)))
        self._see(batch, rows, [True] * len(rows))

    def contents(self) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """Return the configuration and the weights."""
        return self.config().model_dump(mode="json"), self.state_dict()

    def describe(self) -> Description:
        """Return the policy's description for the model card."""
        config, encoder = self.config(), self.encoder.config
        usage = 'action = model.select_action(observation)  # images by camera, "state"'
        size = f"{encoder.size} x {encoder.size}"
        facts: dict[str, object] = {
            "Encoder": f"{encoder.kind} {encoder.model}",
            "Observation": f"{', '.join(self.cameras) or f'{encoder.cameras} camera(s)'}; {self.stack} frames, {size}",
            "State": ", ".join(f"{dim} numbers of {name}" for name, dim in self.state_sources.items()) or "not read",
            "Action": f"{config.action_dim} numbers, in the units of the demonstrations",
            "Instruction": self.instruction or ("any" if self.reads_language else "not read"),
        }
        return Description(usage, facts, {})

    @classmethod
    def from_pretrained(cls, path_or_hub_id: str | Path, *, map_location: str = "cpu", **hub: Any) -> Self:
        """Load a saved policy, ready to act; arguments and errors are those of `counterpoint.load`."""
        saved = read_model(path_or_hub_id, cls.kind, map_location, **hub)
        config = saved.settings(cls.config_type)
        policy = cls.build(config)
        policy.instruction = config.instruction
        return saved.fill(policy, map_location)

    def _begin(self, rows: Sequence[int]) -> list[int]:
        if self.training:  # tested first: setting every module's mode takes longer than returning an action
            self.eval()
        rows = [int(row) for row in rows]
        fresh = [row for row in rows if row not in self._episodes]
        if fresh:
            self.reset(fresh)
        return rows

    def _plans_soon(self, rows: Sequence[int]) -> list[bool]:
        found: list[bool] = (self._chunks.left(rows) < self.history + self.stack - 1).tolist()
        return found

    def _see(self, observation: Observation, rows: list[int], looks: Sequence[bool]) -> None:
        """Store the observation of each row where `looks` is true, for its next plan; skip the other rows."""
        at = np.flatnonzero(looks)
        states = [np.zeros((len(rows), 0), np.float32)]
        for name, dim in self.state_sources.items():
            part = _find(observation, (name, f"observation.{name}"))
            shape = None if part is None else list(part.shape[1:])
            require(shape == [dim], name, f"shape {shape}", f"[{dim}]", "give the same robot's")
            states.append(np.asarray(_array(part), np.float32))
        joined = np.concatenate(states, axis=1)
        images = self._images(observation, at) if self.encoder.config.cameras else None
        task = _find(observation, ("task",)) or self.instruction
        texts = [task] * len(rows) if isinstance(task, str) else list(task)
        if self.reads_language and not all(texts):
            hint = 'set policy.instruction = "..."'
            raise BadInputError("instruction", "none, and demonstrations of several or of none", "the task", hint)
        for number, index in enumerate(at.tolist()):
            image = None if images is None else images[number]
            self._episodes[rows[index]].see(image, joined[index].copy(), texts[index])

    def _images(self, observation: Observation, at: NDArray[np.intp]) -> Array:
        """Return the images of some rows at the encoder's size, uint8 [m, C, h, w, 3]."""
        C, size = self.encoder.config.cameras, self.encoder.config.size
        if self.cameras:
            # In robomimic's data, images of camera agentview are named agentview_image.
            forms = ("{0}", "observation.images.{0}", "observation.{0}", "{1}")
            names = [[form.format(name, name.removesuffix("_image")) for form in forms] for name in self.cameras]
            found = [_find(observation, each) for each in names]
        if not self.cameras or (C == 1 and found[0] is None):  # one camera needs no name
            found = [value for value in observation.values() if _may_be_images(value)]
        if len(found) != C or any(value is None for value in found):
            wanted = f"images of {', '.join(self.cameras)}" if self.cameras else f"images of {C} cameras"
            raise BadInputError("observation", f"{', '.join(observation)}", wanted, "name every camera as in training")
        x, y = centre_corner(self.frame, self.frame, size)
        views = [resize(_pixels(value, at), self.frame)[:, y : y + size, x : x + size] for value in found]
        return np.stack(views, axis=1)

    def _plans(self, rows: list[int]) -> Array:
        """Return one plan for each row: float32 [n, K, A]."""
        windows = [self._episodes[row].window() for row in rows]
        self._encode([moment for window in windows for moment in window])
        lengths = torch.tensor([[len(self._episodes[row].moments)] for row in rows])
        parameter = next(self.parameters())
        embedded = [torch.stack([moment.embedded for moment in w if moment.embedded is not None]) for w in windows]
        state = torch.from_numpy(np.stack([np.stack([moment.state for moment in window]) for window in windows]))
        texts = [window[-1].instruction for window in windows]
        planned = self.plan(
            Window(
                embedded=torch.stack(embedded),
                state=state.to(parameter.device),
                valid=(torch.arange(self.history) >= self.history - lengths).to(parameter.device),
                instructions=texts,
                generators=[self._episodes[row].next_generator() for row in rows],
            )
        )
        plans = planned.float().cpu().numpy()
        hint = "look for weights, images or proprioception that are not finite"
        require(np.isfinite(plans).all(), "policy", "a plan that is not finite", "finite actions", hint)
        return np.asarray(plans)

    def _encode(self, moments: list[Moment]) -> None:
        """Encode all observations that are not encoded yet, in one batch; repeated observations are encoded once."""
        fresh = list({id(moment): moment for moment in moments if moment.embedded is None}.values())
        if not fresh:
            return
        images = [np.zeros(0, np.uint8) if moment.images is None else moment.images for moment in fresh]
        frames = torch.from_numpy(np.stack(images)).to(next(self.parameters()).device)
        texts = [moment.instruction for moment in fresh] if self.encoder.takes_instruction else None
        for moment, embedded in zip(fresh, self.encoder(frames, texts), strict=True):
            moment.embedded = embedded


def _find(observation: Observation, names: Sequence[str]) -> Any:
    return next((observation[name] for name in names if name in observation), None)


def _array(value: Any) -> NDArray[Any]:
    found: NDArray[Any] = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    return found


def _may_be_images(value: Any) -> bool:
    """Return True if a value has the shape of images of some rows: [n, H, W, C], [n, C, H, W], or grey [n, H, W]."""
    dims = getattr(value, "ndim", 0)
    return dims == 4 or (dims == 3 and str(value.dtype).endswith("uint8"))


def _pixels(value: Any, at: NDArray[np.intp]) -> Array:
    """Return the images of some rows as uint8 [m, H, W, 3]."""
    images = as_rgb("images", _array(value)[at])
    if images.dtype != np.uint8:
        good = images.size == 0 or bool(images.min() >= 0 and images.max() <= 1)
        expected, hint = "floats in [0, 1]", "divide by 255, or give uint8"
        require(good, "images", f"{images.dtype} out of range", expected, hint)
        images = np.rint(images * 255).astype(np.uint8)
    return np.ascontiguousarray(images)


def _batched(observation: Observation) -> tuple[dict[str, Any], bool, Tensor | None]:
    """Return the observation as a batch, True if it was of a single robot, and one of its tensors, if any."""
    arrays = {name: value for name, value in observation.items() if hasattr(value, "ndim")}
    state = _find(arrays, ("state", "observation.state"))
    single = state.ndim == 1 if state is not None else all(value.ndim == 3 for value in arrays.values())
    like = next((value for value in arrays.values() if isinstance(value, Tensor)), None)
    return (
        {name: value[None] if single and name in arrays else value for name, value in observation.items()},
        single,
        like,
    )


def _count(batch: Observation) -> int:
    return next(len(value) for value in batch.values() if hasattr(value, "ndim"))


def _as_given(actions: NDArray[Any], single: bool, like: Tensor | None) -> Any:
    actions = actions[0] if single else actions
    return actions if like is None else torch.from_numpy(np.ascontiguousarray(actions)).to(like.device)
