"""Depth cameras, the names of other programs, and columns that are no part of an episode."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import _depth, examine
from counterpoint.cli.data.info import info
from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.tables import as_column, as_depth, as_png
from tests.formats.lerobot.made import write_rows
from tests.formats.made import smooth_frames

LENGTHS = (3, 4)
T = sum(LENGTHS)
STEPS = np.arange(LENGTHS[1])
RNG = np.random.default_rng(0)
FRAMES = smooth_frames(T, 12, 16)
MILLIMETRES = RNG.integers(0, 1 << 16, (T, 12, 16), dtype=np.uint16)
METRES = RNG.random((T, 12, 16), dtype=np.float32)
STATE = RNG.normal(size=(T, 2)).astype(np.float32)

Columns = dict[str, tuple[Any, Mapping[str, Any]]]


def vector(values: Array, names: object = None, **notes: object) -> tuple[Any, Mapping[str, Any]]:
    entry = {"dtype": values.dtype.name, "shape": list(values.shape[1:]), "names": names, **notes}
    return as_column(values), entry


def image(values: Array, **notes: object) -> tuple[Any, Mapping[str, Any]]:
    column = as_png(values) if values.dtype == np.uint8 and values.ndim == 4 else as_depth(values)
    shape = [*values.shape[1:3], values.shape[3] if values.ndim == 4 else 1]
    return column, {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"], **notes}


def write(root: Path, **columns: tuple[Any, Mapping[str, Any]]) -> Path:
    own: Columns = {"observation.images.top": image(FRAMES), "observation.state": vector(STATE, ["x", "y"])}
    return write_rows(root, LENGTHS, own | columns)


def lerobot(path: Path) -> LeRobotStore:
    store = open_dataset(path)
    assert isinstance(store, LeRobotStore)
    return store


MARKS: dict[str, dict[str, Any]] = {
    "its bits alone": {},
    "LeRobot 0.6": {"info": {"is_depth_map": True}},
    "the older mark": {"info": {"video.is_depth_map": True}},
    "beside another note": {"info": {"has_audio": False}, "video_info": {"video.is_depth_map": True}},
}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("depth", [MILLIMETRES, METRES], ids=["millimetres", "metres"])
def test_depth_is_no_colour_camera_and_is_kept(tmp_path: Path, depth: Array, mark: str) -> None:
    source = write(tmp_path / "set", **{"observation.images.deep": image(depth, **MARKS[mark])})
    for path in (source, convert(source, tmp_path / "out")):
        store = lerobot(path)
        assert (store.cameras, store.depth_cameras, store.unread) == (("top",), ("deep",), ())
        found = store.depth(1, STEPS)
        assert found.dtype == depth.dtype
        np.testing.assert_array_equal(found, depth[3:])
        np.testing.assert_array_equal(store.depth(0, np.array([2, 0, 2]), "deep"), depth[[2, 0, 2]])


@pytest.mark.parametrize("as_struct", [True, False])
def test_depth_named_by_its_path_is_read(tmp_path: Path, as_struct: bool) -> None:
    column, entry = image(MILLIMETRES)
    source = write(tmp_path / "set", **{"observation.images.deep": (column, entry)})
    (source / "images").mkdir()
    for number, content in enumerate(column.to_pylist()):
        (source / f"images/{number}.png").write_bytes(content["bytes"])
    for number, (first, stop) in enumerate(((0, 3), (3, T))):
        paths = [f"images/{step}.png" for step in range(first, stop)]
        path = source / f"data/{number}.parquet"
        table = pq.read_table(path)
        values = pa.array([{"bytes": None, "path": name} for name in paths] if as_struct else paths)
        at = table.column_names.index("observation.images.deep")
        pq.write_table(table.set_column(at, "observation.images.deep", values), path)
    store = lerobot(source)
    assert (store.cameras, store.depth_cameras) == (("top",), ("deep",))
    np.testing.assert_array_equal(store.depth(1, STEPS), MILLIMETRES[3:])


def test_depth_is_shown_and_dropped_and_resized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "set", **{"observation.images.deep": image(MILLIMETRES)})
    info(source)
    assert "deep 16x12, uint16 millimetres" in capsys.readouterr().out
    assert lerobot(convert(source, tmp_path / "without", drop=("deep",))).depth_cameras == ()
    small = lerobot(convert(source, tmp_path / "small", size=4)).depth(1, STEPS)
    np.testing.assert_array_equal(small, MILLIMETRES[3:, [1, 4, 7, 10]][:, :, [2, 6, 10, 14]])


def test_a_depth_camera_is_refused_where_colours_are_wanted(tmp_path: Path) -> None:
    source = write(tmp_path / "set", **{"observation.images.deep": image(MILLIMETRES)})
    with pytest.raises(BadInputError, match=r"'deep', a depth camera; expected one of the colour cameras: top"):
        open_dataset(source, camera="deep")
    with pytest.raises(BadInputError, match="'deep', a depth camera"):
        open_dataset(source).frames(0, STEPS, "deep")
    with pytest.raises(BadInputError, match="found 'top'; expected one of deep"):
        open_dataset(source).depth(0, STEPS, "top")


def encoded(frame: Array, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(frame).save(content, kind, **options)
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "note", "told"),
    [
        (encoded(MILLIMETRES[0], "png")[:-20], {}, "expected a whole PNG or TIFF"),
        (encoded(METRES[0], "tiff", compression="tiff_lzw"), {}, "a TIFF packed by tiff_lzw; expected a plain one"),
        (encoded(FRAMES[0], "tiff"), {}, "mode RGB; expected depth in 16-bit millimetres or float32 metres"),
        (encoded(MILLIMETRES[0], "png"), {"depth_unit": "m"}, "uint16 images in the unit 'm'"),
    ],
)
def test_damaged_or_other_depth_is_refused(tmp_path: Path, content: bytes, note: dict[str, Any], told: str) -> None:
    rows = pa.array([{"bytes": content, "path": "a"}] * T, as_png(FRAMES[:1]).type)
    entry = {"dtype": "image", "shape": [12, 16, 1], "info": {"is_depth_map": True, **note}}
    source = write(tmp_path / "set", **{"observation.images.deep": (rows, entry)})
    with pytest.raises(BadInputError, match=told):
        open_dataset(source).depth(0, STEPS[:1])


def test_depth_of_an_unknown_unit_is_named_and_never_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight bits, marked so or of one channel and named so; and a video, whose codes are not read."""
    marked = image(FRAMES, info={"is_depth_map": True})
    grey = (as_png(FRAMES[..., 0]), {"dtype": "image", "shape": [12, 16, 1], "names": None})
    video = (pa.array([0.0] * T), {"dtype": "video", "shape": [12, 16, 1], "info": {"is_depth_map": True}})
    dimensions = (grey[0], {**grey[1], "names": ["height", "width", "depth"]})
    named = (("a", marked), ("b_depth", grey), ("c", video), ("d", dimensions))
    keys = {f"observation.images.{name}": one for name, one in named}
    source = write(tmp_path / "set", **keys)
    store = lerobot(source)
    assert (store.cameras, store.depth_cameras, store.unread) == (("top",), (), ("a", "b_depth", "c", "d"))
    info(source)
    assert "a, b_depth, c, d" in capsys.readouterr().out
    with pytest.raises(BadInputError, match=r"found a, b_depth, c, d, which cannot be kept.*--drop a --drop b_depth"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert lerobot(convert(source, tmp_path / "out", drop=("a", "b_depth", "c", "d"))).cameras == ("top",)


@pytest.mark.slow
def test_doctor_examines_depth_and_openpi_names(tmp_path: Path) -> None:
    entries = as_depth(MILLIMETRES).to_pylist()
    source = write_rows(tmp_path / "set", LENGTHS, OPENPI | {"depth": image(MILLIMETRES)})
    assert examine(source) == []
    entries[5]["bytes"] = entries[5]["bytes"][:-20]
    damaged = {"depth": (pa.array(entries, as_depth(MILLIMETRES).type), image(MILLIMETRES)[1])}
    wrong = {"actions": vector(np.where(np.arange(T)[:, None] == 4, np.nan, STATE))}
    found = examine(write_rows(tmp_path / "damaged", LENGTHS, OPENPI | damaged | wrong))
    assert [finding.found[:15] for finding in found] == ["nan in 'actions", "damaged content"]


def test_doctor_finds_metres_that_are_millimetres_and_sizes_that_are_not_as_told(tmp_path: Path) -> None:
    deep = image((MILLIMETRES + 1).astype(np.float32))
    source = write(tmp_path / "set", **{"observation.images.deep": deep})
    with pytest.raises(BadInputError, match=r"in float32; expected metres, of less than 100.*uint16"):
        _depth(source, lerobot(source), 1, STEPS, "deep")
    assert list(lerobot(source).findings()) == []
    content, entry = image(FRAMES)
    source = write(tmp_path / "other", **{"observation.images.top": (content, {**entry, "shape": [480, 640, 3]})})
    (finding,) = lerobot(source).findings()
    assert finding.expected == "12 x 16, as its images have"


def test_colours_named_depth_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "set", **{"observation.images.rainbow_depth": image(FRAMES)})
    assert lerobot(source).cameras == ("top", "rainbow_depth")
    info(source)
    assert "colour images named depth" in capsys.readouterr().out


