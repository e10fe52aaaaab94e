from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from counterpoint.data.episode import Array
from counterpoint.envs.make import make_env
from counterpoint.errors import BadInputError
from counterpoint.rewards import RewardForm, RewardModel
from counterpoint.rewards.gym import EmbeddingObservation, LanguageReward, LanguageRewardVector, Reading
from counterpoint.rewards.sources import FunctionReward
from tests.evaluation.fake import INSTRUCTIONS, SIZE, RandomEncoder, SeeingEncoder, frame

PUSH = INSTRUCTIONS[0]


class Table(gymnasium.Env[dict[str, Any], Any]):
    """An action pushes the red ball by up to a tenth; the episode ends on the right, or after `steps` actions."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8), "state": spaces.Box(-1, 2, (1,), np.float64)}
    )
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def __init__(self, steps: int = 6, render_mode: str | None = "rgb_array") -> None:
        self.steps, self.render_mode = steps, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.red, self.taken = float(self.np_random.uniform(0.3, 0.6)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.red = float(np.clip(self.red + 0.1 * np.asarray(action).item(), 0, 1))
        self.taken += 1
        return self._seen(), -self.red, self.red >= 0.95, self.taken >= self.steps, {}

    def render(self) -> Array:
        return frame(self.red, 0.5)

    def _seen(self) -> dict[str, Any]:
        return {"camera": self.render(), "state": np.array([self.red])}


class Counting(SeeingEncoder):
    """Counts the calls that embed images."""

    calls = 0

    def encode_image(self, frames: Tensor) -> Tensor:
        self.calls += 1
        return super().encode_image(frames)


class Plain(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The state alone, as an array."""

    def __init__(self, env: Table) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-1, 2, (1,), np.float64)

    def observation(self, observation: Any) -> Array:
        return np.asarray(observation["state"])


def model(form: RewardForm | None = None) -> RewardModel:
    return RewardModel(SeeingEncoder(), form=form)


def played(env: gymnasium.Env[Any, Any], actions: Array, seed: int = 3) -> tuple[Array, list[float], list[Any]]:
    """The renders, rewards and infos of one episode."""
    env.reset(seed=seed)
    images, rewards, infos = [env.render()], [], []
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        images.append(env.render())
        rewards.append(float(reward))
        infos.append(info)
        if terminated or truncated:
            break
    return np.stack(images), rewards, infos  # type: ignore[arg-type]


ACTIONS = np.array([[1.0], [0.5], [-1.0], [0.25], [1.0], [1.0]])


@pytest.mark.parametrize("form", ["potential", "transition"])
@pytest.mark.parametrize("image", [None, "camera"])
@pytest.mark.parametrize("reading", ["difference", "gain"])
def test_the_rewards_are_those_of_the_whole_video(form: RewardForm, image: str | None, reading: Reading) -> None:
    env = LanguageReward(Table(), model(form), PUSH, image=image, reward=reading, discount=0.9)
    images, rewards, _ = played(env, ACTIONS)
    curve = model(form).reward(images, PUSH)
    expected = 0.9 * curve[1:] - curve[:-1] if reading == "difference" else curve[1:] - curve[0]
    np.testing.assert_allclose(rewards, expected, atol=1e-6)


def test_plain_differences_add_up_to_the_potential_that_was_gained() -> None:
    images, rewards, _ = played(LanguageReward(Table(), model("potential"), PUSH), ACTIONS)
    curve = model("potential").reward(images, PUSH)
    assert sum(rewards) == pytest.approx(curve[-1] - curve[0], abs=1e-6)


def test_a_reward_does_not_depend_on_what_comes_later() -> None:
    other = ACTIONS.copy()
    other[3:] *= -1
    (_, one, _), (_, two, _) = (played(LanguageReward(Table(), model(), PUSH), actions) for actions in (ACTIONS, other))
    assert one[:3] == two[:3]
    assert one[3] != two[3]


def test_episodes_do_not_depend_on_those_before_them() -> None:
    env = LanguageReward(Table(), model("transition"), PUSH)
    first = played(env, ACTIONS, seed=1)[1]
    played(env, -ACTIONS, seed=2)
    assert played(env, ACTIONS, seed=1)[1] == first


