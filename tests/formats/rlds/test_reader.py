from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor, examine
from counterpoint.cli.data.info import info
from counterpoint.data.cache import cached
from counterpoint.errors import BadInputError
from counterpoint.evaluation.held_out import open_training, open_unseen
from counterpoint.formats import open_dataset, recognise, split_names, validation_split
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.rlds.reader import RldsStore
from counterpoint.training.clips import DataConfig
from counterpoint.training.cloning import DemonstrationsConfig, open_demonstrations
from tests.data.reading import read_episode
from tests.formats.made import real_data
from tests.formats.rlds.made import (
    FEATURES,
    Made,
    Node,
    Value,
    dataset,
    image,
    made_episode,
    nested,
    picture,
    tensor,
    text,
    write_rlds,
)


def test_episodes_come_back(tmp_path: Path) -> None:
    episodes = [made_episode(4, 0), made_episode(6, 1), made_episode(3, 2, "open the drawer")]
    root = write_rlds(tmp_path / "toys" / "1.0.0", {"train": [episodes[:2], episodes[2:]]})
    store = open_dataset(root)
    assert recognise(root).name == "rlds"
    assert store.cameras == ("image_0", "wrist_image")  # an empty slot and depth are no cameras; hands come last
    assert isinstance(store, RldsStore)
    assert store.empty == ("image_1",)
    assert [(e.length, e.instruction, e.success) for e in store.episodes] == [
        (len(episode.frames), episode.instruction, True) for episode in episodes
    ]
    for number, made in enumerate(episodes):
        episode = read_episode(store, number)
        np.testing.assert_array_equal(episode.frames["image_0"], made.frames)
        np.testing.assert_array_equal(episode.frames["wrist_image"], 255 - made.frames)
        np.testing.assert_array_equal(episode.actions, made.actions)
        np.testing.assert_array_equal(episode.state, made.state)  # without the embedding of language
        np.testing.assert_array_equal(episode.rewards, [0.0] * (len(made.frames) - 1) + [1.0])
    np.testing.assert_array_equal(store.frames(1, np.array([5, 0, 5])), episodes[1].frames[[5, 0, 5]])


def test_folders_above_a_version_will_do(tmp_path: Path) -> None:
    root = write_rlds(tmp_path / "toys" / "1.0.0")
    assert [len(open_dataset(path).episodes) for path in (root, root.parent, tmp_path)] == [3, 3, 3]
    write_rlds(tmp_path / "toys" / "2.0.0")
    with pytest.raises(BadInputError, match=r"1\.0\.0, .*2\.0\.0.*name one"):
        open_dataset(tmp_path)


@pytest.mark.slow
def test_splits_that_are_there_and_those_that_are_not(tmp_path: Path) -> None:
    first, second = [made_episode(4, 0)], [made_episode(5, 1)]
    root = write_rlds(tmp_path / "toys", {"train": [first], "test": [second]}, absent=["val"])
    assert split_names(root) == ("train", "test")
    assert validation_split(root, "val") is None
    assert [open_dataset(root, split=name).lengths.tolist() for name in ("train", "test", None)] == [[4], [5], [4, 5]]
    prints = {open_dataset(root, split=name).fingerprint for name in ("train", "test", None)}
    assert len(prints) == 3
    with pytest.raises(BadInputError, match=r"split val: found no file toys-val.tfrecord-00000-of-00001"):
        open_dataset(root, split="val")
    with pytest.raises(BadInputError, match=r"'dev'.*train, test, val"):
        open_dataset(root, split="dev")
    (finding,) = examine(root)
    assert "split val" in finding.where


@pytest.mark.slow
def test_a_missing_shard_and_a_wrong_length_are_found(tmp_path: Path) -> None:
    root = write_rlds(tmp_path / "toys", absent=[])
    assert examine(root) == []
    names = json.loads((root / "dataset_info.json").read_text())
    names["splits"][0]["shardLengths"] = ["2", "2"]
    (root / "dataset_info.json").write_text(json.dumps(names))
    with pytest.raises(BadInputError, match=r"00001-of-00002: found 1 records; expected 2"):
        open_dataset(root)
    (root / "toys-train.tfrecord-00001-of-00002").unlink()
    with pytest.raises(BadInputError, match=r"00001-of-00002: found no file"):
        open_dataset(root)
    found: list[BadInputError] = []
    assert len(open_dataset(root, on_bad_row=found.append).episodes) == 2
    assert len(found) == 1


def test_damage_names_shard_and_record(tmp_path: Path) -> None:
    root = write_rlds(tmp_path / "toys")
    path = root / "toys-train.tfrecord-00000-of-00002"
    data = bytearray(path.read_bytes())
    data[-20] ^= 255  # in the last record's images
    path.write_bytes(data)
    store = open_dataset(root)
    store.frames(0, np.array([0]))
    with pytest.raises(BadInputError, match=r"00000-of-00002, record 1: found data that fail their checksum"):
        store.frames(1, np.array([0]))
    with pytest.raises(BadInputError, match="record 1"):
        store.actions(1)


