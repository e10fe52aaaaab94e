from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor
from counterpoint.cli.data.info import info
from counterpoint.data.episode import Array
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.formats import drq, open_dataset, recognise
from counterpoint.formats.drq import DrqReplayStore
from counterpoint.formats.lru import LRUCache
from tests.data.reading import read_episode


def write_replay(
    folder: Path, lengths: tuple[int, ...] = (4, 3), *, stack: int = 3, size: int = 8
) -> list[dict[str, Array]]:
    """Episodes as DrQ-v2's replay buffer writes them; image t of an episode is grey value 10 t + its number."""
    folder.mkdir(parents=True)
    episodes = []
    for number, length in enumerate(lengths):
        grey = [np.full((3, size, size), 10 * t + number, np.uint8) for t in range(length + 1)]
        rows = [np.concatenate([grey[max(t - back, 0)] for back in reversed(range(stack))]) for t in range(length + 1)]
        episode = {
            "observation": np.stack(rows),
            "action": np.arange(length + 1, dtype=np.float32)[:, None] * [1, 0.1],  # row 0 is the dummy
            "reward": 100 + np.arange(length + 1, dtype=np.float32)[:, None],
            "discount": np.ones((length + 1, 1), np.float32),
        }
        packed = io.BytesIO()
        np.savez_compressed(packed, **episode)  # type: ignore[arg-type]
        (folder / f"2023010{number}T000000_{number}_{length}.npz").write_bytes(packed.getvalue())
        episodes.append(episode)
    return episodes


@pytest.mark.parametrize("stack", [1, 3])
def test_steps_stand_beside_what_led_on(tmp_path: Path, stack: int) -> None:
    write_replay(tmp_path / "walker_walk_replay", stack=stack)
    store = open_dataset(tmp_path / "walker_walk_replay")
    assert recognise(tmp_path / "walker_walk_replay").name == "drq_replay"
    assert isinstance(store, DrqReplayStore)
    assert isinstance(store, EpisodeStore)
    assert [(e.length, e.instruction, e.success) for e in store.episodes] == [
        (4, "walker walk", None),
        (3, "walker walk", None),
    ]
    episode = read_episode(store, 1)
    assert episode.frames["camera"].shape == (3, 8, 8, 3)
    assert episode.frames["camera"][:, 0, 0, 0].tolist() == [1, 11, 21]  # the newest image of each row
    assert episode.actions is not None
    np.testing.assert_allclose(episode.actions, np.array([[1, 0.1], [2, 0.2], [3, 0.3]]), rtol=1e-6)  # no dummy
    np.testing.assert_array_equal(store.rewards(1), [101, 102, 103])
    assert store.state(1) is None
    assert store.frames(0, np.array([3, 0, 0]))[:, 0, 0, 0].tolist() == [30, 0, 0]


def test_transitions_are_those_the_authors_draw(tmp_path: Path) -> None:
    """Row idx - 1 of the images, row idx of the actions: what their buffer pairs, idx from 1."""
    (raw, _) = write_replay(tmp_path / "cup_catch")
    store = open_dataset(tmp_path / "cup_catch")
    actions = store.actions(0)
    assert actions is not None
    for idx in range(1, 4):
        np.testing.assert_array_equal(
            store.frames(0, np.array([idx - 1]))[0].transpose(2, 0, 1), raw["observation"][idx - 1, -3:]
        )
        np.testing.assert_array_equal(actions[idx - 1], raw["action"][idx].astype(np.float32))
        np.testing.assert_array_equal(
            store.frames(0, np.array([idx]))[0].transpose(2, 0, 1), raw["observation"][idx, -3:]
        )


def test_episodes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write_replay(tmp_path / "task", tuple(range(2, 14)), size=4)
    assert [e.length for e in DrqReplayStore(tmp_path / "task").episodes] == list(range(2, 14))


def test_unpacked_episodes_are_bounded_and_none_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_replay(tmp_path / "task", (2,) * 12, size=4)
    store = DrqReplayStore(tmp_path / "task")
    kept: LRUCache[Array] = LRUCache(limit=8 * 2 * 4 * 4 * 3)
    monkeypatch.setattr(drq, "_images", kept)
    for _ in range(2):
        for number in range(12):
            assert store.frames(number, np.array([1]))[0, 0, 0, 0] == 10 + number
    assert len(kept) == 8
    copied = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(copied.frames(3, np.arange(2)), store.frames(3, np.arange(2)))


