"""What cloned and diffusion policies share: observations of any form, actions in their own units, no camera at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import counterpoint
from counterpoint.data.resize import resize
from counterpoint.data.statistics import Statistics
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.objectives.cloning import Cloning, CloningConfig
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.heads import ActionHead, HeadConfig
from counterpoint.policies.networks import DiffusionConfig
from tests.policies.demos import observed
from tests.policies.small_diffusion import DIFFUSION, FRAME, A, P, policy, sights


def lerobot(frames: NDArray[np.uint8], state: NDArray[np.float32]) -> dict[str, Any]:
    """The observation [n, C, H, W, 3] with LeRobot's names: torch, channels first, float in [0, 1]."""
    images = {f"observation.images.{name}": frames[:, c] for c, name in enumerate(("front", "wrist"))}
    unit = {name: torch.from_numpy(image).movedim(-1, 1).float() / 255 for name, image in images.items()}
    return unit | {"observation.state": torch.from_numpy(state), "task": ["push"] * len(state)}


def test_every_form_of_an_observation_is_one_observation() -> None:
    """Numpy or torch, our names or LeRobot's, channels first or last, one robot or many."""
    frames, state = sights(9, 2)
    ours, theirs, alone = policy(), policy(), policy()
    for t in range(9):
        acted = ours.act(observed(frames[t], state[t]), rows=[0, 1])
        selected = theirs.select_action(lerobot(frames[t], state[t]))
        assert isinstance(selected, torch.Tensor)
        np.testing.assert_allclose(selected.numpy(), acted, atol=2e-5)
        one = alone.select_action({key: value[0] for key, value in observed(frames[t], state[t]).items()})
        assert isinstance(one, np.ndarray)
        assert one.shape == (A,)
        np.testing.assert_allclose(one, acted[0], atol=2e-5)


def test_frames_of_any_size_come_to_the_policy_s_as_in_training() -> None:
    rng = np.random.default_rng(0)
    large = rng.integers(0, 256, (1, 2, 40, 60, 3), dtype=np.uint8)
    small = np.stack([resize(large[:, camera], FRAME) for camera in range(2)], axis=1)
    state = np.zeros((1, P), np.float32)
    resized, given = policy(executed=5), policy(executed=5)
    for _ in range(7):  # in the middle of a plan nothing is looked at
        acted = resized.select_action(observed(large, state)), given.select_action(observed(small, state))
        np.testing.assert_array_equal(*acted)


def test_a_chunk_is_what_would_be_executed() -> None:
    frames, state = sights(3, 2)
    planning, acting = policy(), policy()
    chunk = planning.predict_action_chunk(observed(frames[0], state[0]))
    assert chunk.shape == (2, 7, A)  # 8 actions from the older of two observations on
    for t in range(3):
        np.testing.assert_allclose(acting.select_action(observed(frames[t], state[t])), chunk[:, t], atol=2e-5)
    again = planning.predict_action_chunk(observed(frames[1], state[1]))
    assert not np.allclose(again, chunk)
    planning.reset()
    acting.reset()
    assert planning.looks([0, 1]) == [True, True]


def test_a_plan_reads_the_observations_that_were_passed_on() -> None:
    frames, state = sights(3, 2)
    every, passed, skipped = policy(), policy(), policy()
    for made in (every, passed, skipped):
        made.reset([0, 1], seeds=[3, 4])
        made.predict_action_chunk(observed(frames[0], state[0]))
    every.predict_action_chunk(observed(frames[1], state[1]))
    passed.observe(observed(frames[1], state[1]))
    for made in (passed, skipped):  # as many plans as `every`, whose noise is numbered
        for row in range(2):
            made._episodes[row].next_generator()
    newest = observed(frames[2], state[2])
    expected = every.predict_action_chunk(newest)
    np.testing.assert_array_equal(passed.predict_action_chunk(newest), expected)
    assert not np.allclose(skipped.predict_action_chunk(newest), expected)


