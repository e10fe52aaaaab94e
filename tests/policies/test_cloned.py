from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from counterpoint.encoders.dual import SentenceTower
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.policies.base import Policy
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.heads import ActionHead, HeadConfig
from tests.encoders.saved_kinds import write_digests
from tests.policies.demos import SAVED, demonstrations, observed, spelled

S, P, A = 2, 3, 2


@pytest.fixture(autouse=True)
def _no_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentenceTower, "embed", spelled)


def policy(history: int = 1, seed: int = 0, **settings: Any) -> ClonedPolicy:
    torch.manual_seed(seed)
    encoder = ObservationEncoder(ObservationConfig(size=16, width=4, embed_dim=8, stack=S))
    config = HeadConfig(history=history, **{"hidden": 16, "token": 8, "layers": 2, "heads": 2, **settings})
    made = Demonstrations.of(demonstrations(2))
    head = ActionHead(8, A, P, config)
    if config.use_state:
        assert made.state is not None
        head.state_normalizer.standardise_by(made.state)
    return ClonedPolicy(encoder, head, made)


def sights(steps: int, n: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """What n rows see at each step: frames of one camera [T, n, 1, H, W, 3] and state [T, n, P]."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (steps, n, 1, 16, 16, 3), dtype=np.uint8)
    return frames, rng.normal(5, 2, (steps, n, P)).astype(np.float32)


@pytest.mark.slow
def test_an_encoder_that_listens(tmp_path: Path) -> None:
    """FiLM reads the policy's instruction, and so does the saved one."""
    torch.manual_seed(0)
    encoder = ObservationEncoder(ObservationConfig(kind="resnet18_film", size=32, stack=1, embed_dim=8))
    made = ClonedPolicy(encoder, ActionHead(8, A, 0, HeadConfig(hidden=8)))
    frames = np.random.default_rng(0).integers(0, 256, (2, 1, 32, 32, 3), dtype=np.uint8)
    state = np.zeros((2, 0), np.float32)
    with pytest.raises(BadInputError, match=r"policy\.instruction"):
        made.act(observed(frames, state), rows=[0, 1])
    made.instruction = "open the drawer"
    loaded = ClonedPolicy.from_pretrained(made.save_pretrained(tmp_path))
    np.testing.assert_array_equal(
        loaded.act(observed(frames, state), rows=[0, 1]), made.act(observed(frames, state), rows=[0, 1])
    )


@pytest.mark.parametrize("history", [1, 4])
def test_acts_as_a_policy(history: int) -> None:
    made: Policy = policy(history)
    frames, state = sights(1, 5)
    actions = made.act(observed(frames[0], state[0]), rows=range(5))
    assert actions.shape == (5, A)
    assert actions.dtype == np.float32
    assert bool((np.abs(actions) <= 1).all())


def test_history_equals_recomputation() -> None:
    """At every step: the head on a window embedded afresh, with what lies before the first step masked out."""
    made = policy(4, use_state=True).eval()
    frames, state = sights(7, 3)
    for t in range(7):
        acted = made.act(observed(frames[t], state[t]), rows=range(3))
        steps = np.maximum(np.arange(t - 3, t + 1), 0)
        stacks = np.maximum(steps[:, None] + np.arange(1 - S, 1), 0)  # the first frame is repeated
        window = torch.from_numpy(frames[stacks, :, 0]).permute(2, 0, 1, 3, 4, 5)  # [n, H, S, ...]
        with torch.no_grad():
            embedded = made.encoder(window.flatten(0, 1)).unflatten(0, (3, 4))
            valid = (torch.arange(t - 3, t + 1) >= 0).expand(3, 4)
            expected = made.head(embedded, valid, torch.from_numpy(state[steps]).transpose(0, 1))
        np.testing.assert_allclose(acted, expected.numpy(), atol=1e-6)


def test_rows_do_not_mix() -> None:
    """Rows that join late, act in another order or begin again act as each would by itself."""
    together, frames = policy(3), sights(6, 3)[0]
    state = np.zeros((3, P), np.float32)
    acted: dict[int, list[NDArray[np.float32]]] = {0: [], 1: [], 2: []}
    calls = [[0], [1, 0], [2, 0, 1], [0, 2], [1, 2, 0], [2]]
    for t, rows in enumerate(calls):
        if t == 3:
            together.reset([0])
        for row, action in zip(rows, together.act(observed(frames[t, rows], state[rows]), rows=rows), strict=True):
            acted[row].append(action)
    for row in range(3):
        alone = policy(3)
        alone.reset([7])
        mine = [t for t, rows in enumerate(calls) if row in rows]
        for t, action in zip(mine, acted[row], strict=True):
            if t == 3 and row == 0:
                alone.reset([7])
            expected = alone.act(observed(frames[t, [row]], state[[row]]), rows=[7])[0]
            np.testing.assert_allclose(action, expected, atol=1e-6)


def test_history_matters_and_is_forgotten() -> None:
    frames, state = sights(3, 1)
    made = policy(3)
    fresh = made.act(observed(frames[2], state[2]), rows=[0])
    made.reset([0])
    for t in range(2):
        made.act(observed(frames[t], state[t]), rows=[0])
    assert not np.allclose(made.act(observed(frames[2], state[2]), rows=[0]), fresh)
    made.reset([0])
    np.testing.assert_allclose(made.act(observed(frames[2], state[2]), rows=[0]), fresh, atol=1e-7)


def test_acting_leaves_no_graph_and_no_dropout() -> None:
    made = policy(3, dropout=0.5).train()
    frames, state = sights(1, 2)
    first = made.act(observed(frames[0], state[0]), rows=[0, 1])
    made.reset([0, 1])
    np.testing.assert_array_equal(made.act(observed(frames[0], state[0]), rows=[0, 1]), first)


@pytest.mark.parametrize("settings", [{}, {"use_state": True}, {"history": 3, "use_state": True, "language": True}])
def test_saved_and_loaded(settings: dict[str, Any], tmp_path: Path) -> None:
    made = policy(**settings)
    folder = made.save_pretrained(tmp_path / "model")
    assert {path.name for path in folder.iterdir()} == SAVED
    for place in (folder, tmp_path):
        loaded = ClonedPolicy.from_pretrained(place)
        assert loaded.config() == made.config()
        assert not loaded.training
        made.reset(range(4))
        frames, state = sights(4, 4)
        for t in range(4):
            np.testing.assert_array_equal(
                loaded.act(observed(frames[t], state[t]), rows=range(4)),
                made.act(observed(frames[t], state[t]), rows=range(4)),
            )


def test_loading_what_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        ClonedPolicy.from_pretrained(tmp_path)
    folder = policy().save_pretrained(tmp_path / "saved")
    other = policy(3).save_pretrained(tmp_path / "other")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    write_digests(folder)
    with pytest.raises(BadInputError, match="lacks"):
        ClonedPolicy.from_pretrained(folder)
    (folder / "config.json").write_text('{"format": 3, "encoder": {"kind": "drq"}}')
    write_digests(folder)
    with pytest.raises(BadInputError, match="configuration"):
        ClonedPolicy.from_pretrained(folder)


def test_a_policy_without_an_instruction_says_so() -> None:
    made = policy(language=True)
    made.instruction = ""
    frames, state = sights(1, 1)
    with pytest.raises(BadInputError, match=r"policy\.instruction"):
        made.act(observed(frames[0], state[0]), rows=[0])
    made.instruction = "centre the square"
    assert made.act(observed(frames[0], state[0]), rows=[0]).shape == (1, A)
