from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from counterpoint.data.episode import GoalEpisode, Spaces
from counterpoint.data.replay import ReplayBuffer, Rows, check_episode
from counterpoint.data.spec import TRANSITION_READS, Spec
from counterpoint.data.store import OutputPool
from counterpoint.data.transitions import Tail
from counterpoint.errors import BadInputError
from tests.data.replay_made import GENEROUS, SPACES, add, batches, made, same, sample, spec
from tests.data.sampling import sampler


@pytest.mark.parametrize("tail", ["renormalise", "clip", "reject"])
def test_a_batch_is_what_its_keys_say(tail: Tail) -> None:
    buffer, lengths = ReplayBuffer(SPACES, capacity=100), {0: 1, 1: 2, 2: 5, 3: 6, 4: 30}
    for number, T in lengths.items():
        add(buffer, number, T)
    batch = sample(buffer, spec(tail), 500)
    assert batch.keys() == {*TRANSITION_READS, "future_offset"}
    assert batch["observation"].dtype == batch["action"].dtype == batch["reward"].dtype == torch.float32
    assert batch["future_offset"].dtype == torch.int64
    assert batch["terminated"].dtype == torch.bool
    for row in range(500):
        number, step, _ = (int(value) for value in batch["observation"][row])
        T, k = lengths[number], int(batch["future_offset"][row])
        assert 0 <= step < T
        assert batch["next_observation"][row].tolist() == [number, step + 1, -step - 1]
        assert batch["next_goal"][row].tolist() == [number, step + 1]
        torch.testing.assert_close(batch["action"][row], torch.tensor([step / 1000, number / 1000]))
        assert batch["reward"][row] == step + 1
        assert 1 <= k <= T - step
        assert batch["future_goal"][row].tolist() == [number, step + k]
        assert batch["goal"][row].tolist() == [number, -1]
        other, at = (int(value) for value in batch["random_goal"][row])
        assert 0 <= at <= lengths[other]
        assert bool(batch["terminated"][row]) == (number % 2 == 1 and step == T - 1)