def test_the_environments_own_reward_is_kept_and_added_where_asked() -> None:
    own = played(Table(), ACTIONS)[1]
    _, rewards, infos = played(LanguageReward(Table(), model(), PUSH), ACTIONS)
    assert [info["environment_reward"] for info in infos] == own
    both = played(LanguageReward(Table(), model(), PUSH, environment_weight=2.0), ACTIONS)[1]
    np.testing.assert_allclose(both, np.array(rewards) + 2 * np.array(own))


def test_a_goal_image_serves_in_the_instructions_stead() -> None:
    goal = frame(0.9, 0.5)
    images, rewards, _ = played(LanguageReward(Table(), model(), goal=goal, reward="gain"), ACTIONS)
    curve = model().reward(images, goal=goal)
    np.testing.assert_allclose(rewards, curve[1:] - curve[0], atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda env: LanguageReward(env, model(), PUSH),
        lambda env: EmbeddingObservation(env, SeeingEncoder(), image="camera"),
    ],
)
def test_gymnasiums_own_checker_passes(make: Callable[[Table], gymnasium.Env[Any, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(different from the unwrapped version|value is -?infinity).*")
        check_env(make(Table()), skip_render_check=True)


def blurred() -> RewardModel:
    """A reward with another value for every path."""
    return RewardModel(RandomEncoder(), form="transition")


def vector(mode: AutoresetMode, n: int = 3, *, apart: bool = False) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    kind: Any = AsyncVectorEnv if apart else SyncVectorEnv
    made: gymnasium.vector.VectorEnv[Any, Any, Any] = kind(
        [lambda i=i: Table(3 + i) for i in range(n)], autoreset_mode=mode
    )
    return made


MOVES = np.random.default_rng(0).uniform(-1, 1, (14, 3, 1))


def alone(row: int, mode: AutoresetMode, reading: Reading, model: RewardModel | None = None) -> list[float]:
    """The rewards of one row of `vector`, by the wrapper of one environment, reset by hand."""
    env = LanguageReward(Table(3 + row), model or blurred(), INSTRUCTIONS[row], reward=reading)
    env.reset(seed=5 + row)
    rewards, over = [], False
    for action in MOVES[:, row]:
        if over and mode is AutoresetMode.NEXT_STEP:
            env.reset()
            rewards.append(0.0)
            over = False
            continue
        _, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        over = terminated or truncated
        if over and mode is AutoresetMode.SAME_STEP:
            env.reset()
    return rewards


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("reading", ["difference", "gain"])
def test_every_row_of_a_vector_has_the_rewards_it_has_alone(mode: AutoresetMode, reading: Reading, apart: bool) -> None:
    envs = LanguageRewardVector(vector(mode, apart=apart), blurred(), INSTRUCTIONS[:3], image="camera", reward=reading)
    envs.reset(seed=5)
    found = []
    for actions in MOVES:
        _, rewards, _, _, infos = envs.step(actions)
        found.append(rewards)
        assert infos["environment_reward"].shape == (3,)
        assert infos["_environment_reward"].all()
    envs.close()
    for row in range(3):
        np.testing.assert_allclose(
            np.array(found)[:, row], alone(row, mode, reading), atol=1e-4
        )  # float32, other batches


def of_others(known: RewardModel) -> FunctionReward:
    """The same reward, as a model of others computes it: from the whole video so far."""
    return FunctionReward(lambda frames, text: known.reward(frames, text), "theirs")


@pytest.mark.parametrize("reading", ["difference", "gain"])
def test_a_model_of_others_gives_the_rewards_of_its_values(reading: Reading) -> None:
    for image in (None, "camera"):
        rewards = [
            played(LanguageReward(Table(), one, PUSH, image=image, reward=reading, discount=0.9), ACTIONS)[1]
            for one in (model("transition"), of_others(model("transition")))
        ]
        np.testing.assert_allclose(rewards[0], rewards[1], atol=1e-6)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_rows_of_a_vector_have_the_values_of_a_model_of_others(mode: AutoresetMode) -> None:
    envs = LanguageRewardVector(vector(mode), of_others(blurred()), INSTRUCTIONS[:3], image="camera")
    envs.reset(seed=5)
    found = np.array([envs.step(actions)[1] for actions in MOVES])
    for row in range(3):
        np.testing.assert_allclose(found[:, row], alone(row, mode, "difference"), atol=1e-4)
    with pytest.raises(BadInputError, match="an instruction alone"):
        LanguageReward(Table(), of_others(blurred()), goal=np.zeros((8, 8, 3), np.uint8))


def test_rows_that_are_reset_by_a_mask_begin_anew() -> None:
    envs = LanguageRewardVector(vector(AutoresetMode.DISABLED), blurred(), PUSH, reward="gain")
    envs.reset(seed=5)
    for actions in MOVES[:2]:
        envs.step(actions)
    envs.reset(options={"reset_mask": np.array([True, False, False])})
    images = [np.stack(envs.render() or ())]
    rewards = envs.step(MOVES[2])[1]
    images.append(np.stack(envs.render() or ()))
    curves = blurred().reward(np.stack([images[0][0], images[1][0]]), PUSH)
    assert rewards[0] == pytest.approx(curves[1], abs=1e-4)
    assert rewards[1] != pytest.approx(rewards[0], abs=1e-3)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_one_call_of_the_encoder_embeds_all_rows(mode: AutoresetMode) -> None:
    encoder = Counting()
    envs = LanguageRewardVector(vector(mode), RewardModel(encoder), PUSH, image="camera")
    envs.reset(seed=0)
    for number, actions in enumerate(MOVES[:8]):
        envs.step(actions)
        assert encoder.calls == number + 2


@pytest.mark.parametrize("form", ["first", "alpha", "grey", "flat"])
def test_images_of_other_channels_give_the_same_rewards(form: str) -> None:
    """Of one environment and of a vector that resets in the same step, whose last images are in its infos."""
    change: Callable[[Array], Array] = {
        "first": lambda image: np.moveaxis(image, -1, 0),
        "alpha": lambda image: np.concatenate([image, image[..., :1]], axis=-1),
        "grey": lambda image: image[..., :1],
        "flat": lambda image: image[..., 0],
    }[form]

    class Other(Table):
        seen = spaces.Box(0, 255, change(np.zeros((SIZE, SIZE, 3), np.uint8)).shape, np.uint8)
        observation_space = spaces.Dict({"camera": seen, "state": Table.observation_space["state"]})

        def _seen(self) -> dict[str, Any]:
            return {"camera": change(self.render()), "state": np.array([self.red])}

        def render(self) -> Array:
            image = super().render()
            return image if form in ("first", "alpha") else np.repeat(image[..., :1], 3, axis=-1)

    env = LanguageReward(Other(steps=3), model(), PUSH, image="camera")
    plain = LanguageReward(Other(steps=3), model(), PUSH)
    vectors = SyncVectorEnv([lambda: Other(steps=3)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    several = LanguageRewardVector(vectors, model(), PUSH, image="camera")
    env.reset(seed=0)
    plain.reset(seed=0)
    several.reset(seed=[0, 0])
    for _ in range(3):
        rewards = [each.step(np.array([0.5]))[1] for each in (env, plain)]
        np.testing.assert_allclose([rewards[0], *several.step(np.full((2, 1), 0.5))[1]], rewards[1])


def test_last_images_cannot_be_rendered_after_a_reset_in_the_same_step() -> None:
    with pytest.raises(BadInputError, match="NEXT_STEP"):
        LanguageRewardVector(vector(AutoresetMode.SAME_STEP), model(), PUSH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": "wrist"}, "one of camera"),
        ({"image": "state"}, r"no image 'state' \(Box.*; images have 1, 3 or 4 channels\)"),
        ({"instruction": None}, "an instruction or a goal image"),
        ({"goal": frame(0.5, 0.5)}, "an instruction or a goal image"),
        ({"instruction": " "}, "text that is not empty"),
        ({"instruction": ["push", "pull"]}, "found 2; expected 1 or 1"),
        ({"reward": "sum"}, "'difference' or 'gain'"),
        ({"discount": 0.0}, "discount"),
        ({"form": "language"}, "the reward form 'language'"),
        ({"env": Table(render_mode=None)}, "render_mode None"),
    ],
)
def test_bad_input_is_named_before_the_first_episode(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"env": Table(), "model": model(), "instruction": PUSH} | changes
    with pytest.raises(BadInputError, match=message):
        LanguageReward(**given)


class Feeling(SeeingEncoder):
    """Reads the red ball's position from the state, and leaves the image unread."""

    reads_state = True

    def encode_image(self, frames: Tensor, state: Tensor | None = None) -> Tensor:
        assert state is not None
        assert state.shape == (len(frames), 1)
        return super().encode_image(frames) * 0 + torch.nn.functional.pad(state, (0, 2), value=0.2)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_state_is_read_from_the_observation(mode: AutoresetMode) -> None:
    env = LanguageReward(Table(), RewardModel(Feeling()), PUSH, image="camera")
    seen, rewards = [env.reset(seed=3)[0]], []
    for action in ACTIONS:
        observation, reward, *over = env.step(action)
        seen.append(observation)
        rewards.append(float(reward))
        if over[0] or over[1]:
            break
    views = {name: np.stack([one[name] for one in seen]) for name in ("camera", "state")}
    curve = RewardModel(Feeling()).reward(views, PUSH)
    np.testing.assert_allclose(rewards, np.diff(curve), atol=1e-6)
    envs = LanguageRewardVector(vector(mode), RewardModel(Feeling()), INSTRUCTIONS[:3], image="camera")
    envs.reset(seed=5)
    found = np.array([envs.step(actions)[1] for actions in MOVES])
    for row in range(3):
        np.testing.assert_allclose(found[:, row], alone(row, mode, "difference", RewardModel(Feeling())), atol=1e-6)
    embedded = EmbeddingObservation(Table(), Feeling(), image="camera").reset(seed=3)[0]
    assert embedded["embedding"][0] == pytest.approx(embedded["state"][0])
    with pytest.raises(BadInputError, match="'state', beside the image"):
        LanguageReward(Plain(Table()), RewardModel(Feeling()), PUSH)


@pytest.mark.parametrize("replace", [False, True])
def test_the_embedding_stands_beside_the_image_or_in_its_place(replace: bool) -> None:
    env = EmbeddingObservation(Table(), RandomEncoder(), image="camera", replace=replace)
    observation, _ = env.reset(seed=0)
    assert ("camera" in observation) == (not replace)
    assert env.observation_space.contains(observation)
    expected = RandomEncoder().encode_image(_tensor(env.render()))[0].detach().numpy()
    np.testing.assert_allclose(observation["embedding"], expected, atol=1e-6)


def test_an_array_observation_becomes_a_dict_with_the_embedding_of_the_render() -> None:
    env = EmbeddingObservation(Plain(Table()), RandomEncoder())
    observation, _ = env.reset(seed=0)
    assert set(observation) == {"observation", "embedding"}
    assert env.observation_space.contains(observation)


def _tensor(image: Any) -> Tensor:
    import torch

    return torch.from_numpy(np.asarray(image))[None]


@pytest.mark.slow
@pytest.mark.sim
def test_a_meta_world_task_gives_rewards_of_renders_and_of_its_camera_alike() -> None:
    pytest.importorskip("metaworld", reason="needs the extra `sim`")
    rendered, seen = (
        LanguageReward(
            make_env("metaworld/drawer-open", SIZE, steps=4), RewardModel(RandomEncoder()), PUSH, image=image
        )
        for image in (None, "corner2")
    )
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 4))
    images, rewards, infos = played(rendered, actions)
    assert played(seen, actions)[1] == rewards
    curve = RewardModel(RandomEncoder()).reward(images, PUSH)
    np.testing.assert_allclose(rewards, np.diff(curve), atol=1e-6)
    assert [*infos[0]] == ["is_success", "environment_reward"]
    rendered.close()
    seen.close()


@pytest.mark.sim
def test_the_page_names_the_keys_of_an_observation_with_its_embedding() -> None:
    class Blank:
        embed_dim = 4

        def encode_image(self, frames: torch.Tensor, /) -> torch.Tensor:
            return torch.zeros(len(frames), 4)

    env = make_env("metaworld/drawer-open", 64, steps=20)
    seen = EmbeddingObservation(env, Blank(), image="corner2", replace=True)
    keys = sorted(seen.observation_space.spaces)  # type: ignore[attr-defined]
    env.close()
    assert str(keys) in (Path(__file__).parents[2] / "docs/gym_rewards.md").read_text()
