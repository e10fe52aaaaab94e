from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

lerobot_dataset = pytest.importorskip(
    "lerobot.datasets.lerobot_dataset", reason="run by `make interchange`, in an environment of its own"
)

from lerobot.configs import video  # noqa: E402  (after importorskip)
from lerobot.scripts import convert_dataset_v21_to_v30  # noqa: E402

from counterpoint.data.episode import Array, Episode, task_of  # noqa: E402
from counterpoint.formats.lerobot import layout  # noqa: E402
from counterpoint.formats.lerobot.reader import LeRobotStore  # noqa: E402
from tests.data.reading import read_episode  # noqa: E402
from tests.formats.lerobot.made import FPS, episode, write_v21, write_v30  # noqa: E402

SIZES = {"top": (64, 96), "wrist": (72, 80)}
pytestmark = pytest.mark.filterwarnings("ignore")  # lerobot's own, of torchvision's decoder and of numpy


def opened(root: Path, **options: Any) -> Any:
    """The data set as `lerobot` opens it, decoding through PyAV as we do."""
    return lerobot_dataset.LeRobotDataset("made/set", root=root, video_backend="pyav", **options)


def image_of(item: dict[str, Any], camera: str) -> Array:
    """Return a camera's image, float [3, H, W] in [0, 1], as uint8 [H, W, 3]."""
    values = item[f"observation.images.{camera}"].permute(1, 2, 0).numpy() * 255
    assert np.abs(values - values.round()).max() < 1e-3
    rounded: Array = values.round().astype(np.uint8)
    return rounded


def task_of_step(own: Episode, step: int) -> str:
    """The task that LeRobot has for a step: that of its segment, if the segments make up the whole task."""
    if not own.segments or own.instruction != task_of(own.segments):
        return own.instruction
    return [words for first, words in own.segments if first <= step][-1]


def assert_same_data(dataset: Any, store: LeRobotStore, episodes: Sequence[int]) -> None:
    """Every frame of `dataset` against the store: numbers, words and pixels equal."""
    numbers = {layout.ACTION: "actions", layout.STATE: "state", layout.ENVIRONMENT: "environment_state"}
    items = iter(range(len(dataset)))
    for number in episodes:
        own = read_episode(store, number)
        for step in range(len(own)):
            item = dataset[next(items)]
            assert item["task"] == task_of_step(own, step)
            assert item["timestamp"].item() == pytest.approx(step / store.info.fps, abs=1e-6)
            assert (item["frame_index"], item["episode_index"]) == (step, number)
            for key, part in numbers.items():
                values = getattr(own, part)
                assert (key in item) == (values is not None)
                if values is not None:
                    np.testing.assert_array_equal(item[key].numpy().reshape(-1), values[step])
            for camera, frames in own.frames.items():
                np.testing.assert_array_equal(image_of(item, camera), frames[step])
    assert next(items, None) is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"image_cameras": ["wrist"]},
        {"image_cameras": ["top", "wrist"]},
        {"codec": "libsvtav1"},
        {"data_files_size_in_mb": 1e-6, "video_files_size_in_mb": 0.02, "chunks_size": 2},
    ],
)
def test_what_we_write_lerobot_opens(tmp_path: Path, options: dict[str, Any]) -> None:
    episodes = [episode(number, 5 + number, sizes=SIZES, success=number != 2) for number in range(5)]
    root = write_v30(tmp_path / "set", episodes, splits={"train": "0:4", "val": "4:5"}, **options)
    dataset = opened(root)
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps) == (5, 35, FPS)
    store = LeRobotStore(root)
    assert_same_data(dataset, store, range(5))
    success = np.array([bool(dataset[i]["next.success"]) for i in range(35)])
    assert list(success.nonzero()[0]) == [4, 10, 25, 34]
    assert_same_data(opened(root, episodes=[1, 3]), store, [1, 3])


def test_frames_are_those_that_were_given(tmp_path: Path) -> None:
    episodes = [episode(number, 6, sizes=SIZES) for number in range(2)]
    dataset = opened(write_v30(tmp_path / "set", episodes, image_cameras=["wrist"]))
    for index in range(12):
        number, step = divmod(index, 6)
        given = episodes[number].frames
        np.testing.assert_array_equal(image_of(dataset[index], "wrist"), given["wrist"][step])
        errors = np.abs(given["top"].astype(float) - image_of(dataset[index], "top")).mean((1, 2, 3))
        assert errors.argmin() == step