def test_only_what_is_asked_for_is_gathered() -> None:
    buffer = ReplayBuffer(SPACES, capacity=10)
    add(buffer, 0, 5)
    for key in TRANSITION_READS:
        more = {"future_offset"} if key == "future_goal" else set()
        assert sample(buffer, Spec.transitions({key}), 3).keys() == {key} | more


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=25), st.integers(12, 30), st.integers(0, 9), st.integers(1, 4))
@example([4, 4, 4, 4], 12, 0, 4)  # episodes that fill the rows exactly
def test_whole_episodes_are_evicted_and_all_that_stay_are_reached(
    lengths: list[int], capacity: int, slack: int, shortest: int
) -> None:
    buffer = ReplayBuffer(SPACES, capacity=capacity, slack=slack, shortest=shortest)
    live: list[tuple[int, int]] = []
    rows = capacity + 2 * -(-capacity // shortest)
    for number, T in enumerate(lengths):
        add(buffer, number, T)
        live.append((number, T))
        while sum(T for _, T in live) > capacity or sum(T + 2 for _, T in live) > rows:
            live.pop(0)
    assert len(buffer) == len(live)
    assert buffer.transitions == sum(T for _, T in live)
    batch = sample(buffer, GENEROUS, 1500)
    seen = {(int(e), int(t)) for e, t, _ in batch["observation"]}
    assert seen == {(number, step) for number, T in live for step in range(T)}
    states = {(int(e), int(t)) for e, t in batch["random_goal"]}
    assert states == {(number, step) for number, T in live for step in range(T + 1)}


def test_sequences_end_at_the_transition_and_are_padded_on_the_left() -> None:
    buffer, lengths, K = ReplayBuffer(SPACES, capacity=40), [1, 3, 4, 5, 12], 4
    for number, T in enumerate(lengths):
        add(buffer, number, T)
    batch = sample(buffer, spec(sequence=K), 200)
    assert batch["sequence_observation"].shape == (200, K, 3)
    assert batch["sequence_action"].shape == (200, K, 2)
    for row in range(200):
        number, last, _ = (int(value) for value in batch["observation"][row])
        for place in range(K):
            step = last - K + 1 + place
            assert bool(batch["sequence_valid"][row, place]) == (step >= 0)
            step = max(step, 0)
            assert batch["sequence_step"][row, place] == step
            assert batch["sequence_observation"][row, place].tolist() == [number, step, -step]
            left = sum(made(number, lengths[number]).rewards[step:])
            assert batch["sequence_return"][row, place] == left


@pytest.mark.parametrize("in_files", [False, True])
def test_a_restored_buffer_samples_bit_by_bit_the_same(tmp_path: Path, in_files: bool) -> None:
    folder = tmp_path / "replay" if in_files else None
    buffer = ReplayBuffer(SPACES, capacity=50, folder=folder, slack=20, shortest=4)
    for number in range(20):
        add(buffer, number, 4 + number % 5)
    buffer.flush()
    cursor = json.loads(json.dumps(buffer.cursor()))
    before = batches(buffer, sequence=3)
    for number in range(20, 23):  # 20 transitions: as many as the slack, and old episodes are evicted
        add(buffer, number, (6, 6, 8)[number - 20])
    went_on = batches(buffer)
    after = json.loads(json.dumps(buffer.cursor()))
    assert not same(batches(buffer, sequence=3), before)
    if in_files:
        del buffer
        buffer = ReplayBuffer(SPACES, capacity=50, folder=folder, slack=20, shortest=4)
    buffer.restore(cursor)
    assert same(batches(buffer, sequence=3), before)
    for number in range(20, 23):
        add(buffer, number, (6, 6, 8)[number - 20])
    assert same(batches(buffer), went_on)
    assert buffer.cursor() == after


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 9), max_size=12), st.lists(st.integers(2, 9), max_size=12), st.integers(0, 30))
def test_slack_transitions_later_a_cursor_still_holds(before: list[int], after: list[int], slack: int) -> None:
    buffer = ReplayBuffer(SPACES, capacity=20, slack=slack, shortest=2)
    for number, T in enumerate([5, *before]):
        add(buffer, number, T)
    cursor, expected, added = buffer.cursor(), batches(buffer, 1), 0
    for number, T in enumerate(after):
        if added + T <= slack:
            add(buffer, 100 + number, T)
            added += T
    buffer.restore(cursor)
    assert same(batches(buffer, 1), expected)


def test_rows_written_over_since_are_told() -> None:
    buffer = ReplayBuffer(SPACES, capacity=20)
    for number in range(3):
        add(buffer, number, 6)
    cursor = buffer.cursor()
    for number in range(3, 6):
        add(buffer, number, 6)
    now = batches(buffer)
    with pytest.raises(BadInputError, match="rows that differ"):
        buffer.restore(cursor)
    assert same(batches(buffer), now)


def test_another_memory_does_not_hold_what_a_cursor_refers_to() -> None:
    buffer = ReplayBuffer(SPACES, capacity=20)
    add(buffer, 0, 6)
    with pytest.raises(BadInputError, match="rows that differ"):
        ReplayBuffer(SPACES, capacity=20).restore(buffer.cursor())


def test_a_folder_of_another_buffer_is_refused(tmp_path: Path) -> None:
    ReplayBuffer(SPACES, capacity=20, folder=tmp_path)
    with pytest.raises(BadInputError, match="other sizes"):
        ReplayBuffer(SPACES, capacity=21, folder=tmp_path)