def odd(**changes: object) -> Made:
    episode = made_episode(3, 0)
    for name, value in changes.items():
        key = name.replace("__", "/")
        if value is None:
            del episode.features[key]
        else:
            episode.features[key] = value  # type: ignore[assignment]
    return episode


@pytest.mark.parametrize(
    ("episode", "words"),
    [
        (odd(steps__action=np.zeros((3, 6), np.float32)), "actions"),
        (odd(steps__action=np.full((3, 7), np.nan, np.float32)), "not finite at step 0"),
        (odd(steps__action=None), "no feature steps/action"),
        (odd(steps__observation__image_0=made_episode(2, 0).features["steps/observation/image_0"]), "2 images"),
        (odd(steps__observation__image_0=[b"GIF89a"] * 3), "damaged content"),
        (odd(steps__language_instruction=[b"\xff\xfe"] * 3), "damaged content"),
        (odd(steps__is_first=np.zeros(0, bool), steps__is_last=None), "at least one"),
    ],
)
def test_episodes_that_are_not_what_the_features_say(tmp_path: Path, episode: Made, words: str) -> None:
    root = write_rlds(tmp_path / "toys", {"train": [[episode]]})
    with pytest.raises(BadInputError, match=f"record 0.*{words}"):
        read_episode(open_dataset(root), 0)


def test_parts_of_an_action_words_in_the_observation_and_no_reward(tmp_path: Path) -> None:
    steps = nested(
        action=nested(world=tensor("float32", 3), grip=tensor("float32", 1), stop=tensor("int32", 2)),
        is_first=tensor("bool"),
        observation=nested(
            image=image(),
            natural_language_instruction=text(),
            natural_language_embedding=tensor("float32", 8),
            pose=tensor("float32", 2),
            height=tensor("float32"),
            number=tensor("int32"),
        ),
    )
    episode = made_episode(3, 0)
    numbers = np.arange(3, dtype=np.float32)[:, None]
    episode.features = {
        "steps/is_first": np.array([True, False, False]),
        "steps/action/world": numbers * [1, 10, 100],
        "steps/action/grip": -numbers,
        "steps/action/stop": np.array([[0, 1], [1, 0], [2, 300]]),
        "steps/observation/image": episode.features["steps/observation/image_0"],
        "steps/observation/natural_language_instruction": [b"", b" wipe the table ", b"wipe"],
        "steps/observation/natural_language_embedding": np.zeros((3, 8), np.float32),
        "steps/observation/pose": numbers * [1, 2],
        "steps/observation/height": numbers + 7,
        "steps/observation/number": np.arange(3),
        "success": np.array([0]),
    }
    root = write_rlds(tmp_path / "toys", {"train": [[episode]]}, features=nested(steps=dataset(steps)))
    store = open_dataset(root)
    assert (store.episodes[0].instruction, store.episodes[0].success) == ("wipe the table", None)
    np.testing.assert_array_equal(
        store.actions(0), [[0, 0, 1, 0, 0, 0], [-1, 1, 0, 1, 10, 100], [-2, 2, 300, 2, 20, 200]]
    )
    np.testing.assert_array_equal(store.state(0), [[7, 0, 0], [8, 1, 2], [9, 2, 4]])
    assert store.rewards(0) is None
    told = nested(steps=dataset(steps), success=tensor("bool"))
    root = write_rlds(tmp_path / "told", {"train": [[episode]]}, features=told)
    assert open_dataset(root).episodes[0].success is False


def test_success_is_known_where_some_reward_reaches_one(tmp_path: Path) -> None:
    nothing = np.zeros(3, np.float32)
    failed = odd(steps__reward=nothing)
    mixed = write_rlds(tmp_path / "mixed", {"train": [[made_episode(3, 1), failed]]})
    unknown = write_rlds(tmp_path / "unknown", {"train": [[failed]]})
    assert [e.success for root in (mixed, unknown) for e in open_dataset(root).episodes] == [True, False, None]


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("features.json", json.dumps(nested(image=image())), "`steps`"),
        ("features.json", "{}", "`steps`"),
        ("features.json", "[1", "damaged content"),
        ("dataset_info.json", json.dumps({"name": "toys", "fileFormat": "riegeli", "splits": []}), "tfrecord"),
        ("dataset_info.json", json.dumps({"name": "toys", "splits": []}), "no episode"),
        (
            "dataset_info.json",
            json.dumps({"name": "toys", "splits": [{"name": "a", "shardLengths": []}]}),
            "no episode",
        ),
        (
            "dataset_info.json",
            json.dumps({"name": "../../x", "splits": [{"name": "train", "shardLengths": ["1"]}]}),
            "a file in this folder",
        ),
        ("dataset_info.json", json.dumps({"name": "toys", "splits": [{"name": "train"}]}), "shardLengths"),
    ],
)
def test_bad_metadata(tmp_path: Path, file: str, content: str, words: str) -> None:
    root = write_rlds(tmp_path / "toys")
    (root / file).write_text(content)
    with pytest.raises(BadInputError, match=words):
        open_dataset(root)