def test_colours_of_16_bits_and_alpha(tmp_path: Path) -> None:
    alpha = np.concatenate([FRAMES, FRAMES[..., :1]], axis=-1)
    assert lerobot(write(tmp_path / "grey", **{"observation.images.a": image(alpha[..., 2:])})).unread == ("a.alpha",)
    source = write(tmp_path / "set", **{"observation.images.clear": image(alpha)})
    np.testing.assert_array_equal(lerobot(source).frames(1, STEPS, "clear"), FRAMES[3:])
    with pytest.raises(BadInputError, match=r"--drop clear\.alpha"):
        convert(source, tmp_path / "out")
    out = lerobot(convert(source, tmp_path / "out", drop=("clear.alpha",)))
    np.testing.assert_array_equal(out.frames(1, STEPS, "clear"), FRAMES[3:])


OPENPI: Columns = {
    "image": image(FRAMES),
    "wrist_image": image(FRAMES[::-1]),
    "actions": vector(STATE * 2, ["shoulder", "elbow"]),
    "state": vector(STATE + 1, {"motors": ["shoulder", "elbow"]}),
}


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (("observation.images.side", "side"), ["images.side", "side", "top"]),
        (("observation.images.side", "observation.side"), ["images.side", "observation.side", "top"]),
    ],
)
def test_cameras_whose_short_names_are_the_same_are_all_kept(
    keys: tuple[str, str], names: list[str], tmp_path: Path
) -> None:
    source = write(tmp_path / "set", **{key: image(np.roll(FRAMES, number, 1)) for number, key in enumerate(keys)})
    for path in (source, convert(source, tmp_path / "out")):
        store = lerobot(path)
        names = names if path == source else ["images.side", "side", "top"]  # they are unique in what is written
        assert sorted(store.cameras) == names
        for number, name in enumerate(names[:2]):
            np.testing.assert_array_equal(store.frames(1, STEPS, name), np.roll(FRAMES, number, 1)[LENGTHS[0] :])
    key = keys[1]
    np.testing.assert_array_equal(lerobot(source).frames(1, STEPS, key), np.roll(FRAMES, 1, 1)[LENGTHS[0] :])


