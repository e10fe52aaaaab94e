from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor, examine
from counterpoint.cli.data.info import info
from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise, split_names
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.zarr_replay import ZarrReplayStore
from tests.data.reading import read_episode

zarr = pytest.importorskip("zarr", reason="needs the extra `zarr`")
ENDS = [5, 7, 12]


def made_arrays(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "img": rng.integers(0, 256, (ENDS[-1], 16, 16, 3)).astype(np.float32),  # as Push-T's
        "action": rng.normal(size=(ENDS[-1], 2)).astype(np.float32),
        "state": rng.normal(size=(ENDS[-1], 5)).astype(np.float32),
        "keypoint": rng.normal(size=(ENDS[-1], 9, 2)).astype(np.float32),
    }


def write_replay(
    path: Path, arrays: dict[str, Array] | None = None, *, ends: list[int] = ENDS, zipped: bool = False, **options: Any
) -> dict[str, Array]:
    """A buffer as Diffusion Policy's `ReplayBuffer.save_to_path` writes it: zarr's second layout, Blosc."""
    arrays = arrays or made_arrays()
    group = zarr.open_group(zarr.storage.ZipStore(path, mode="w") if zipped else str(path), mode="w", zarr_format=2)
    for name, values in arrays.items():
        chunks = (4, *values.shape[1:])
        group.require_group("data").create_array(name, data=values, chunks=chunks, **options)
    group.require_group("meta").create_array("episode_ends", data=np.array(ends, np.int64))
    if zipped:
        group.store.close()
    return arrays


