"""Gymnasium wrappers whose rewards come from language or a goal image, for single and vector environments.

Phi(s) is the reward that a `RewardModel` computes from the images since the episode began, up to state s; s_0 is the
first state and s' the next::

    difference   discount * Phi(s') - Phi(s)     DecisionNCE, Eq. 3 with discount 1; Ng, Harada and Russell 1999
    gain         Phi(s') - Phi(s_0)

A reward depends only on images up to its own step. A model that reads the robot's state takes it from the observation's
`state`. With `discount=1`, an agent that discounts rewards earns more if Phi rises earlier. If `discount` is the
agent's own discount, differences do not change which policies are best under the task's reward. In this case, add the
task's reward (`environment_weight`): without it, differences rank all policies the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.episode import Array
from counterpoint.data.resize import as_rgb, channel_axis
from counterpoint.encoders.calibration import RewardForm
from counterpoint.errors import require, require_known
from counterpoint.rewards.embedding import STATE, Embedder, check_instructions, embed_frames, reads_state
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import FunctionReward

Embedded = NDArray[np.float64]
Rows = NDArray[np.intp]
Reading = Literal["difference", "gain"]
Observation = TypeVar("Observation")
Action = TypeVar("Action")


class Potentials:
    """Computes the rewards of N environments (rows) with one model; keeps each row's value at its start and now.

    Args:
        model: The reward.
        n: The number of environments, N.
        instruction: The task in words, or one for each environment.
        goal: An image of the goal, uint8 [H, W, 3], instead of the instruction; as in `RewardModel.reward`.
        reward: `difference` or `gain`; see the module's docstring.
        discount: Factor of the next state's potential, for `difference`.
        form: The form of the reward; by default the one that the model was trained for.

    Attributes:
        reader: The encoder, which may read the robot's state.

    Raises:
        BadInputError: If both an instruction and a goal are given, or neither, or the model was not trained for the
            form.
    """

    def __init__(
        self,
        model: RewardModel,
        n: int,
        instruction: str | Sequence[str] | None = None,
        *,
        goal: Array | Mapping[str, Array] | None = None,
        reward: Reading = "difference",
        discount: float = 1.0,
        form: RewardForm | None = None,
    ) -> None:
        one = (instruction is None) == (goal is not None)
        require(one, "reward", "both or none", "an instruction or a goal image", "give one")
        require(reward in ("difference", "gain"), "reward", repr(reward), "'difference' or 'gain'", "choose one")
        require(0 < discount <= 1, "discount", discount, "a number in (0, 1]", "1 gives plain differences")
        texts = () if instruction is None else check_instructions(instruction)
        require(
            goal is not None or len(texts) in (1, n), "instruction", len(texts), f"1 or {n}", "give one for each row"
        )
        self.model, self.reward, self.discount = model, reward, discount
        self.reader: object = model.encoder
        self.form, targets = model.targets(texts, goal=goal, form=form)
        self.targets = np.broadcast_to(targets, (n, targets.shape[1]))
        self.first = np.zeros_like(self.targets)
        self.start, self.last = np.zeros(n), np.zeros(n)

    def embed(self, seen: Mapping[str, Array]) -> Float[Array, "N D"]:
        """Return the embeddings of a result of `seen_in`, in batches of up to the model's batch size."""
        return embed_frames(self.model.encoder, seen, self.model.batch_size)

    def begin(self, rows: Rows, embedded: Float[Array, "n D"]) -> None:
        """Begin the episodes of some rows with their first images."""
        self.first[rows] = embedded
        self.start[rows] = self.last[rows] = self._values(rows, embedded)

    def advance(self, rows: Rows, embedded: Float[Array, "n D"]) -> Float[Embedded, " n"]:
        """Return the rewards of some rows for their next images."""
        now = self._values(rows, embedded)
        before, self.last[rows] = self.last[rows], now
        return self.discount * now - before if self.reward == "difference" else now - self.start[rows]

    def _values(self, rows: Rows, embedded: Float[Embedded, "n D"]) -> Float[Embedded, " n"]:
        pairs = zip(self.first[rows], embedded, self.targets[rows], strict=True)
        values = [self.model.score(self.form, np.stack([a, b]), target[None])[0, 1] for a, b, target in pairs]
        return np.array(values)


