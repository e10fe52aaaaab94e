from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from counterpoint.data.episode import Array
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.envs.base import CameraEnv
from counterpoint.errors import BadInputError
from counterpoint.evaluation.rollout import rollout
from counterpoint.policies.base import Policy
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy, condition_width
from counterpoint.policies.networks import DiffusionConfig
from tests.marks import quick
from tests.policies.demos import observed
from tests.policies.small_diffusion import DIFFUSION, FRAME, SIZE, A, C, P, policy, sights
from tests.reference.chunking import temporal_ensemble


def by_hand(made: DiffusionPolicy, frames: Array, state: Array, t: int, seed: int, plan: int) -> Array:
    """The plan [K - To + 1, A] that one environment makes at step t, the `plan`-th of its episode."""
    To = made.head.config.obs_steps
    edge = (FRAME - SIZE) // 2
    moments = []
    for step in range(t - To + 1, t + 1):
        real = max(step, 0)
        images = [frames[real, c, edge : edge + SIZE, edge : edge + SIZE] for c in range(C)]
        embedded = made.encoder(torch.from_numpy(np.stack(images))[None])[0]
        if made.use_state:
            assert made.demonstrations is not None
            known = made.demonstrations.state
            assert known is not None
            for number, low, high in zip(state[real].tolist(), known.low, known.high, strict=True):
                # the last dimension stood still: it is shifted alone
                normal = 2 * (number - low) / (high - low) - 1 if high > low else number - low
                embedded = torch.cat([embedded, torch.tensor([normal])])
        moments.append(embedded)
    stream = np.random.Philox(key=np.array([seed, plan], np.uint64), counter=[0, 0, 0, zlib.crc32(b"plan")])
    generator = torch.Generator().manual_seed(int(np.random.Generator(stream).integers(2**63)))
    return made.head.sample(torch.stack(moments)[None], generator=generator)[0, To - 1 :].numpy()


