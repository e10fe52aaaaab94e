"""The commands of docs/data.md, section by section and word for word, on small data of each kind.

`counterpoint data` runs. `counterpoint train` is parsed, and among the slow tests its recipe accepts the data. Of other
commands, which need a trained model or a simulator, the arguments are parsed.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import huggingface_hub
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from counterpoint.cli import main
from counterpoint.formats.video import encode_video
from counterpoint.training.distributed import accelerator_of
from counterpoint.training.plan import Given
from tests.formats.fuzzing.sources import write_goals, write_zarr
from tests.formats.hdf5.made import (
    write_aloha,
    write_isaaclab,
    write_libero,
    write_low_dim,
    write_regenerated,
    write_robomimic,
)
from tests.formats.lerobot.made import edit_column, episode, write_rows, write_v30
from tests.formats.lerobot.test_clock import DATA, EVEN, JITTER
from tests.formats.lerobot.test_columns import LENGTHS, MILLIMETRES, OPENPI, image, write
from tests.formats.made import (
    memory_store,
    smooth_frames,
    write_epic,
    write_frames,
    write_lerobot,
    write_lerobot_v21,
    write_tasks,
    write_variable_rate,
)
from tests.formats.remote_made import upload, write_shards
from tests.formats.rlbench.made import write_task
from tests.formats.rlds.made import FEATURES, made_episode, write_rlds
from tests.formats.rlds.test_reader import write_droid_instructions
from tests.formats.test_bridge import write_bridge
from tests.formats.test_droid import write_droid
from tests.formats.test_drq import write_replay as write_drq
from tests.formats.test_mcap import compressed, joints, plain, write_bag
from tests.formats.test_ogbench import write_ogbench
from tests.formats.test_remote import HubDouble
from tests.hub_here import hub_cache
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "data.md").read_text()
TITLES = re.findall(r"^## (.*)$", PAGE, flags=re.M)
COMMAND_LINE = import_module("counterpoint.cli.main")


def section(title: str) -> str:
    """The text of a section, with its subsections."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def plain_text(text: str) -> str:
    """Words without line breaks, code marks and rules of tables."""
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", text.replace("`", "")).split())


def block(title: str, language: str) -> str:
    """The only block of a language in a section."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section(title), flags=re.M | re.S)
    return str(found)


def commands(title: str, *first: str) -> list[list[str]]:
    """The words behind `counterpoint` of a section's commands, of all or of those that begin with one of `first`."""
    blocks = re.findall(r"^```bash\n(.*?)^```", section(title), flags=re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    every = [shlex.split(line.partition(" #")[0]) for line in lines]
    return [words[1:] for words in every if words[:1] == ["counterpoint"] and words[1] in (first or words)]


def write_phone() -> None:
    """Two videos as phones name them, one of a rate that varies, and the page's manifest."""
    frames = smooth_frames(30, 32, 48)
    encode_video(Path("phone/IMG_0001.MOV"), frames, 10)
    write_variable_rate(Path("phone/IMG_0002.mp4"))
    Path("phone/manifest.csv").write_text(block("A folder of phone videos", "csv"))


def write_table() -> None:
    for number in range(2):
        encode_video(Path(f"clips/{number}.mp4"), smooth_frames(5, 32, 48, seed=number), 10)
    Path("clips/labels.csv").write_text("FILE;TASK;WHO\n0.mp4;open;me\n1.mp4;close, slowly;me\n")


def write_cups() -> None:
    """A data set of LeRobot v2.1, and two whose clocks disagree."""
    write_lerobot_v21(Path("cups"))
    for name, times in (("jitter", JITTER[:6]), ("slow", EVEN[:6] / 3)):
        write_v30(Path(name), [episode(number, 6) for number in range(2)])
        edit_column(Path(name) / DATA, "timestamp", np.tile(times, 2).tolist())


def write_lift() -> None:
    write_robomimic(Path("lift/image.hdf5"), masks={"train": [0, 1], "valid": [2]})
    write_low_dim(Path("lift/low_dim.hdf5"))


def write_libero_tasks(root: str, write_one: Callable[[Path], object]) -> None:
    for task in ("turn_on_the_stove", "open_the_drawer"):
        write_one(Path(root) / f"{task}_demo.hdf5")


def write_stack() -> None:
    Path("stack").mkdir()
    write_isaaclab(Path("stack/dataset.hdf5"))


def write_cup() -> None:
    write_aloha(Path("cup"))
    write_aloha(Path("cup_compressed"), packed=True)


def write_bridge_rlds() -> None:
    """RLDS without depth, which `data convert` would ask to drop."""
    features = json.loads(json.dumps(FEATURES))
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    del steps["observation"]["featuresDict"]["features"]["depth"]
    episodes = [made_episode(4, 0), made_episode(3, 1, "open the drawer")]
    for one in episodes:
        del one.features["steps/observation/depth"]
    write_rlds(Path("bridge_dataset/1.0.0"), {"train": [episodes]}, features=features, absent=())


def write_both_droids() -> None:
    write_droid_instructions(Path("droid/1.0.0"))
    write_droid(Path("droid_raw/1.0.1"))


def write_bags() -> None:
    """Recordings of the topics that the page's `topics.json` names."""
    pytest.importorskip("mcap_ros2")
    topics = json.loads(block("ROS 2 bags", "json"))
    front, wrist = topics["cameras"].values()
    array = "std_msgs/msg/Float64MultiArray"
    for number in range(2):
        messages = [
            message
            for step in range(4 + number)
            for message in (
                (step / 10, front, "sensor_msgs/msg/CompressedImage", compressed(step)),
                (step / 10, wrist, "sensor_msgs/msg/Image", plain(step)),
                (step / 10 - 0.01, topics["state"][0], "sensor_msgs/msg/JointState", joints((step, -step))),
                (step / 10 - 0.02, topics["actions"][0], array, {"data": [step, 9]}),
                (step / 10 - 0.02, topics["actions"][1], "std_msgs/msg/Float32", {"data": 0.5}),
            )
        ]
        write_bag(Path(f"bags/{number}.mcap"), messages, topics)


def write_pusht() -> None:
    """A replay buffer with the attribute that the page advises to write."""
    title = "UMI or Diffusion Policy zarr"
    write_zarr(Path("pusht.zarr"))
    (Path("pusht.zarr") / ".zattrs").write_text(re.findall(r'`(\{"instruction".*?\})`', section(title))[0])


class BucketDouble(MemoryFileSystem):  # type: ignore[misc]
    """Takes the place of s3fs; a server that speaks S3 is among the tests of `formats.remote`."""

    protocol = "s3"
    store: ClassVar[dict[str, Any]] = {}


def write_urls() -> None:
    upload(write_lerobot(Path("local")), "s3://bucket/set")
    upload(Path("local"), "hf://datasets/ORG/NAME")


def write_hub() -> None:
    cache: Any = huggingface_hub.snapshot_download
    cache.add("lerobot/pusht", write_lerobot(Path("local")), "v3.0")


@dataclass(frozen=True)
class Kind:
    """Data that people have.

    Attributes:
        write: Writes the data, in the working folder, under the names that the section's commands use.
        read: Words that the section says and that `counterpoint data info` prints of these data.
    """

    write: Callable[[], object]
    read: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "A folder of phone videos": Kind(write_phone, ("camera", "open the drawer", "close the drawer")),
    "A folder of videos by task": Kind(partial(write_tasks, Path("kitchen")), ("spaces for underscores",)),
    "A table of videos with columns of your own": Kind(write_table),
    "Numbered frames": Kind(lambda: [write_frames(Path("frames") / run) for run in "ab"], ("10", "assumed")),
    "A LeRobot data set": Kind(write_cups),
    "An openpi data set": Kind(partial(write_rows, Path("pi"), LENGTHS, OPENPI), ("read as", "image", "wrist_image")),
    "Several cameras": Kind(partial(write_lerobot, Path("cups")), ("top", "wrist")),
    "Depth images": Kind(
        lambda: write(Path("rgbd"), **{"observation.images.deep": image(MILLIMETRES)}), ("uint16", "millimetres")
    ),
    "robomimic, with images or without": Kind(
        write_lift, ("lift the cube", "robomimic_low_dim", "env_args with env_kwargs", "agentview_depth")
    ),
    "LIBERO, as released": Kind(
        partial(write_libero_tasks, "libero_10", write_libero),
        ("agentview_rgb", "eye_in_hand_rgb", "bottom row first", "the file's name"),
    ),
    "LIBERO, regenerated by OpenVLA": Kind(
        partial(write_libero_tasks, "libero_10_no_noops", write_regenerated),
        ("agentview_rgb", "eye_in_hand_rgb", "libero_regenerated", "not shifted"),
    ),
    "IsaacLab demonstrations": Kind(write_stack, ("table_cam",)),
    "An ALOHA recording": Kind(write_cup, ("cam_high", "the folder's name", "aloha_jpeg", "50", "assumed")),
    "Open X-Embodiment (RLDS)": Kind(write_bridge_rlds, ("empty", "5", "assumed")),
    "DROID": Kind(
        write_both_droids, ("exterior_image_1_left", "wrist_image_left", "language_instruction_3", "current_task", "15")
    ),
    "BridgeData, raw folders": Kind(
        partial(write_bridge, Path("bridge_data_v2")), ("image_0", "depth_images0", "5", "assumed", "line_1")
    ),
    "ROS 2 bags": Kind(write_bags, ("front", "wrist", "put the cup on the plate")),
    "UMI or Diffusion Policy zarr": Kind(write_pusht, ("push the T onto its mark", "10", "assumed")),
    "WebDataset shards": Kind(lambda: write_shards(Path("shards"), memory_store())),
    "RLBench demonstrations": Kind(partial(write_task, Path()), ("front", "wrist", "front_mask", "20", "assumed")),
    "EPIC-KITCHENS-100": Kind(partial(write_epic, Path("EPIC")), ("rgb", "segments whose frames are not there")),
    "OGBench": Kind(partial(write_ogbench, Path("pointmaze-medium-stitch-v0.npz")), ("qpos", "qvel", "10", "assumed")),
    "A DrQ-v2 replay": Kind(partial(write_drq, Path("walker_walk_replay")), ("walker walk", "assumed")),
    "Minari": Kind(partial(write_goals, Path("umaze-v2")), ("goals", "success")),
    "Data on the Hub": Kind(write_hub, ("LeRobot",)),
    "Data behind a URL": Kind(write_urls, ("LeRobot",)),
    "No data yet": Kind(lambda: None),
}


@pytest.fixture
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "400")
    hub_cache(monkeypatch, tmp_path / "hub")
    systems = {"s3": BucketDouble, "hf": HubDouble}
    before = {name: fsspec.get_filesystem_class(name) for name in systems}
    for name, system in systems.items():
        fsspec.register_implementation(name, system, clobber=True)
    yield
    for name, system in before.items():
        fsspec.register_implementation(name, system, clobber=True)


def run(words: list[str]) -> tuple[int, str]:
    """The exit code of a command and what it prints."""
    code = 0
    with redirect_stdout(io.StringIO()) as said:
        try:
            main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, plain_text(said.getvalue())


def parsed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """The arguments that a command gives to its function."""
    given: dict[str, Any] = {}

    def called(command: object, arguments: Mapping[str, Any]) -> SimpleNamespace:
        given.update(arguments)
        return SimpleNamespace(main=False)

    monkeypatch.setattr(COMMAND_LINE, "_called", called)
    main(words)
    return given


def test_each_section_has_its_data_and_its_line_in_the_table() -> None:
    assert list(KINDS) == TITLES
    rows = re.findall(r"^\| \[.*?\]\(#(.*?)\) \|.*\| `counterpoint (.*?)(?: \.\.\.)?` \|$", PAGE, flags=re.M)
    assert [anchor for anchor, _ in rows] == [
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in TITLES
    ]
    for title, (_, line) in zip(TITLES, rows, strict=True):
        assert any(" ".join(words).startswith(line) for words in commands(title)), line


def test_the_extras_that_the_page_names_exist() -> None:
    extras = set(re.findall(r"\.\[(.*?)\]", PAGE)) | set(re.findall(r"extra `(.*?)`", PAGE))
    known = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), flags=re.M))
    assert extras
    assert extras <= known


@pytest.mark.parametrize("title", KINDS)
@pytest.mark.usefixtures("_workplace")
def test_data_are_read_as_the_page_says(title: str) -> None:
    KINDS[title].write()
    told = ""
    for words in commands(title, "data"):
        code, said = run(words)
        assert code == 0, words
        told += said if words[1] == "info" else ""
    for fact in KINDS[title].read:
        assert fact in plain_text(section(title))
        assert fact in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [words for title in TITLES for words in commands(title) if words[0] != "data"],
    ids=lambda words: " ".join(words[:4]),
)
def test_other_commands_are_parsed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed(words, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("title", [title for title in TITLES if commands(title, "train")])
@pytest.mark.usefixtures("_workplace")
def test_recipes_accept_the_data(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    KINDS[title].write()
    for words in commands(title, "train"):
        if not words[1].endswith("-epic100"):  # starts from weights that cannot be downloaded in tests
            given = parsed(words, monkeypatch)
            given["recipe"].plan(Given(given["data"], device="cpu"), accelerator_of("no", "cpu"))