@pytest.mark.parametrize("zipped", [False, True])
def test_episodes_come_back(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / ("pusht.zarr.zip" if zipped else "pusht.zarr")
    arrays = write_replay(path, zipped=zipped)
    store = open_dataset(path)
    assert recognise(path).name == "zarr_replay"
    assert isinstance(store, ZarrReplayStore)
    assert (store.cameras, split_names(path)) == (("img",), ())
    assert [(e.length, e.instruction, e.fps, e.success) for e in store.episodes] == [
        (length, "", 10.0, None) for length in (5, 2, 5)
    ]
    for number, (first, stop) in enumerate(zip([0, *ENDS], ENDS, strict=False)):
        episode = read_episode(store, number)
        np.testing.assert_array_equal(episode.frames["img"], arrays["img"][first:stop].astype(np.uint8))
        np.testing.assert_array_equal(episode.actions, arrays["action"][first:stop])
        np.testing.assert_array_equal(episode.state, arrays["state"][first:stop])
        assert episode.rewards is None
    steps = np.array([4, 0, 4])
    np.testing.assert_array_equal(store.frames(2, steps), arrays["img"][7 + steps].astype(np.uint8))


def test_names_of_other_recordings(tmp_path: Path) -> None:
    """UMI's parts of the state, several cameras, colours first, times, and words in an attribute."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "camera0_rgb": rng.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8),
        "camera_1": rng.integers(0, 256, (12, 3, 16, 16), dtype=np.uint8),
        "depth": rng.random((12, 16, 16), dtype=np.float32),
        "robot0_gripper_width": rng.random((12, 1)),
        "robot0_eef_pos": rng.random((12, 3)),
        "robot0_eef_rot_axis_angle": rng.random((12, 3)),
        "robot0_demo_end_pose": rng.random((12, 6)),  # the future: no state
        "timestamp": 100 + np.arange(12) / 20,
    }
    write_replay(tmp_path / "cup", arrays)
    (tmp_path / "cup" / ".zattrs").write_text(json.dumps({"instruction": "put the cup on the saucer"}))
    store = open_dataset(tmp_path / "cup")
    assert store.cameras == ("camera0_rgb", "camera_1")
    assert [(e.instruction, round(e.fps, 6)) for e in store.episodes] == [("put the cup on the saucer", 20.0)] * 3
    episode = read_episode(store, 1)
    np.testing.assert_array_equal(episode.frames["camera_1"], np.moveaxis(arrays["camera_1"][5:7], 1, -1))
    state = [arrays[name][5:7] for name in ("robot0_eef_pos", "robot0_eef_rot_axis_angle", "robot0_gripper_width")]
    np.testing.assert_array_equal(episode.state, np.concatenate(state, 1).astype(np.float32))
    assert episode.actions is None
    np.testing.assert_allclose(episode.timestamps, [0, 0.05])


def test_depth_grey_alpha_and_other_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (12, 1, 16, 16), dtype=np.uint8)
    alpha = rng.integers(0, 256, (12, 16, 16, 4), dtype=np.uint8)
    arrays: dict[str, Array] = {
        "action": rng.normal(size=(12, 2)),
        "alpha": alpha,
        "deep": rng.integers(0, 1 << 16, (12, 16, 16), dtype=np.uint16),
        "depth_left": rng.random((12, 1, 16, 16), dtype=np.float32),
        "depth_codes": grey,  # of 8 bits, whose unit is not known
        "grey": grey,
        "keypoint": rng.normal(size=(12, 9, 2)).astype(">f4"),
        "marks": rng.integers(0, 9, (12, 5, 2), dtype=np.uint16),  # too small for images
        "timestamp": 100 + np.arange(12) / 20,
    }
    write_replay(tmp_path / "set", arrays)
    store = open_dataset(tmp_path / "set")
    assert isinstance(store, ZarrReplayStore)
    assert (store.cameras, store.depth_cameras) == (("alpha", "grey"), ("deep", "depth_left"))
    assert store.unread == ("alpha.alpha",)
    steps = np.arange(2)
    np.testing.assert_array_equal(store.frames(1, steps, "alpha"), alpha[5:7, ..., :3])
    np.testing.assert_array_equal(store.frames(1, steps, "grey"), np.repeat(grey[5:7, 0, ..., None], 3, -1))
    info(tmp_path / "set")
    told = " ".join(capsys.readouterr().out.split())
    assert "deep 16x16, uint16 millimetres, depth_left 16x16, float32 metres" in told
    with pytest.raises(BadInputError, match=r"--drop alpha\.alpha"):
        convert(tmp_path / "set", tmp_path / "out")
    kept = open_dataset(convert(tmp_path / "set", tmp_path / "out", drop=["alpha.alpha", "depth_codes", "marks"]))
    assert isinstance(kept, LeRobotStore)
    assert {*kept.columns} == {"action", "keypoint", "recorded_timestamp"}
    for name, source in (("action", "action"), ("keypoint", "keypoint"), ("recorded_timestamp", "timestamp")):
        np.testing.assert_array_equal(kept.recorded(1, name).reshape(arrays[source][5:7].shape), arrays[source][5:7])
    np.testing.assert_array_equal(kept.depth(1, steps, "deep"), arrays["deep"][5:7])
    np.testing.assert_array_equal(kept.depth(1, steps, "depth_left"), arrays["depth_left"][5:7, 0])


def changed(**arrays: Array) -> dict[str, Array]:
    return {**made_arrays(), **arrays}


@pytest.mark.parametrize(
    ("arrays", "ends", "words"),
    [
        (changed(img=np.random.default_rng(0).random((12, 16, 16, 3), np.float32)), ENDS, r"\[0, 255\].*by 255"),
        (
            changed(
                img=np.arange(12, dtype=np.float32)[:, None, None, None] / 12 * np.ones((12, 16, 16, 3), np.float32)
            ),
            ENDS,
            r"\[0, 255\].*by 255",  # although the first image is black
        ),
        (changed(img=np.full((12, 16, 16, 3), 300, np.float32)), ENDS, "out of range"),
        (changed(img=np.full((12, 16, 16, 3), np.nan, np.float32)), ENDS, "out of range"),
        (changed(action=np.full((12, 2), np.nan, np.float32)), ENDS, "not finite at step 0"),
        (changed(action=np.ones((11, 2), np.float32)), ENDS, "11 steps; expected 12"),
        (made_arrays(), [5, 5, 12], "ascending"),
        (made_arrays(), [0, 5, 12], "ascending"),
        (made_arrays(), [5, 7, 13], "13"),
        (made_arrays(), [-3, 12], "ascending"),
        (changed(timestamp=np.array([0.0] * 12) + 1), ENDS, "times that do not ascend"),
    ],
)
def test_bad_buffers(tmp_path: Path, arrays: dict[str, Array], ends: list[int], words: str) -> None:
    write_replay(tmp_path / "a.zarr", arrays, ends=ends)
    with pytest.raises(BadInputError, match=words):
        read_episode(open_dataset(tmp_path / "a.zarr"), 0)


@pytest.mark.parametrize("zipped", [False, True])
def test_chunks_that_are_not_stored_hold_the_fill_value(
    tmp_path: Path, zipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path, arrays = tmp_path / ("a.zarr.zip" if zipped else "a.zarr"), made_arrays()
    arrays["img"][4:8] = 0
    arrays["action"][:8] = 0
    write_replay(path, arrays, zipped=zipped)
    store = open_dataset(path)
    assert isinstance(store, ZarrReplayStore)
    assert store.facts == {"chunks not stored": "data/img 1 of 3, read as 0.0; data/action 2 of 3, read as 0.0"}
    for number, (first, stop) in enumerate(zip([0, *ENDS], ENDS, strict=False)):
        episode = read_episode(store, number)
        np.testing.assert_array_equal(episode.frames["img"], arrays["img"][first:stop].astype(np.uint8))
        np.testing.assert_array_equal(episode.actions, arrays["action"][first:stop])
    info(path)
    assert "data/img 1 of 3, read as 0.0" in " ".join(capsys.readouterr().out.split())


def test_a_fill_value_other_than_zero_is_read(tmp_path: Path) -> None:
    arrays = made_arrays()
    arrays["state"][4:] = 7
    write_replay(tmp_path / "a.zarr", arrays, fill_value=7)
    np.testing.assert_array_equal(read_episode(open_dataset(tmp_path / "a.zarr"), 2).state, np.full((5, 5), 7))


def test_missing_chunks_are_refused_without_a_fill_value_or_where_no_image_is_left(tmp_path: Path) -> None:
    write_replay(tmp_path / "a.zarr")
    about = tmp_path / "a.zarr" / "data" / "action" / ".zarray"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"fill_value": None}))
    (about.parent / "1.0").unlink()
    with pytest.raises(BadInputError, match=r"data/action: found 2 chunks and no fill value"):
        open_dataset(tmp_path / "a.zarr")
    write_replay(tmp_path / "b.zarr", made_arrays() | {"img": np.zeros((12, 16, 16, 3), np.uint8)})
    with pytest.raises(BadInputError, match=r"data/img: found no chunk at all"):
        open_dataset(tmp_path / "b.zarr")


def test_a_chunk_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    write_replay(tmp_path / "a.zarr")
    chunk = tmp_path / "a.zarr" / "data" / "action" / "1.0"
    chunk.write_bytes(chunk.read_bytes()[:-4])
    with pytest.raises(BadInputError, match=r"data/action, chunk 1\.0: found \d+ bytes"):
        open_dataset(tmp_path / "a.zarr")


def test_an_array_without_its_description_is_refused(tmp_path: Path) -> None:
    write_replay(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "data" / "img" / ".zarray").unlink()
    with pytest.raises(BadInputError, match=r"data: found img without \.zarray"):
        open_dataset(tmp_path / "a.zarr")
    write_replay(tmp_path / "b.zarr", {"action": made_arrays()["action"]})
    with pytest.raises(BadInputError, match="images or a state"):
        open_dataset(tmp_path / "b.zarr")


def test_a_damaged_chunk_names_the_episode(tmp_path: Path) -> None:
    write_replay(tmp_path / "a.zarr")
    chunk = tmp_path / "a.zarr" / "data" / "img" / "2.0.0.0"
    data = chunk.read_bytes()
    chunk.write_bytes(b"\x63" + data[1:])  # another version of Blosc
    store = open_dataset(tmp_path / "a.zarr")
    store.frames(0, np.arange(5))
    with pytest.raises(BadInputError, match=r"steps 7 to 11, img"):
        store.frames(2, np.arange(5))


def test_a_codec_that_runs_code_is_refused(tmp_path: Path) -> None:
    write_replay(tmp_path / "a.zarr")
    path = tmp_path / "a.zarr" / "data" / "action" / ".zarray"
    about = json.loads(path.read_text())
    for change in ({"filters": [{"id": "pickle"}]}, {"compressor": {"id": "pickle"}}, {"dtype": "|O"}):
        path.write_text(json.dumps({**about, **change}))
        with pytest.raises(BadInputError, match=r"a\.zarr"):
            read_episode(open_dataset(tmp_path / "a.zarr"), 0)


def test_low_dimensional_buffers_have_no_camera(tmp_path: Path) -> None:
    arrays = made_arrays()
    write_replay(tmp_path / "a.zarr", {"agent_pos": arrays["state"], "action": arrays["action"]})
    store = open_dataset(tmp_path / "a.zarr")
    assert store.cameras == ()
    np.testing.assert_array_equal(read_episode(store, 1).state, arrays["state"][5:7])


def test_a_store_travels_and_changes_are_seen(tmp_path: Path) -> None:
    write_replay(tmp_path / "a.zarr")
    store = open_dataset(tmp_path / "a.zarr")
    store.frames(0, np.array([0]))
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.frames(2, np.array([1])), store.frames(2, np.array([1])))
    before = store.fingerprint
    assert again.fingerprint == before
    shutil.rmtree(tmp_path / "a.zarr")
    write_replay(tmp_path / "a.zarr", made_arrays(1))
    assert open_dataset(tmp_path / "a.zarr").fingerprint != before


@pytest.mark.slow
def test_info_doctor_and_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.zarr"
    write_replay(path)
    info(path)
    told = " ".join(capsys.readouterr().out.split())
    for fact in ("Diffusion Policy replay buffer", "3, of 2 to 5", "10 (assumed: the data do not say)", "img 16x16"):
        assert fact in told
    assert doctor(path) == 0
    assert examine(path) == []
    written = open_dataset(convert(path, tmp_path / "lerobot"))
    np.testing.assert_array_equal(written.actions(2), open_dataset(path).actions(2))


def test_images_of_umi_are_unpacked(tmp_path: Path) -> None:
    codecs = pytest.importorskip("imagecodecs.numcodecs", reason="imagecodecs is not installed")
    arrays = changed(camera0_rgb=np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8))
    write_replay(tmp_path / "a.zarr", arrays)
    shutil.rmtree(tmp_path / "a.zarr" / "data" / "camera0_rgb")
    codecs.register_codecs(verbose=False)
    data = zarr.open_group(str(tmp_path / "a.zarr"), mode="a")["data"]
    packing = codecs.Jpegxl(level=101, numthreads=1)  # without loss
    written = data.create_array(
        "camera0_rgb", shape=(12, 16, 16, 3), dtype="uint8", chunks=(1, 16, 16, 3), compressors=packing
    )
    written[:] = arrays["camera0_rgb"]
    store = open_dataset(tmp_path / "a.zarr")
    np.testing.assert_array_equal(store.frames(1, np.arange(2), "camera0_rgb"), arrays["camera0_rgb"][5:7])