@pytest.mark.parametrize(
    ("use_state", "diffusion"),
    [
        (True, {}),
        pytest.param(False, {}, marks=pytest.mark.slow),
        (True, {"sampler": "ddpm", "inference_steps": 20}),
        pytest.param(True, {"obs_steps": 3, "executed": 1}, marks=pytest.mark.slow),
        pytest.param(True, {"obs_steps": 1}, marks=pytest.mark.slow),
        (True, {"network": "transformer", "width": 8, "heads": 2, "layers": 1}),
    ],
)
@torch.no_grad()
def test_actions_are_those_of_plans_made_by_hand(use_state: bool, diffusion: dict[str, Any]) -> None:
    made = policy(use_state=use_state, **diffusion).eval()
    executed = made.head.config.executed
    frames, state = sights(8, 2)
    made.reset([4, 1], [77, 2**63 + 5])
    for t in range(8):
        acted = made.act(observed(frames[t], state[t]), rows=[4, 1])
        assert acted.dtype == np.float32
        for row, seed in enumerate((77, 2**63 + 5)):
            start = t - t % executed
            plan = by_hand(made, frames[:, row], state[:, row], start, seed, start // executed)
            np.testing.assert_allclose(acted[row], plan[t % executed].clip(-1, 1), atol=2e-5)


@torch.no_grad()
def test_the_ensemble_averages_what_was_planned_for_a_step() -> None:
    made = policy(ensemble=0.3).eval()
    frames, state = sights(11, 1)
    made.reset([0], [5])
    acted = []
    for t in range(11):
        assert made.looks([0]) == [True]
        acted.append(made.act(observed(frames[t], state[t]), rows=[0])[0])
    executed = made.head.config.executed
    plans = [by_hand(made, frames[:, 0], state[:, 0], t, 5, t)[:executed].tolist() for t in range(11)]
    np.testing.assert_allclose(np.stack(acted), temporal_ensemble(plans, 0.3), atol=2e-5)


@pytest.mark.parametrize(
    "settings", quick([{"obs_steps": 3, "executed": 5}], [{}, {"obs_steps": 3, "executed": 5}, {"ensemble": 0.01}])
)
def test_what_it_does_not_look_at_changes_nothing(settings: dict[str, Any]) -> None:
    """To the bit, in rows that begin at different times; it looks no more often than its plans need."""
    always, seldom = policy(**settings), policy(**settings)
    frames, state = sights(16, 3)
    looked = []
    for t in range(16):
        begins = [row for row in range(3) if t == 2 * row or (t == 9 and row == 1)]
        always.reset(begins, begins)
        seldom.reset(begins, begins)
        rows = [row for row in range(3) if t >= 2 * row]
        look = np.array(seldom.looks(rows))
        assert all(found for row, found in zip(rows, look, strict=True) if row in begins)
        looked.append(int(look[0]))
        shown = np.where(look[:, None, None, None, None], frames[t, rows], 0)
        np.testing.assert_array_equal(
            seldom.act(observed(shown, state[t, rows]), rows=rows),
            always.act(observed(frames[t, rows], state[t, rows]), rows=rows),
        )
    config = always.head.config
    if "ensemble" in settings:
        assert looked == [1] * 16
    else:  # a plan at every multiple of `executed` looks at To observations
        expected = [int(-t % config.executed < config.obs_steps) for t in range(16)]
        assert looked == expected


def test_rows_do_not_mix() -> None:
    """Rows that join late, act in another order or begin again act as each would by itself."""
    together, (frames, state) = policy(), sights(9, 3)
    acted: dict[int, list[Array]] = {0: [], 1: [], 2: []}
    calls = [[0], [1, 0], [2, 0, 1], [0, 2], [1, 2, 0], [2], [0, 1, 2], [2, 1], [1]]
    together.reset([0, 1, 2], [10, 11, 12])
    for t, rows in enumerate(calls):
        if t == 3:
            together.reset([0], [20])
        for row, action in zip(rows, together.act(observed(frames[t, rows], state[t, rows]), rows=rows), strict=True):
            acted[row].append(action)
    for row in range(3):
        alone = policy()
        alone.reset([7], [10 + row])
        mine = [t for t, rows in enumerate(calls) if row in rows]
        for t, action in zip(mine, acted[row], strict=True):
            if t == 3 and row == 0:
                alone.reset([7], [20])
            expected = alone.act(observed(frames[t, [row]], state[t, [row]]), rows=[7])[0]
            np.testing.assert_allclose(action, expected, atol=2e-5)


def test_noise_is_the_seed_s() -> None:
    made, (frames, state) = policy(), sights(1, 3)
    made.reset([0, 1, 2], [1, 2, 1])
    seen = np.repeat(frames[0, :1], 3, 0), np.repeat(state[0, :1], 3, 0)
    first = made.act(observed(*seen), rows=[0, 1, 2])
    np.testing.assert_allclose(first[0], first[2], atol=2e-5)
    assert not np.allclose(first[0], first[1], atol=1e-3)
    torch.manual_seed(99)  # nothing is drawn from the global generator
    before = torch.random.get_rng_state()
    made.reset([0, 1, 2], [1, 2, 1])
    np.testing.assert_array_equal(made.act(observed(*seen), rows=[0, 1, 2]), first)
    assert torch.equal(torch.random.get_rng_state(), before)
    fresh, twin = policy(), policy()  # without seeds a policy numbers its episodes
    numbered = fresh.act(observed(*seen), rows=[0, 1, 2])
    np.testing.assert_array_equal(twin.act(observed(*seen), rows=[0, 1, 2]), numbered)
    fresh.reset([0])
    assert not np.allclose(fresh.act(observed(seen[0][:1], seen[1][:1]), rows=[0]), numbered[:1], atol=1e-3)


def test_every_observation_is_encoded_once_and_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    made = policy(ensemble=0.01)
    forward = made.encoder.forward

    def counted(frames: torch.Tensor, instruction: Any = None) -> torch.Tensor:
        batches.append(len(frames))
        return forward(frames, instruction)

    monkeypatch.setattr(made.encoder, "forward", counted)
    frames, state = sights(5, 3)
    for t in range(5):
        made.act(observed(frames[t], state[t]), rows=[0, 1, 2])
    assert batches == [3] * 5
    batches.clear()
    receding = policy()
    monkeypatch.setattr(receding.encoder, "forward", counted)
    for t in range(7):
        receding.act(observed(frames[t % 5], state[t % 5]), rows=[0, 1, 2])
    assert batches == [3, 6, 6]  # at steps 0, 3 and 6


class Dots(CameraEnv):
    """An image of noise that the seed and the actions decide."""

    def __init__(self) -> None:
        cameras = ("front", "wrist")
        super().__init__(
            "stub/dots", "dots", cameras=cameras, size=FRAME, action_dim=A, state_dim=P, control_hz=10, horizon=9
        )

    def _begin(self, seed: int) -> None:
        self._seed, self._step, self._place = seed, 0, np.zeros(A)

    def _images(self) -> dict[str, Array]:
        rng = np.random.default_rng([self._seed, self._step])
        return {camera: rng.integers(0, 256, (FRAME, FRAME, 3), dtype=np.uint8) for camera in self.cameras}

    def state(self) -> Array:
        return np.array([*self._place, 7], np.float32)

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        self._step += 1
        self._place = self._place + action
        return float(self._place.sum()), False, False


def test_an_episode_is_a_function_of_its_seed() -> None:
    seeds = [5, 3, 8, 1, 9]
    alone = rollout(policy(), Dots, seeds, envs=1)
    together = rollout(policy(), Dots, seeds[::-1], envs=3)
    for one, other in zip(alone, together[::-1], strict=True):
        assert one.seed == other.seed
        np.testing.assert_allclose(one.total_reward, other.total_reward, atol=1e-4)
    assert len({one.total_reward for one in alone}) == len(seeds)


class Reaching(gymnasium.Env[dict[str, Array], Array]):
    """Two images and a state; episodes of other lengths."""

    def __init__(self, length: int) -> None:
        box = gymnasium.spaces.Box
        self.observation_space: gymnasium.Space[Any] = gymnasium.spaces.Dict(
            dict.fromkeys(("front", "wrist"), box(0, 255, (FRAME, FRAME, 3), np.uint8))
            | {"state": box(-np.inf, np.inf, (P,), np.float32)}
        )
        self.action_space = box(-1, 1, (A,), np.float32)
        self._length = length

    def _seen(self) -> dict[str, Array]:
        frames = self.np_random.integers(0, 256, (1, C, FRAME, FRAME, 3), dtype=np.uint8)
        return {key: value[0] for key, value in observed(frames, np.full((1, P), self._step, np.float32)).items()}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._seen(), {}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._step += 1
        return self._seen(), 0.0, False, self._step == self._length, {}


def test_gymnasium_s_vectorised_environments_are_acted_in() -> None:
    lengths = [4, 7]
    envs = gymnasium.vector.SyncVectorEnv(
        [partial(Reaching, length) for length in lengths], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    made: Policy = policy()
    rows: Sequence[int] = range(envs.num_envs)
    seen, _ = envs.reset(seed=[3, 4])
    made.reset(rows)
    planned = []
    for _ in range(12):
        planned.append(made.looks(rows))
        actions = made.act(seen, rows=rows)
        assert actions.shape == envs.action_space.shape
        seen, _, _, truncated, _ = envs.step(actions)
        made.reset(np.flatnonzero(truncated).tolist())
    envs.close()
    # rows plan at 0, 3 and, begun again, at 4, 7 ...; and at 0, 3, 6, 7, 10
    assert [t for t in range(12) if planned[t][0]] == [0, 2, 3, 4, 6, 7, 8, 10, 11]
    assert [t for t in range(12) if planned[t][1]] == [0, 2, 3, 5, 6, 7, 9, 10]


def test_it_can_be_copied_while_it_acts() -> None:
    """Moving averages do that."""
    made, (frames, state) = policy(), sights(2, 1)
    made.act(observed(frames[0], state[0]), rows=[0])
    twin = copy.deepcopy(made)
    np.testing.assert_array_equal(
        twin.act(observed(frames[1], state[1]), rows=[0]), made.act(observed(frames[1], state[1]), rows=[0])
    )


def test_channels_may_come_first_and_be_one_or_four() -> None:
    made, (frames, state) = policy(), sights(1, 2)
    grey = observed(frames[0], state[0])
    grey |= {name: np.repeat(grey[name][..., :1], 3, axis=-1) for name in ("front", "wrist")}
    made.reset([0, 1], [0, 1])
    wanted = made.act(grey, rows=[0, 1])
    alpha = np.full_like(grey["front"][..., :1], 9)
    for form in (
        lambda images: images[..., 0],
        lambda images: images[..., :1],
        lambda images: images[:, None, ..., 0],
        lambda images: np.concatenate([images, alpha], axis=-1),
        lambda images: np.moveaxis(np.concatenate([images, alpha], axis=-1), -1, 1),
        lambda images: np.moveaxis(images, -1, 1) / 255,
    ):
        made.reset([0, 1], [0, 1])
        shown = grey | {name: form(grey[name]) for name in ("front", "wrist")}
        np.testing.assert_array_equal(made.act(shown, rows=[0, 1]), wanted)


def test_what_it_cannot_act_on_is_one_message() -> None:
    made, (frames, state) = policy(), sights(1, 2)
    whole = observed(frames[0], state[0])
    for shown, message in (
        ({key: whole[key] for key in ("front", "state")}, "found front, state; expected images of front, wrist"),
        (whole | {"wrist": whole["wrist"][..., :2]}, r"images uint8 \[2, 21, 21, 2\]; expected .* 1, 3 or 4 channels"),
        (whole | {"wrist": whole["wrist"][..., 0].astype(np.uint16)}, "images uint16 .*depth"),
        (whole | {"wrist": whole["wrist"].astype(np.float32)}, "images: found float32 out of range"),
        (whole | {"state": state[0, :, :2]}, r"state: found shape \[2\]; expected \[3\]"),
        ({key: whole[key] for key in ("front", "wrist")}, "state: found shape None"),
        (whole | {"state": np.full_like(state[0], np.nan)}, "a plan that is not finite"),
    ):
        made.reset([0, 1])
        with pytest.raises(BadInputError, match=message):
            made.act(shown, rows=[0, 1])
    with pytest.raises(BadInputError, match="state: found none"):
        made.condition(torch.zeros(1, 2, C, SIZE, SIZE, 3, dtype=torch.uint8), None)
    # proprioception that is not used may be anything
    policy(use_state=False).act(observed(frames[0], np.zeros((2, 9), np.float32)), rows=[0, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frame": 8}, "frame: found 8; expected 16"),
        ({"cameras": ("front",)}, "cameras: found 1; expected 2"),
        ({"use_state": False}, "head.condition_dim: found 15; expected 12"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    made = policy()
    given: dict[str, Any] = {"state_dim": P, "use_state": True, "frame": FRAME, "cameras": ()}
    with pytest.raises(BadInputError, match=message):
        DiffusionPolicy(made.encoder, made.head, **given | changes)


def test_encoders_of_stacks_or_language_are_refused() -> None:
    head = DiffusionHead(A, 8, DiffusionConfig(**DIFFUSION))
    stacked = ObservationEncoder(ObservationConfig(size=SIZE, width=4, embed_dim=8, stack=2))
    with pytest.raises(BadInputError, match="stack: found 2"):
        DiffusionPolicy(stacked, head)
    told = ObservationEncoder(ObservationConfig(kind="resnet18_film", size=32, embed_dim=8, stack=1))
    with pytest.raises(BadInputError, match="takes an instruction"):
        DiffusionPolicy(told, head)


def test_proprioception_through_a_linear_layer() -> None:
    """The head reads images, then the embedding of normalised proprioception."""
    torch.manual_seed(0)
    encoder = ObservationEncoder(ObservationConfig(size=SIZE, width=4, embed_dim=6, stack=1, cameras=C))
    head = DiffusionHead(A, condition_width(encoder, P, 5), DiffusionConfig(**DIFFUSION))
    made = DiffusionPolicy(encoder, head, state_dim=P, use_state=True, state_embed_dim=5)
    frames, state = torch.zeros(1, 2, C, SIZE, SIZE, 3, dtype=torch.uint8), torch.randn(1, 2, P)
    found = made.condition(frames, state)
    layer = made.state_encoder
    assert isinstance(layer, torch.nn.Linear)
    torch.testing.assert_close(found[..., C * 6 :], made.normal_state(state) @ layer.weight.T + layer.bias)
    assert (head.condition_dim, condition_width(encoder, P), condition_width(encoder, 0, 5)) == (17, 15, 12)
    again = DiffusionPolicy.build(made.config())
    assert {key: value.shape for key, value in again.state_dict().items()} == {
        key: value.shape for key, value in made.state_dict().items()
    }