@pytest.mark.parametrize("in_files", [False, True])
def test_images(tmp_path: Path, in_files: bool) -> None:
    shape, rng = (8, 8, 3), np.random.default_rng(0)
    spaces = Spaces(observation=shape, goal=shape, action=3, discrete=True)
    kept, shared = (
        ReplayBuffer(
            spaces, capacity=30, folder=tmp_path / name if in_files else None, goal_is_observation=name == "shared"
        )
        for name in ("kept", "shared")
    )
    for _ in range(9):
        images, command = rng.integers(256, size=(7, *shape), dtype=np.uint8), np.full(shape, 9, np.uint8)
        for buffer in (kept, shared):
            buffer.append(GoalEpisode(images, images, command, np.array([0, 1, 2, 2, 1, 0]), np.zeros(6)))
    assert same(batches(kept), batches(shared))
    batch = batches(kept, 1)[0]
    assert batch["observation"].dtype == batch["goal"].dtype == np.uint8
    assert batch["action"].dtype == np.int64
    assert batch["observation"].shape == (64, *shape)
    assert (batch["goal"] == 9).all()
    assert not batch["reward"].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((1, 3)), "achieved": np.zeros((1, 2)), "actions": np.zeros((0, 2))}, "1 states"),
        ({"observations": np.zeros((5, 4))}, r"observations: found shape \(5, 4\)"),
        ({"observations": np.full((5, 3), np.nan)}, r"observations: found NaN or infinity at \(0, 0\)"),
        ({"observations": np.full((5, 3), 1e39)}, "observations: found NaN or infinity"),
        ({"achieved": np.full((5, 2), np.inf)}, "goals: found NaN or infinity"),
        ({"achieved": np.zeros((4, 2))}, r"goals: found shape \(4, 2\)"),
        ({"actions": np.zeros((5, 2))}, r"actions: found shape \(5, 2\)"),
        ({"actions": np.full((4, 2), 1.001)}, "actions, step 0: found 1.001"),
        ({"commanded": np.zeros(3)}, "commanded goal: found shape"),
        ({"rewards": np.full(4, np.nan)}, "rewards: found NaN"),
        ({"rewards": np.zeros(5)}, "rewards: found shape"),
    ],
)
def test_a_bad_episode_is_one_message_and_changes_nothing(change: dict[str, Any], message: str) -> None:
    buffer = ReplayBuffer(SPACES, capacity=12)
    for number in range(3):
        add(buffer, number, 4)
    cursor, before = buffer.cursor(), batches(buffer)
    with pytest.raises(BadInputError, match=message):
        buffer.append(made(9, 4, **change))
    assert buffer.cursor() == cursor
    assert same(batches(buffer), before)


def test_actions_beyond_the_box_by_rounding_are_clipped() -> None:
    buffer = ReplayBuffer(SPACES, capacity=12)
    buffer.append(made(0, 4, actions=np.full((4, 2), 1 + 1e-7)))
    assert batches(buffer, 1)[0]["action"].max() == 1


@pytest.mark.parametrize("actions", [np.array([0, 1, 2, 3]), np.array([-1, 0, 0, 0]), np.zeros(4)])
def test_discrete_actions_are_numbers_of_actions(actions: np.ndarray[Any, Any]) -> None:
    buffer = ReplayBuffer(Spaces((3,), (2,), 3, discrete=True), capacity=12)
    with pytest.raises(BadInputError, match="actions"):
        buffer.append(made(0, 4, actions=actions))


def test_an_episode_longer_than_the_capacity_is_refused() -> None:
    buffer = ReplayBuffer(SPACES, capacity=12)
    add(buffer, 0, 12)
    with pytest.raises(BadInputError, match="13 transitions"):
        add(buffer, 1, 13)
    assert buffer.transitions == 12


def test_an_empty_buffer_cannot_be_sampled() -> None:
    with pytest.raises(BadInputError, match="no episode"):
        sample(ReplayBuffer(SPACES, capacity=12))


@pytest.mark.parametrize("in_files", [False, True])
def test_a_buffer_larger_than_what_is_free_is_refused_at_once(tmp_path: Path, in_files: bool) -> None:
    with pytest.raises(BadInputError, match="disk free" if in_files else "memory free"):
        ReplayBuffer(SPACES, capacity=10**14, folder=tmp_path if in_files else None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"capacity": 0}, {"capacity": 5, "slack": -1}, {"capacity": 5, "shortest": 0}])