def test_windows_over_time_come_as_lerobot_means_them(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", [episode(number, 6, sizes=SIZES) for number in range(2)])
    times = {"observation.images.top": [-0.2, 0.0, 0.1], "action": [0.0, 0.1]}
    item = opened(root, delta_timestamps=times)[8]  # episode 1, step 2
    store = LeRobotStore(root)
    frames = (item["observation.images.top"].permute(0, 2, 3, 1).numpy() * 255).round()
    np.testing.assert_array_equal(frames, store.frames(1, np.array([0, 2, 3]), "top"))
    actions = store.actions(1)
    assert actions is not None
    np.testing.assert_array_equal(item["action"].numpy(), actions[2:4])


def test_vectors_of_one_dimension(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", [episode(0, 4, sizes=SIZES, action_dim=1, state_dim=1)])
    assert_same_data(opened(root), LeRobotStore(root), [0])


def test_lerobot_reads_our_statistics(tmp_path: Path) -> None:
    root = write_v30(tmp_path / "set", [episode(number, 6, sizes=SIZES) for number in range(3)])
    stats = opened(root).meta.stats
    actions = np.concatenate([LeRobotStore(root).actions(number) for number in range(3)])
    np.testing.assert_allclose(stats["action"]["mean"], actions.mean(0), rtol=1e-5)
    assert stats["observation.images.top"]["mean"].shape == (3, 1, 1)


def lerobot_features(image_cameras: Sequence[str]) -> dict[str, Any]:
    cameras = {
        f"observation.images.{name}": {
            "dtype": "image" if name in image_cameras else "video",
            "shape": (*size, 3),
            "names": ["height", "width", "channel"],
        }
        for name, size in SIZES.items()
    }
    vectors = {"action": 4, "observation.state": 3, "observation.environment_state": 2, "next.reward": 1}
    kinds = {name: {"dtype": "float32", "shape": (dim,), "names": None} for name, dim in vectors.items()}
    flags = {f"next.{name}": {"dtype": "bool", "shape": (1,), "names": None} for name in ("success", "done")}
    return cameras | kinds | flags


def add_to(dataset: Any, episodes: Sequence[Episode], extra: bool = True) -> None:
    for each in episodes:
        for step in range(len(each)):
            last = np.array([step == len(each) - 1])
            frame = {f"observation.images.{name}": frames[step] for name, frames in each.frames.items()}
            assert each.actions is not None
            assert each.state is not None
            frame |= {"action": each.actions[step], "observation.state": each.state[step]}
            frame |= {"task": each.instruction, "next.success": last & bool(each.success)}
            if extra:
                frame |= {"observation.environment_state": np.zeros(2, np.float32), "next.done": last}
                frame |= {"next.reward": np.array([0.5], np.float32)}
            dataset.add_frame(frame)
        dataset.save_episode()
    dataset.finalize()


@pytest.mark.parametrize("vcodec", ["h264", "libsvtav1"])
@pytest.mark.parametrize("image_cameras", [(), ("wrist",), ("top", "wrist")])
def test_what_lerobot_writes_we_read(tmp_path: Path, vcodec: str, image_cameras: Sequence[str]) -> None:
    episodes = [episode(number, 5 + number, sizes=SIZES, success=number != 1) for number in range(4)]
    dataset = lerobot_dataset.LeRobotDataset.create(
        "made/set",
        fps=FPS,
        features=lerobot_features(image_cameras),
        root=tmp_path / "set",
        rgb_encoder=video.RGBEncoderConfig(vcodec=vcodec),
    )
    dataset.meta.update_chunk_settings(data_files_size_in_mb=0.05, video_files_size_in_mb=0.01)
    add_to(dataset, episodes)
    store = LeRobotStore(tmp_path / "set", split="train")
    assert [(info.length, info.instruction, info.success) for info in store.episodes] == [
        (len(each), each.instruction, each.success) for each in episodes
    ]
    assert_same_data(opened(tmp_path / "set"), store, range(4))
    for number, each in enumerate(episodes):
        np.testing.assert_array_equal(store.actions(number), each.actions)
        for camera, frames in each.frames.items():
            found = store.frames(number, np.arange(len(each)), camera)
            if camera in image_cameras:
                np.testing.assert_array_equal(found, frames)
            for step, frame in enumerate(found):
                assert np.abs(frames.astype(float) - frame).mean((1, 2, 3)).argmin() == step


def test_lerobot_records_on_where_we_stopped(tmp_path: Path) -> None:
    first = [episode(number, 5, sizes=SIZES, success=True) for number in range(2)]
    root = write_v30(tmp_path / "set", first, image_cameras=["wrist"])
    more = [episode(number, 6, sizes=SIZES, success=False, instruction="new") for number in (7, 8)]
    add_to(lerobot_dataset.LeRobotDataset.resume("made/set", root=root), more, extra=False)
    store = LeRobotStore(root)
    assert [info.instruction for info in store.episodes] == ["task 0", "task 1", "new", "new"]
    assert [info.success for info in store.episodes] == [True, True, False, False]
    assert_same_data(opened(root), store, range(4))


@pytest.mark.parametrize("image_cameras", [(), ("wrist",)])
def test_lerobots_converter_and_we_read_v21_alike(tmp_path: Path, image_cameras: Sequence[str]) -> None:
    episodes = [episode(number, 5 + number, sizes=SIZES, success=number != 1) for number in range(4)]
    root = write_v21(tmp_path / "made" / "set", episodes, image_cameras=image_cameras)
    before = [read_episode(LeRobotStore(root), number) for number in range(4)]
    convert_dataset_v21_to_v30.convert_dataset("made/set", root=root, push_to_hub=False)
    store = LeRobotStore(root)
    assert store.info.version == (3, 0)
    for number, old in enumerate(before):
        new = read_episode(store, number)
        assert (new.instruction, new.success) == (old.instruction, old.success)
        np.testing.assert_array_equal(new.actions, old.actions)
        for camera, frames in old.frames.items():
            np.testing.assert_array_equal(new.frames[camera], frames)
    assert_same_data(opened(root), store, range(4))