class FunctionPotentials:
    """Computes the rewards of N environments (rows) with a model of others, from all images since an episode began.

    A call takes the model as long as a video of that length.

    Args:
        model: The model.
        n: The number of environments, N.
        instruction: The task in words, or one for each environment.
        reward: `difference` or `gain`; see the module's docstring.
        discount: Factor of the next state's potential, for `difference`.

    Attributes:
        reader: The model, which may read the robot's state.
    """

    def __init__(
        self, model: FunctionReward, n: int, instruction: str | Sequence[str], reward: Reading, discount: float
    ) -> None:
        texts = check_instructions(instruction)
        require(len(texts) in (1, n), "instruction", len(texts), f"1 or {n}", "give one for each row")
        self.model, self.reward, self.discount = model, reward, discount
        self.reader: object = model
        self.texts = [*texts] * (n // len(texts))
        self.seen: list[list[dict[str, Array]]] = [[] for _ in range(n)]
        self.start, self.last = np.zeros(n), np.zeros(n)

    def embed(self, seen: Mapping[str, Array]) -> Array:
        """Return the parts of each row, as mappings; images become uint8."""
        parts = {name: part if name == STATE else _as_bytes(part) for name, part in seen.items()}
        rows = np.empty(len(next(iter(parts.values()))), object)
        rows[:] = [{name: part[row] for name, part in parts.items()} for row in range(len(rows))]
        return rows

    def begin(self, rows: Rows, embedded: Array) -> None:
        """Begin the episodes of some rows with their first images."""
        for row, seen in zip(rows.tolist(), embedded, strict=True):
            self.seen[row] = [seen]
            self.start[row] = self.last[row] = self._value(row)

    def advance(self, rows: Rows, embedded: Array) -> Float[Embedded, " n"]:
        """Return the rewards of some rows for their next images."""
        for row, seen in zip(rows.tolist(), embedded, strict=True):
            self.seen[row].append(seen)
        now = np.array([self._value(row) for row in rows.tolist()])
        before, self.last[rows] = self.last[rows], now
        return self.discount * now - before if self.reward == "difference" else now - self.start[rows]

    def _value(self, row: int) -> float:
        frames = {name: np.stack([seen[name] for seen in self.seen[row]]) for name in self.seen[row][0]}
        return float(self.model.predict(frames, self.texts[row]).progress[-1])


def _as_bytes(images: Array) -> Array:
    return images if images.dtype == np.uint8 else np.round(images * 255).astype(np.uint8)


def potentials_of(
    model: RewardModel | FunctionReward,
    n: int,
    instruction: str | Sequence[str] | None,
    goal: Array | Mapping[str, Array] | None,
    reward: Reading,
    discount: float,
    form: RewardForm | None,
) -> Potentials | FunctionPotentials:
    """Return the rewards of N environments; arguments are those of `Potentials`.

    Raises:
        BadInputError: If a model of others is given a goal or a form, or see `Potentials`.
    """
    if isinstance(model, RewardModel):
        return Potentials(model, n, instruction, goal=goal, reward=reward, discount=discount, form=form)
    instructed = instruction is not None and goal is None and form is None
    require(instructed, model.name, "a goal or a form, or no instruction", "an instruction alone", "give only that")
    assert instruction is not None
    return FunctionPotentials(model, n, instruction, reward, discount)


class LanguageReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper whose reward measures how the images progress in carrying out an instruction, or towards a goal image.

    The environment's own reward is in `info["environment_reward"]`.

    Args:
        env: The environment.
        model: The reward, or a model of others (`counterpoint.rewards.sources.open_function`).
        instruction: The task in words; give this or `goal`.
        goal: An image of the goal, uint8 [H, W, 3]; as in `RewardModel.reward`.
        image: Key of the image in the environment's Dict observation; `None` renders one (`env.render()`).
        reward: `difference` or `gain`; see the module's docstring.
        discount: Factor of the next state's potential, for `difference`.
        environment_weight: Weight of the environment's own reward in the sum; 0 leaves it out.
        form: The form of the reward; by default the one that the model was trained for.

    Raises:
        BadInputError: If the environment does not provide the image, or the model was not trained for the form.

    Example:
        >>> env = LanguageReward(make_env("metaworld/drawer-open"), model, "open the drawer")  # doctest: +SKIP
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        model: RewardModel | FunctionReward,
        instruction: str | None = None,
        *,
        goal: Array | Mapping[str, Array] | None = None,
        image: str | None = None,
        reward: Reading = "difference",
        discount: float = 1.0,
        environment_weight: float = 0.0,
        form: RewardForm | None = None,
    ) -> None:
        super().__init__(env)
        self.potentials = potentials_of(model, 1, instruction, goal, reward, discount, form)
        check_source(image, env.observation_space, env.render_mode, self.potentials.reader)
        self._image, self._weight = image, environment_weight

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.potentials.begin(_ONE, self._embed(observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, own, terminated, truncated, info = self.env.step(action)
        reward = float(self.potentials.advance(_ONE, self._embed(observation))[0]) + self._weight * float(own)
        return observation, reward, terminated, truncated, {**info, "environment_reward": float(own)}

    def _embed(self, observation: Any) -> Array:
        seen = seen_in(self.env, observation, self._image, self.potentials.reader)
        return self.potentials.embed({name: part[None] for name, part in seen.items()})


class LanguageRewardVector(gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Vector environments with the reward of `LanguageReward`: one call of the encoder embeds all rows' images.

    The last reward of an episode is computed from its last image, in every autoreset mode. With
    `AutoresetMode.SAME_STEP`, this image is read from `infos["final_obs"]`. With `NEXT_STEP`, the step that resets a
    row has the reward 0. With `DISABLED`, `reset(options={"reset_mask": ...})` begins new episodes in some rows. The
    environments' own rewards are in `infos["environment_reward"]`.

    Args:
        env: The vector environment.
        model: The reward, or a model of others (`counterpoint.rewards.sources.open_function`).
        instruction: The task in words, or one for each environment; give this or `goal`.
        goal: An image of the goal, uint8 [H, W, 3]; as in `RewardModel.reward`.
        image: Key of the images in the Dict observation; `None` renders them (`env.render()`).
        reward: `difference` or `gain`; see the module's docstring.
        discount: Factor of the next state's potential, for `difference`.
        environment_weight: Weight of the environments' own rewards in the sum; 0 leaves them out.
        form: The form of the reward; by default the one that the model was trained for.

    Raises:
        BadInputError: If the environments do not provide the image, if renders are used with `SAME_STEP` (they show
            the next episode), or if the model was not trained for the form.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv[Any, Any, Any],
        model: RewardModel | FunctionReward,
        instruction: str | Sequence[str] | None = None,
        *,
        goal: Array | Mapping[str, Array] | None = None,
        image: str | None = None,
        reward: Reading = "difference",
        discount: float = 1.0,
        environment_weight: float = 0.0,
        form: RewardForm | None = None,
    ) -> None:
        super().__init__(env)
        self.potentials = potentials_of(model, env.num_envs, instruction, goal, reward, discount, form)
        check_source(image, env.single_observation_space, env.render_mode, self.potentials.reader)
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = AutoresetMode(mode)
        unseen = image is None and self._mode is AutoresetMode.SAME_STEP
        hint = "name the image's key (image=), or take AutoresetMode.NEXT_STEP"
        require(not unseen, "image", "renders with SAME_STEP, which skip last images", "images in observations", hint)
        n = env.num_envs
        self._image, self._weight, self._rows = image, environment_weight, np.arange(n)
        self._over = np.zeros(n, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes in all rows, or in the rows in `options["reset_mask"]`."""
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        observations, infos = self.env.reset(seed=seed, options=options)
        self._over[mask] = False
        seen = {name: part[mask] for name, part in self._seen(observations).items()}
        self.potentials.begin(self._rows[mask], self.potentials.embed(seen))
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take one step in every row."""
        observations, own, terminated, truncated, infos = self.env.step(actions)
        seen, over = self._seen(observations), np.asarray(terminated) | np.asarray(truncated)
        begun = self._over if self._mode is AutoresetMode.NEXT_STEP else np.zeros_like(over)
        rewards = np.zeros(self.num_envs)
        if self._mode is AutoresetMode.SAME_STEP and over.any():
            for name, part in seen.items():
                seen[name] = np.concatenate([part, part[over]])
                last = [infos["final_obs"][row][name] for row in self._rows[over]]
                seen[name][self._rows[over]] = last if name == STATE else [_rgb(each, name, 0) for each in last]
        embedded, afterwards = np.split(self.potentials.embed(seen), [self.num_envs])
        rewards[~begun] = self.potentials.advance(self._rows[~begun], embedded[~begun])
        self.potentials.begin(self._rows[begun], embedded[begun])
        if len(afterwards):
            self.potentials.begin(self._rows[over], afterwards)
        self._over = over
        told = {"environment_reward": np.array(own, float), "_environment_reward": np.ones(self.num_envs, bool)}
        return observations, rewards + self._weight * np.asarray(own), terminated, truncated, {**infos, **told}

    def _seen(self, observations: Any) -> dict[str, Array]:
        return seen_in(self.env, observations, self._image, self.potentials.reader)


class ImageEncoder(Protocol):
    """An encoder of frames; `counterpoint.encoders.dual.DualEncoder` is one."""

    embed_dim: int

    def encode_image(self, frames: torch.Tensor, /) -> torch.Tensor:
        """Return raw embeddings [T, D] of frames [T, H, W, 3], uint8 or float in [0, 1]."""


class EmbeddingObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose Dict observation has the embedding of its image: `embedding`, float32 [D].

    An observation that is not a Dict becomes the key `observation` of a new Dict.

    Args:
        env: The environment.
        encoder: The encoder of images.
        image: Key of the image in the environment's Dict observation; `None` renders one (`env.render()`).
        replace: True to leave the image itself out of the observation.

    Raises:
        BadInputError: If the environment does not provide the image.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], encoder: ImageEncoder, *, image: str | None = None, replace: bool = False
    ) -> None:
        super().__init__(env)
        check_source(image, env.observation_space, env.render_mode, encoder)
        self.encoder, self._image, self._dropped = encoder, image, image if replace else None
        own = env.observation_space
        parts = dict(own.spaces) if isinstance(own, spaces.Dict) else {"observation": own}
        parts.pop(self._dropped or "", None)
        self.observation_space = spaces.Dict(
            parts | {"embedding": spaces.Box(-np.inf, np.inf, (encoder.embed_dim,), np.float32)}
        )

    def observation(self, observation: Any) -> dict[str, Any]:
        """Return the observation with its embedding."""
        seen, encoder = seen_in(self.env, observation, self._image, self.encoder), cast(Embedder, self.encoder)
        values = embed_frames(encoder, {name: part[None] for name, part in seen.items()})[0].astype(np.float32)
        parts = observation if isinstance(observation, Mapping) else {"observation": observation}
        return {key: value for key, value in parts.items() if key != self._dropped} | {"embedding": values}


_ONE: Rows = np.zeros(1, np.intp)


def check_source(image: str | None, space: Any, render_mode: str | None, encoder: object) -> None:
    """Raise an error if an environment lacks the named image, or the state for an encoder that reads it.

    Args:
        image: Key of the image in the observation; `None` for renders.
        space: The space of one environment's observations.
        render_mode: The environment's mode of rendering.
        encoder: The encoder.

    Raises:
        BadInputError: If the Dict observation has no image of that name that `counterpoint.data.resize.as_rgb` accepts,
            or no `state` for an encoder that reads it, or if renders are not arrays.
    """
    has_state = isinstance(space, spaces.Dict) and STATE in space.spaces
    found, hint = f"no {STATE!r}", "the model reads the robot's state: put it into a Dict observation"
    require(has_state or not reads_state(encoder), "observation", found, f"{STATE!r}, beside the image", hint)
    if image is None:
        found, hint = f"render_mode {render_mode!r}", 'gymnasium.make(..., render_mode="rgb_array"), or name image='
        return require(render_mode == "rgb_array", "env", found, "renders as arrays", hint)
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    known = [key for key, part in parts.items() if _is_image(part)]
    what = f"no image {image!r}" + (f" ({parts[image]}; images have 1, 3 or 4 channels)" if image in parts else "")
    hint = "choose one of these, or leave image= out for env.render()"
    require_known(image, known, "observation", what, hint=hint)


def seen_in(env: Any, observation: Any, image: str | None, encoder: object) -> dict[str, Array]:
    """Return the parts of an observation (or of a vector environment's observations) that an encoder reads, by key.

    Returns:
        The image from the observation, or else rendered, [H, W, 3]; for a vector, one for each environment. If the
        encoder reads the robot's state, also the state, under the key `STATE`.
    """
    lead = int(isinstance(env, gymnasium.vector.VectorEnv))
    seen = {image or "": _rgb(env.render() if image is None else observation[image], image, lead)}
    return seen | ({STATE: np.asarray(observation[STATE], np.float32)} if reads_state(encoder) else {})


def _rgb(images: Any, image: str | None, lead: int) -> Array:
    return as_rgb("env.render()" if image is None else f"observation {image!r}", np.asarray(images), lead)


def _is_image(space: Any) -> bool:
    if not isinstance(space, spaces.Box) or channel_axis(space.shape) is None:
        return False
    return space.dtype == np.uint8 or (space.dtype.kind == "f" and len(space.shape) == 3)