def test_a_store_travels_to_other_processes(tmp_path: Path) -> None:
    store = open_dataset(write_rlds(tmp_path / "toys"))
    again = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(again.frames(1, np.array([2])), store.frames(1, np.array([2])))
    assert again.fingerprint == store.fingerprint


def test_info_doctor_and_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    root = write_rlds(tmp_path / "toys")
    info(root)
    told = " ".join(capsys.readouterr().out.split())
    for fact in ("RLDS", "3, of 3 to 6 frames", "5 (assumed: the data do not say)", "image_0 16x16, wrist_image 16x16"):
        assert fact in told
    for fact in ("7 dimensions", "train 0:3", "100% of 3 episodes", "split val", "image_1 (empty)", "open the drawer"):
        assert fact in told
    assert doctor(root) == 2
    written = open_dataset(convert(root, tmp_path / "lerobot", drop=["observation.depth"]))
    np.testing.assert_array_equal(written.actions(1), open_dataset(root).actions(1))
    assert [e.instruction for e in written.episodes] == [e.instruction for e in open_dataset(root).episodes]


def test_depth_grey_images_and_further_columns(tmp_path: Path) -> None:
    made = made_episode(4, 0)
    rng = np.random.default_rng(0)
    depth = rng.integers(0, 1 << 16, (4, 16, 16), dtype=np.uint16)
    more: dict[str, tuple[Node, Value]] = {
        "steps/index": (tensor("int32"), np.arange(4)),
        "steps/observation/cloud": (tensor("float32", 2, 3), rng.normal(size=(4, 2, 3)).astype(np.float32)),
        "steps/observation/deep": (image(channels=1, dtype="uint16"), [picture(frame) for frame in depth]),
        "steps/observation/grey": (image(channels=1), [picture(frame[..., 0]) for frame in made.frames]),
        "steps/observation/torn": (tensor("float32", -1), np.zeros(4, np.float32)),
        "steps/observation/boxes": (dataset(tensor("float32", 4)), np.zeros(16, np.float32)),
        "steps/phase": ({"pythonClassName": "tfds.ClassLabel", "classLabel": {"numClasses": "3"}}, np.arange(4)),
        "steps/note": (text(), [b"a", b"b", b"c", "d\u00e9".encode()]),
    }
    features = json.loads(json.dumps(FEATURES))
    for name, (node, _) in more.items():
        place = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
        for folder in name.split("/")[1:-1]:
            place = place[folder]["featuresDict"]["features"]
        place[name.rpartition("/")[2]] = node
    made.features.update({name: value for name, (_, value) in more.items()})
    root = write_rlds(tmp_path / "toys", {"train": [[made]]}, features=features, absent=[])
    store = open_dataset(root)
    assert isinstance(store, RldsStore)
    assert (store.cameras, store.depth_cameras) == (("image_0", "grey", "wrist_image"), ("deep",))
    assert {*store.unread} == {"observation.depth", "observation.torn", "observation.boxes", "phase"}
    steps = np.arange(4)
    np.testing.assert_array_equal(store.depth(0, steps), depth)
    np.testing.assert_array_equal(store.frames(0, steps, "grey")[..., 2], made.frames[..., 0])
    out = open_dataset(convert(root, tmp_path / "out", drop=sorted(store.unread)))
    assert isinstance(out, LeRobotStore)
    assert store.columns.keys() <= out.columns.keys()
    for name in store.columns:
        np.testing.assert_array_equal(out.recorded(0, name), store.recorded(0, name))
    np.testing.assert_array_equal(out.recorded(0, "observation.cloud"), more["steps/observation/cloud"][1])
    assert out.recorded(0, "note")[:, 0].tolist() == ["a", "b", "c", "d\u00e9"]
    assert out.recorded(0, "recorded_index")[:, 0].tolist() == [0, 1, 2, 3]
    assert out.recorded(0, "episode_metadata.file_path")[:, 0].tolist() == ["episode_0.npy"] * 4