def test_impossible_sizes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadInputError, match="expected at least"):
        ReplayBuffer(SPACES, **change)


def test_a_source_gives_batch_k_whatever_came_before() -> None:
    buffer = ReplayBuffer(SPACES, capacity=100)
    for number in range(9):
        add(buffer, number, 7)
    source = sampler(buffer, GENEROUS, batch_size=16, seed=3)
    assert source.epoch_size == 63
    whole, rest = list(source.batches(0, 6)), list(source.batches(4, 6))
    for a, b in zip(whole[4:], rest, strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(whole[0]["observation"], whole[1]["observation"])
    other = sampler(buffer, GENEROUS, batch_size=16, seed=4)
    assert not torch.equal(whole[0]["observation"], other[0]["observation"])


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_same_global_batches(ranks: int) -> None:
    buffer = ReplayBuffer(SPACES, capacity=100)
    for number in range(9):
        add(buffer, number, 7)
    whole = sampler(buffer, GENEROUS, batch_size=16)[4]
    parts = [sampler(buffer, GENEROUS, batch_size=16, rank=rank, world_size=ranks)[4] for rank in range(ranks)]
    for key, value in whole.items():
        assert torch.equal(torch.cat([part[key] for part in parts]), value)


def test_a_sampler_follows_a_buffer_that_grows_and_is_restored() -> None:
    buffer = ReplayBuffer(SPACES, capacity=20, slack=20)
    add(buffer, 0, 6)
    serve, cursor = sampler(buffer, GENEROUS, batch_size=64), buffer.cursor()
    before = serve[0]
    assert set(before["observation"][:, 0].tolist()) == {0.0}
    add(buffer, 1, 6)
    assert serve.epoch_size == 12
    assert set(serve[0]["observation"][:, 0].tolist()) == {0.0, 1.0}
    buffer.restore(cursor)
    assert all(torch.equal(serve[0][key], value) for key, value in before.items())


STATE = Spaces(observation=(3,), goal=(2,), action=2)
IMAGE = Spaces(observation=(4, 4, 3), goal=(4, 4, 3), action=3, discrete=True)


def test_an_episode_takes_the_types_it_is_stored_in() -> None:
    found = check_episode(
        STATE, GoalEpisode(np.zeros((3, 3)), np.zeros((3, 2)), np.zeros(2), np.ones((2, 2)), np.zeros(2))
    )
    for name in ("observations", "actions", "achieved", "commanded", "rewards"):
        assert getattr(found, name).dtype == np.float32
    assert found.rewards.tolist() == [0, 0]


def test_images_stay_bytes_and_discrete_actions_become_int64() -> None:
    images = np.zeros((3, 4, 4, 3), np.uint8)
    found = check_episode(IMAGE, GoalEpisode(images, images, images[0], np.array([0, 2], np.int8), np.zeros(2)))
    assert found.observations.dtype == found.commanded.dtype == np.uint8
    assert found.actions.dtype == np.int64


def test_images_of_another_type_are_refused() -> None:
    images = np.zeros((3, 4, 4, 3))
    with pytest.raises(BadInputError, match="observations: found float64; expected images as uint8"):
        check_episode(IMAGE, GoalEpisode(images, images, images[0], np.array([0, 2]), np.zeros(2)))


@pytest.mark.parametrize("observations", [np.zeros((0, 3)), np.zeros((1, 3)), np.array(1.0)])
def test_two_states_are_the_least(observations: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    with pytest.raises(BadInputError, match="expected at least 2"):
        check_episode(STATE, GoalEpisode(observations, np.zeros((1, 2)), np.zeros(2), np.zeros((0, 2)), np.zeros(2)))


@pytest.mark.parametrize(("value", "good"), [(1 + 1e-7, True), (1 + 1e-5, False), (-1 - 1e-5, False)])
def test_actions_may_leave_the_box_by_rounding_alone(value: float, good: bool) -> None:
    episode = GoalEpisode(np.zeros((2, 3)), np.zeros((2, 2)), np.zeros(2), np.full((1, 2), value), np.zeros(1))
    if good:
        assert np.abs(check_episode(STATE, episode).actions).max() == 1
    else:
        with pytest.raises(BadInputError, match=r"actions, step 0: found .*; expected actions from -1 to 1"):
            check_episode(STATE, episode)


COLUMNS = {"vector": np.dtype(("float32", (2,))), "number": np.dtype("int64")}


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("row", [0, 3, 5, 6, 7, 7_000_003])
def test_rows_run_over_the_end_and_go_on_at_the_beginning(tmp_path: Path, in_files: bool, row: int) -> None:
    rows = Rows(COLUMNS, 7, tmp_path if in_files else None)
    vectors, numbers = np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(5)
    rows.write("vector", row, vectors)
    rows.write("number", row, numbers)
    places = row + np.array([[4, 0, 2], [1, 1, 3]])
    np.testing.assert_array_equal(rows.gather("vector", places), vectors[places - row])
    np.testing.assert_array_equal(rows.gather("number", places), places - row)


def test_the_checksum_is_of_the_content_wherever_it_lies() -> None:
    found = set()
    for row in range(7):
        rows = Rows(COLUMNS, 7, None)
        rows.write("vector", row, np.ones((4, 2), np.float32))
        rows.write("number", row, np.arange(4))
        found.add(rows.checksum(row, 4))
    assert len(found) == 1
    rows.write("number", 6 + 3, np.array([9]))
    assert rows.checksum(6, 4) not in found


def test_files_are_there_again_and_have_their_room(tmp_path: Path) -> None:
    count = 10_000_000
    Rows(COLUMNS, count, tmp_path).write("number", 5, np.array([42]))
    assert (tmp_path / "number.bin").stat().st_size == 8 * count
    if hasattr(os.stat_result, "st_blocks"):
        assert (tmp_path / "number.bin").stat().st_blocks * 512 >= 8 * count  # a full disk is found now, not later
    assert Rows(COLUMNS, count, tmp_path).gather("number", np.array([5])) == 42


def test_what_the_files_hold_already_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(COLUMNS, 100_000, tmp_path)
    for name, shape in (("vector", (100_000, 2)), ("number", (100_000,))):
        rows.write(name, 0, np.ones(shape))
    rows.flush()
    usage = (10**12, 10**12, 50_000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("U", (), {"free": usage[2]}))
    Rows(COLUMNS, 100_000, tmp_path)
    with pytest.raises(BadInputError, match="disk free"):
        Rows(COLUMNS, 100_000, tmp_path / "another")
    assert not (tmp_path / "another" / "vector.bin").exists()


def test_memory_is_asked_for_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=15_999))
    Rows(COLUMNS, 999, None)
    with pytest.raises(BadInputError, match="memory free"):
        Rows(COLUMNS, 1000, None)


def test_memory_of_outputs_is_used_again_only_when_nobody_holds_it() -> None:
    size = OutputPool.large
    rows = Rows({"image": np.dtype(("uint8", (size,)))}, 3, None)
    for row in range(3):
        rows.write("image", row, np.full((1, size), row, np.uint8))
    held = torch.from_numpy(rows.gather("image", np.array([0])))[0, 5:9]  # a view of a view
    slices = [rows.gather("image", np.array([1]))[:, :7]]
    for _ in range(20):
        assert (rows.gather("image", np.array([2])) == 2).all()
    assert held.tolist() == [0] * 4
    assert (slices[0] == 1).all()
    del held
    gc.collect()
    places = {rows.gather("image", np.array([2])).ctypes.data for _ in range(20)}
    assert len(places) <= 3