def blind() -> ObservationEncoder:
    return ObservationEncoder(ObservationConfig(kind="none", cameras=0, stack=1))


@pytest.mark.parametrize("kind", ["mlp", "resnet_t", "diffusion"])
def test_a_policy_of_proprioception_alone(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    made: ClonedPolicy | DiffusionPolicy
    if kind == "diffusion":
        head = DiffusionHead(A, P, DiffusionConfig(**DIFFUSION))
        made = DiffusionPolicy(blind(), head, state_dim=P, use_state=True)
    else:
        config = HeadConfig(use_state=True, hidden=8, token=8, layers=1, heads=2, history=1 if kind == "mlp" else 3)
        made = ClonedPolicy(blind(), ActionHead(0, A, P, config, cameras=0))
    loaded = counterpoint.load(made.save_pretrained(tmp_path))
    for t in range(4):
        state = np.full((2, P), t, np.float32)
        acted = made.select_action({"state": state})
        assert acted.shape == (2, A)
        np.testing.assert_array_equal(loaded.select_action({"state": state}), acted)
    made.reset()
    one = made.select_action({"observation.state": torch.zeros(P)})
    assert isinstance(one, torch.Tensor)
    assert one.shape == (A,)


def statistics(low: float, high: float) -> Statistics:
    return Statistics.of(np.array([[low] * A, [high] * A]))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.5), (0.0, 255.0)])
def test_actions_have_the_units_of_the_data(low: float, high: float) -> None:
    known = Demonstrations(count=1, instruction="", actions=statistics(low, high))
    torch.manual_seed(0)
    encoder = ObservationEncoder(ObservationConfig(size=16, width=4, embed_dim=8, stack=1))
    objective = Cloning(encoder, A, 0, CloningConfig(hidden=8), known)
    policy = objective.exports()["policy"]
    assert isinstance(policy, ClonedPolicy)
    frames = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    acted = policy.select_action({"front": frames})
    unit = policy.head(encoder(torch.from_numpy(frames)[:, None])[:, None], torch.ones(3, 1, dtype=torch.bool))
    # Actions within [-1, 1] are learned as they are (Premier-TACO's policy); others by their range.
    expected = unit if high <= 1 else low + (unit + 1) / 2 * (high - low)
    np.testing.assert_allclose(acted, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    batch = {
        "frames": torch.from_numpy(frames)[:, None, None],
        "shift": torch.full((3, 1, 2), 4),
        "frames_valid": torch.ones(3, 1, dtype=torch.bool),
        "actions": torch.from_numpy(acted)[:, None],
        "action_mask": torch.ones(3, A, dtype=torch.bool),
    }
    objective.eval()
    assert objective(batch).loss.item() == pytest.approx(0, abs=1e-8)


def test_a_diffusion_policy_stays_in_the_range_of_the_data() -> None:
    torch.manual_seed(0)
    head = DiffusionHead(A, P, DiffusionConfig(**DIFFUSION))
    head.normalizer.normalise_by(statistics(40.0, 90.0))
    made = DiffusionPolicy(blind(), head, state_dim=P, use_state=True)
    acted = made.select_action({"state": np.zeros((50, P), np.float32)})
    assert acted.min() >= 40
    assert acted.max() <= 90
    assert np.ptp(acted) > 5


def test_one_camera_needs_no_name_and_is_found_by_its_name() -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoder(ObservationConfig(size=16, width=4, embed_dim=8, stack=1))
    made = ClonedPolicy(encoder, ActionHead(8, A, 0, HeadConfig(hidden=8)), cameras=("top",))
    images = np.random.default_rng(0).integers(0, 256, (2, 2, 16, 16, 3), dtype=np.uint8)
    named = made.select_action({"front": images[1], "top": images[0]})
    made.reset()
    np.testing.assert_array_equal(made.select_action({"pixels": images[0]}), named)