def test_openpi_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_rows(tmp_path / "set", LENGTHS, OPENPI)
    for path in (source, convert(source, tmp_path / "out")):
        store = lerobot(path)
        assert store.cameras == ("image", "wrist_image")
        np.testing.assert_array_equal(store.actions(1), STATE[3:] * 2)
        np.testing.assert_array_equal(store.state(1), STATE[3:] + 1)
    features = json.loads((tmp_path / "out/meta/info.json").read_text())["features"]
    assert features["action"]["names"] == ["shoulder", "elbow"]
    assert features["observation.state"]["names"] == {"motors": ["shoulder", "elbow"]}
    assert not {"actions", "state"} & features.keys()
    capsys.readouterr()
    info(source)
    assert "actions from actions, state from state" in capsys.readouterr().out


def test_joints_and_gripper_are_one_state_and_stay_columns(tmp_path: Path) -> None:
    columns = {"joint_position": vector(STATE), "gripper_position": vector(STATE[:, :1])}
    source = write_rows(tmp_path / "set", LENGTHS, {"image": image(FRAMES), **columns})
    for path in (source, convert(source, tmp_path / "out")):
        store = lerobot(path)
        np.testing.assert_array_equal(store.state(0), np.concatenate([STATE, STATE[:, :1]], 1)[:3])
        np.testing.assert_array_equal(store.recorded(0, "joint_position"), STATE[:3])


def test_other_names_are_used_only_for_vectors_where_lerobots_own_are_missing(tmp_path: Path) -> None:
    text = (pa.array(["on"] * T), {"dtype": "string", "shape": [1], "names": None})
    store = lerobot(write(tmp_path / "set", state=vector(STATE + 1), actions=text))
    np.testing.assert_array_equal(store.state(0), STATE[:3])
    assert store.actions(0) is None
    assert set(store.columns) == {"observation.state", "state", "actions"}