@pytest.mark.parametrize(
    ("name", "value"), [("action", np.nan), pytest.param("reward", -np.inf, marks=pytest.mark.slow)]
)
def test_numbers_that_are_not_finite_are_refused_and_found(
    tmp_path: Path, name: str, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    write_replay(tmp_path / "task")
    file = tmp_path / "task" / "20230100T000000_0_4.npz"
    with np.load(file) as arrays:
        values = arrays[name].copy()
    values[2] = value
    _rewrite(file, **{name: values})
    store = DrqReplayStore(tmp_path / "task")
    with pytest.raises(BadInputError, match=f"{name}s: found a value that is not finite at step 1"):
        store.actions(0) if name == "action" else store.rewards(0)
    assert doctor(tmp_path / "task") == 2
    assert "not finite" in " ".join(capsys.readouterr().out.split())


def test_a_small_file_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    write_replay(tmp_path / "task")
    file = tmp_path / "task" / "20230100T000000_0_4.npz"
    _rewrite(file, observation=np.broadcast_to(np.uint8(0), (5, 9, 84, 84)))
    whole = zipfile.ZipFile(file)
    contents = {name: whole.read(name) for name in whole.namelist()}
    claimed = contents["observation.npy"].replace(b"(5, 9, 84, 84)", b"(5,9,8400,8400)")
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, claimed if name == "observation.npy" else content)
    with pytest.raises(BadInputError, match="claims 3175200128 bytes"):
        DrqReplayStore(tmp_path / "task")


def _rewrite(file: Path, **changes: Array | None) -> None:
    with np.load(file) as arrays:
        content = {**arrays, **changes}
    np.savez(file, **{name: values for name, values in content.items() if values is not None})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"action": None}, "no action"),
        ({"reward": np.zeros(3)}, "lengths that disagree"),
        ({"observation": np.zeros((5, 8, 8, 4), np.uint8)}, "observation: found uint8"),
        ({"observation": np.zeros((5, 9, 8, 8))}, "observation: found float64"),
        ({"action": np.zeros(5)}, "action: found"),
    ],
)
def test_damage_is_told_by_file(tmp_path: Path, changes: dict[str, Array | None], told: str) -> None:
    write_replay(tmp_path / "task")
    file = tmp_path / "task" / "20230100T000000_0_4.npz"
    _rewrite(file, **changes)
    with pytest.raises(BadInputError, match=told):
        open_dataset(tmp_path / "task")
    findings: list[BadInputError] = []
    rest = open_dataset(tmp_path / "task", on_bad_row=findings.append)
    assert [finding.where.split(", ")[0] for finding in findings] == [str(file)]
    assert [e.length for e in rest.episodes] == [3]
    assert rest.frames(0, np.array([0]))[0, 0, 0, 0] == 1


def test_a_file_cut_short(tmp_path: Path) -> None:
    write_replay(tmp_path / "task")
    file = tmp_path / "task" / "20230100T000000_0_4.npz"
    whole = file.read_bytes()
    store = DrqReplayStore(tmp_path / "task")
    file.write_bytes(whole[: len(whole) // 2])
    for ask in (lambda: store.frames(0, np.array([0])), lambda: open_dataset(tmp_path / "task")):
        with pytest.raises(BadInputError, match="damaged"):
            ask()


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    write_replay(tmp_path / "task")
    file = tmp_path / "task" / "20230100T000000_0_4.npz"
    _rewrite(file, reward=np.array([print] * 5, object))
    store = DrqReplayStore(tmp_path / "task")
    with pytest.raises(BadInputError, match="damaged"):
        store.rewards(0)


def test_info_doctor_and_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_replay(tmp_path / "walker_walk", size=32)
    info(tmp_path / "walker_walk")
    told = capsys.readouterr().out
    for fact in ("DrQ-v2 replay", "2, of 3 to 4 frames", "camera 32x32", "2 dimensions", "walker walk"):
        assert fact in told
    assert doctor(tmp_path / "walker_walk") == 0
    out = open_dataset(convert(tmp_path / "walker_walk", tmp_path / "out"))
    source = open_dataset(tmp_path / "walker_walk")
    np.testing.assert_array_equal(out.actions(1), source.actions(1))
    assert out.episodes == source.episodes