def test_real_trajectories() -> None:
    root = real_data("bridge_rlds")
    store = open_dataset(root)
    assert isinstance(store, RldsStore)
    assert (len(store.episodes), store.cameras, store.empty) == (25, ("image_0", "image_1", "image_2"), ("image_3",))
    assert set(store.lengths) == {10}
    words = [episode.instruction for episode in store.episodes]
    assert sorted(words.count(text) for text in set(words)) == [5, 6, 6, 8]
    assert split_names(root) == ("train",)
    for number in range(0, 25, 6):
        episode = read_episode(store, number)
        assert episode.frames["image_0"].shape == (10, 64, 64, 3)
        assert episode.actions is not None
        assert episode.state is not None
        assert (episode.actions.shape, episode.state.shape) == ((10, 7), (10, 7))
        # An action is the change of the arm's position, so the next states must show it.
        moved = np.diff(episode.state[:, :3], axis=0)
        assert np.corrcoef(moved.ravel(), episode.actions[:-1, :3].ravel())[0, 1] > 0.5
    assert [finding.where.rpartition(", ")[2] for finding in examine(root)] == ["split val"]


def test_features_of_made_data_are_those_of_the_real_set() -> None:
    """The JSON that these tests write has the shape of TensorFlow Datasets'."""
    real = json.loads((real_data("bridge_rlds") / "bridge_dataset/1.0.0/features.json").read_text())

    def keys(node: object) -> set[str]:
        if not isinstance(node, dict):
            return set()
        kinds = {
            key for key in node if key in ("featuresDict", "sequence", "tensor", "image", "text", "feature", "features")
        }
        return kinds.union(*(keys(child) for child in node.values()))

    assert keys(FEATURES) == keys(real)


def write_droid_instructions(root: Path) -> Path:
    """Two episodes with DROID's three instructions, of which some are empty."""
    features = json.loads(json.dumps(FEATURES))
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    steps |= {f"language_instruction_{number}": text() for number in (3, 2)}
    words = [[b"pour", b"", b"tip the jug"], [b"", b"close it", b"shut it"]]
    episodes = [made_episode(3, seed) for seed in range(2)]
    for episode, texts in zip(episodes, words, strict=True):
        for ending, one in zip(("", "_2", "_3"), texts, strict=True):
            episode.features[f"steps/language_instruction{ending}"] = [one] * 3
    return write_rlds(root, {"train": [episodes]}, features=features, absent=())


def test_all_of_droid_s_instructions_are_kept_and_one_is_chosen_by_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root = write_droid_instructions(tmp_path / "toys")
    store = open_dataset(root)
    assert isinstance(store, RldsStore)
    assert list(store.instructions) == ["language_instruction", "language_instruction_2", "language_instruction_3"]
    assert [e.instruction for e in store.episodes] == ["pour", "close it"]
    chosen = open_dataset(root, split="train", instruction_key="language_instruction_3")
    assert [e.instruction for e in chosen.episodes] == ["tip the jug", "shut it"]
    assert chosen.fingerprint != store.fingerprint
    info(root)
    assert "language_instruction_2 (empty in 1 of 2 episodes)" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(BadInputError, match="language_instruction_2"):
        open_dataset(root, instruction_key="language_instruction2")


def test_all_instructions_of_an_episode_are_kept_to_sample_from(tmp_path: Path) -> None:
    root = write_droid_instructions(tmp_path / "toys")
    store = open_dataset(root, instruction_key="sample")
    texts = open_dataset(root).instructions  # type: ignore[attr-defined]
    assert [set(e.wordings) for e in store.episodes] == [
        {text for key in texts if (text := texts[key][number])} for number in range(2)
    ]
    assert [e.instruction for e in store.episodes] == [e.instruction for e in open_dataset(root).episodes]
    assert store.fingerprint != open_dataset(root).fingerprint
    trained = cached(store, size=16, root=tmp_path / "cache")
    assert [e.wordings for e in trained.episodes] == [e.wordings for e in store.episodes]
    with pytest.raises(BadInputError, match="the key of one instruction to write"):
        convert(root, tmp_path / "out", instruction_key="sample")


def test_a_key_is_refused_where_an_episode_has_one_instruction(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="none: these data have one instruction an episode"):
        open_dataset(write_rlds(tmp_path / "toys"), instruction_key="language_instruction")


def test_recipes_and_reports_take_the_instructions_of_a_key(tmp_path: Path) -> None:
    root, key = write_droid_instructions(tmp_path / "toys"), "language_instruction_3"
    train, _ = DataConfig(instruction_key=key).open(root)
    shown = open_demonstrations(root, DemonstrationsConfig(instruction_key=key))
    opened = open_training({"data": {"path": str(root), "instruction_key": key}})
    assert opened is not None
    reported, _, _ = open_unseen([{"data": {"path": str(root), "instruction_key": key}}], root, "train", most=9, seed=0)
    for store in (train, shown, opened[0], reported):
        assert sorted(e.instruction for e in store.episodes) == ["shut it", "tip the jug"]