def test_columns_that_are_no_part_of_an_episode_are_kept_or_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = pa.array([[{"role": "user"}]] * T)
    source = write(
        tmp_path / "set",
        force=vector(STATE[:, :1].astype(np.float64), ["newton"], unit="N"),
        note=(pa.array(["a", None, "c", "d", "e", "f", ""]), {"dtype": "string", "shape": [1], "names": None}),
        talk=(lists, {"dtype": "language", "shape": [1], "names": None}),
    )
    info(source)
    told = capsys.readouterr().out
    assert "force float64, note string" in told
    assert "talk" in told
    with pytest.raises(BadInputError, match=r"found talk, which cannot be kept.*--drop talk"):
        convert(source, tmp_path / "out")
    with pytest.raises(BadInputError, match=r"--drop: found 'tlak'.*did you mean 'talk'"):
        convert(source, tmp_path / "out", drop=("tlak",))
    out = lerobot(convert(source, tmp_path / "out", drop=("talk",)))
    np.testing.assert_array_equal(out.recorded(0, "force"), STATE[:3, :1].astype(np.float64))
    assert out.recorded(0, "note").tolist() == [["a"], [None], ["c"]]
    assert out.columns["force"].notes == {"names": ["newton"], "unit": "N"}
    assert "force" not in lerobot(convert(source, tmp_path / "less", drop=("talk", "force"))).columns


def test_a_column_that_contradicts_its_feature_is_refused(tmp_path: Path) -> None:
    wrong = (as_column(STATE), {"dtype": "float32", "shape": [3], "names": None})
    gaps = (pa.array([1, None, 3, 4, 5, 6, 7]), {"dtype": "int64", "shape": [1], "names": None})
    store = lerobot(write(tmp_path / "set", wrong=wrong, gaps=gaps))
    for name, told in (("wrong", r"another shape; expected \[3\]"), ("gaps", "1 missing values in 'gaps'")):
        with pytest.raises(BadInputError, match=rf"{told}.*--drop {name}"):
            store.recorded(0, name)


def test_a_column_that_the_features_do_not_name_is_kept_or_dropped_by_name(tmp_path: Path) -> None:
    source = write(tmp_path / "set", force=vector(STATE))
    about = json.loads((source / "meta/info.json").read_text())
    del about["features"]["force"]
    (source / "meta/info.json").write_text(json.dumps(about))
    assert lerobot(source).unread == ("force",)
    with pytest.raises(BadInputError, match=r"found force, which cannot be kept.*--drop force"):
        convert(source, tmp_path / "out")


DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "string")


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """Some columns of every kind, with values that have no equal under rounding: NaN, infinities, large integers."""
    found: Columns = {}
    for number in range(draw(st.integers(0, 4))):
        dtype, rng = draw(st.sampled_from(DTYPES)), np.random.default_rng(draw(st.integers(0, 99)))
        shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
        names = draw(st.sampled_from([None, ["a"], {"axes": ["x", "y"]}]))
        if dtype == "string":
            texts = [draw(st.text(max_size=4)) for _ in range(T)]
            found[f"text.{number}"] = (pa.array(texts), {"dtype": "string", "shape": [1], "names": names})
            continue
        values = rng.normal(size=(T, *shape)) if "float" in dtype else rng.integers(-(1 << 62), 1 << 62, (T, *shape))
        if "float" in dtype:
            values.flat[:4] = [np.nan, np.inf, -np.inf, -0.0]
        kept = (values % 2 if dtype == "bool" else values).astype(dtype)
        found[f"observation.extra.{number}"] = vector(kept, names, unit=f"unit {number}")
    for name in draw(st.sets(st.sampled_from(["top", "side", "wrist"]), min_size=1)):
        found[f"observation.images.{name}"] = image(RNG.integers(0, 256, (T, 12, 16, 3), dtype=np.uint8))
    deep = draw(st.sampled_from([None, MILLIMETRES, METRES]))
    return found | ({} if deep is None else {"observation.images.deep": image(deep)})


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(columns())
def test_a_round_trip_keeps_every_bit(given_columns: Columns) -> None:
    with tempfile.TemporaryDirectory() as folder:
        own: Columns = {"action": vector(STATE.astype(np.float64), ["x", "y"]), "next.done": vector(STATE[:, :1] > 0)}
        source = write_rows(Path(folder) / "set", LENGTHS, own | given_columns)
        before, after = lerobot(source), lerobot(convert(source, Path(folder) / "out"))
        assert after.columns == before.columns
        assert {*after.cameras} == {*before.cameras}
        assert after.depth_cameras == before.depth_cameras
        assert before.unread == after.unread == ()
        for number, length in enumerate(LENGTHS):
            for name in before.columns:
                old, new = before.recorded(number, name), after.recorded(number, name)
                assert (old.dtype, old.shape) == (new.dtype, new.shape)
                assert old.tolist() == new.tolist() if old.dtype == object else old.tobytes() == new.tobytes()
            for camera in before.cameras:
                steps = np.arange(length)
                np.testing.assert_array_equal(before.frames(number, steps, camera), after.frames(number, steps, camera))
            for camera in before.depth_cameras:
                assert before.depth(number, steps, camera).tobytes() == after.depth(number, steps, camera).tobytes()
