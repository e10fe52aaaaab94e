from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from counterpoint.cli.data.doctor import examine
from counterpoint.config import validate
from counterpoint.data.cache import cached
from counterpoint.data.robot_masks import binary_mask, mask_camera, masked_cameras
from counterpoint.envs.collect import episode_seed, summary
from counterpoint.envs.recording import NoisyExpert, record
from counterpoint.envs.robosuite import collect
from counterpoint.envs.robosuite.collect import RobosuiteCollectConfig, checked, collect_robosuite
from counterpoint.envs.robosuite.env import TASKS
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, split_names
from tests.envs.killed import UNFINISHED, kill
from tests.envs.played import masks
from tests.envs.robosuite.made_expert import FLOOR, ROBOT, MadeTask

CAMERAS = ("agentview", "robot0_eye_in_hand")
PROGRAM = """
import sys
import counterpoint.envs.collect
from counterpoint.envs.robosuite import collect
from counterpoint.envs.robosuite.collect import RobosuiteCollectConfig, collect_robosuite
from tests.envs.robosuite.made_expert import MadeTask

class Troubled(MadeTask):
    troubles = ("raises", "fails")

collect.RobosuiteEnv = Troubled  # in the workers too
counterpoint.envs.collect.versions = lambda _: {"robosuite": "made"}
if __name__ == "__main__":
    collect_robosuite(RobosuiteCollectConfig.model_validate_json(sys.argv[1]))
"""


def config(out: Path, **changes: Any) -> RobosuiteCollectConfig:
    settings: dict[str, Any] = {"episodes": 3, "val_episodes": 2, "size": 32, "workers": 1}
    return validate(RobosuiteCollectConfig, {"out": out, **settings, **changes}, "collect robosuite")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[MadeTask]:
    """The task that stands in for robosuite's; its `troubles` may be set."""

    class Made(MadeTask):
        pass

    monkeypatch.setattr(collect, "RobosuiteEnv", Made)
    monkeypatch.setattr("counterpoint.envs.collect.versions", lambda _: {"robosuite": "made"})
    return Made


def told(out: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((out / "meta/info.json").read_text())["counterpoint"]
    return about


def test_what_is_written(made: type[MadeTask], tmp_path: Path) -> None:
    out = collect_robosuite(config(tmp_path / "deep" / "set", tasks=("Lift", "Stack")))
    store = open_dataset(out)
    assert store.cameras == (*CAMERAS, *map(mask_camera, CAMERAS))
    assert split_names(out) == ("train", "val")
    assert len(open_dataset(out, split="val").episodes) == 4
    assert [episode.instruction for episode in store.episodes] == [
        *["lift the cube"] * 3,
        *["stack the red cube on the green cube"] * 3,
        *["lift the cube", "lift the cube"],
        *["stack the red cube on the green cube"] * 2,
    ]
    assert {(episode.length, episode.fps, episode.success) for episode in store.episodes} == {(9, 20, True)}
    actions, state, rewards = store.actions(0), store.state(0), store.rewards(0)
    assert actions is not None
    assert state is not None
    assert rewards is not None
    assert (actions.shape, state.shape) == ((9, 7), (9, 9))
    assert rewards.tolist() == [0] * 3 + [1] * 6
    surroundings = store.environment_state(0)
    assert surroundings is not None
    np.testing.assert_array_equal(surroundings[:, 1], np.arange(9))
    about = told(out)
    assert about["collect"]["config"]["mask_parts"] == ["arm", "gripper", "mount"]
    assert about["collect"]["config"]["masks"] == list(CAMERAS)
    assert about["collect"]["versions"] == {"robosuite": "made"}
    assert about["collect"]["controller"] == {"control_freq": 20, "type": "BASIC"}
    assert about["episodes"]["seed"][0] == episode_seed(0, "Lift", "train", 0)
    assert (about["dropped"], about["raised"]) == (0, 0)
    assert json.loads((out / "meta/info.json").read_text())["robot_type"] == "Panda"
    assert examine(out) == []
    assert [path.name for path in out.parent.iterdir()] == ["set"]


def test_masks_are_exact_and_lie_on_their_images_also_when_resized(made: type[MadeTask], tmp_path: Path) -> None:
    store = open_dataset(collect_robosuite(config(tmp_path / "set")))
    task = made("Lift", cameras=CAMERAS, size=32)
    steps = np.arange(9)
    for number in range(3):
        task.reset(seed=episode_seed(0, "Lift", "train", number))
        drawn = []
        for _ in steps:
            drawn.append(masks(task))
            task.step(task.expert())
        for place, camera in enumerate(CAMERAS):
            kept = store.frames(number, steps, mask_camera(camera))
            np.testing.assert_array_equal(binary_mask(kept), np.stack(drawn)[:, place])
            bright = store.frames(number, steps, camera).mean(axis=-1) > (ROBOT + FLOOR) / 2
            assert (bright == binary_mask(kept)).mean() > 0.99

    names = ("agentview", mask_camera("agentview"))
    small = cached(store, size=20, cameras=names, root=tmp_path, progress=False)
    assert masked_cameras(small.cameras) == ("agentview",)
    grey = small.frames(0, steps, names[1])
    assert len(np.unique(grey)) > 2
    bright = small.frames(0, steps, names[0]).mean(axis=-1) > (ROBOT + FLOOR) / 2
    assert (bright == binary_mask(grey)).mean() > 0.99


@pytest.mark.parametrize("names", [("robot0_eye_in_hand",), ("none",)])
def test_masks_of_some_cameras(made: type[MadeTask], tmp_path: Path, names: tuple[str, ...]) -> None:
    store = open_dataset(collect_robosuite(config(tmp_path / "set", masks=names)))
    wanted = [mask_camera(name) for name in names if name != "none"]
    assert store.cameras == (*CAMERAS, *wanted)


@pytest.mark.slow
def test_states_alone(made: type[MadeTask], tmp_path: Path) -> None:
    out = collect_robosuite(config(tmp_path / "set", cameras=("none",)))
    store = open_dataset(out)
    assert store.cameras == ()
    assert (store.column("state").shape[1], store.column("environment_state").shape[1]) == (9, 2)
    assert examine(out) == []


def test_one_camera(made: type[MadeTask], tmp_path: Path) -> None:
    store = open_dataset(collect_robosuite(config(tmp_path / "set", cameras=("agentview",))))
    assert store.cameras == ("agentview", "agentview_mask")


@pytest.mark.parametrize("trouble", ["raises", "nan"])
def test_episodes_in_which_the_simulator_raises_are_dropped_and_counted(
    made: type[MadeTask], tmp_path: Path, trouble: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made.troubles = (trouble, "fails")
    out = collect_robosuite(config(tmp_path / "set", episodes=8))
    store, about = open_dataset(out), told(out)
    assert all(episode.success for episode in store.episodes)
    assert about["raised"] == sum(about["episodes"]["raised"]) > 0
    assert about["dropped"] == sum(about["episodes"]["dropped"]) > 0
    counts = zip(about["episodes"]["raised"], about["episodes"]["dropped"], strict=True)
    for place, (raised, dropped) in enumerate(counts):
        split, number = ("train", place) if place < 8 else ("val", place - 8)
        seed = episode_seed(0, "Lift", split, number, attempt=raised + dropped)
        assert about["episodes"]["seed"][place] == seed
    line = f"{about['dropped']} failed ones dropped, {about['raised']} in which the simulator raised an error"
    assert summary(out) == f"10 episodes, {line}"
    assert line in capfd.readouterr().err


def test_failed_episodes_may_be_kept(made: type[MadeTask], tmp_path: Path) -> None:
    made.troubles = ("fails",)
    store = open_dataset(collect_robosuite(config(tmp_path / "set", successful_only=False)))
    assert {(episode.success, episode.length) for episode in store.episodes} == {(True, 9), (False, 12)}


def test_a_simulator_that_always_raises_ends_the_collection_in_its_own_words(
    made: type[MadeTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_over(*_: Any) -> None:
        raise RuntimeError("no such joint")

    monkeypatch.setattr(made, "expert", fall_over)
    with pytest.raises(BadInputError, match=r"5 scenes in a row.*RuntimeError: no such joint"):
        collect_robosuite(config(tmp_path / "set"))
    assert not (tmp_path / "set").exists()


def test_a_task_that_is_never_solved_is_an_error(
    made: type[MadeTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "steps_allowed", 3)
    with pytest.raises(BadInputError, match="20 scenes of Lift in a row without a solution"):
        collect_robosuite(config(tmp_path / "set"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("Lfit",)}, "'Lfit'"),
        ({"robot": "Sawyer"}, "'Sawyer'"),
        ({"tasks": ("Lift", "Lift")}, "each name once"),
        ({"tasks": ("Lift", "Lift-Panda")}, "each name once"),
        ({"tasks": ("Lift-IIWA",)}, "one robot"),
        ({"masks": ("agentview", "agentview")}, "each name once"),
        ({"mask_parts": ("arm", "arm")}, "each name once"),
        ({"episodes": 0, "val_episodes": 0}, "at least one"),
        ({"masks": ("sideview",)}, "'sideview'"),
        ({"masks": ("all", "agentview")}, "'all'"),
        ({"format": "robomimic"}, r"ends in \.hdf5"),
        ({"format": "robomimic", "tasks": ("Lift", "Stack")}, "one environment"),
        (
            {"scene": "shared", "tasks": ("Door",)},
            r"'Door' in the scene shared; expected one of SharedLift, .*CloseBox",
        ),
        ({"tasks": ("SharedLift",)}, r"'SharedLift' in the scene own; expected one of Lift, Door"),
    ],
)
def test_bad_configurations(made: type[MadeTask], tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        collect_robosuite(config(tmp_path / "set", **changes))
    assert not list(tmp_path.iterdir())


def test_a_robot_may_be_told_with_the_task() -> None:
    told = checked(config(Path("set"), tasks=("Lift-IIWA", "Door"), robot="IIWA"))
    assert told == checked(config(Path("set"), tasks=("Lift", "Door"), robot="IIWA"))


def test_the_scene_chooses_the_tasks(made: type[MadeTask], tmp_path: Path) -> None:
    assert checked(config(Path("set"))).tasks == ("Lift",)
    tasks = checked(config(Path("set"), scene="shared")).tasks
    assert tasks == tuple(name for name, spec in TASKS.items() if spec.scene == "shared")
    some = checked(config(Path("set"), scene="shared", tasks=("SharedStack-IIWA",), robot="IIWA"))
    assert some.tasks == ("SharedStack",)
    out = collect_robosuite(config(tmp_path / "set", scene="shared", episodes=1, val_episodes=0))
    instructions = {episode.instruction for episode in open_dataset(out).episodes}
    assert instructions == {TASKS[task].instruction for task in tasks}
    assert told(out)["episodes"]["task"] == list(tasks)
    assert "scene" not in told(out)["collect"]["config"]  # so that data sets recorded without it are the same


@pytest.mark.parametrize(
    ("changes", "message"), [({"size": 8}, "size"), ({"noise": -1.0}, "noise"), ({"mask_parts": ("leg",)}, "'leg'")]
)
def test_values_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        config(Path("set"), **changes)


def test_asking_again_changes_nothing_and_asking_otherwise_is_an_error(made: type[MadeTask], tmp_path: Path) -> None:
    for out, kind in ((tmp_path / "set", "lerobot"), (tmp_path / "set.hdf5", "robomimic")):
        collect_robosuite(config(out, format=kind))
        before = out.stat().st_mtime_ns
        assert collect_robosuite(config(out, format=kind, workers=3)) == out
        assert out.stat().st_mtime_ns == before
        with pytest.raises(BadInputError, match=r"config\.noise = 0\.0.*config\.noise = 0\.5"):
            collect_robosuite(config(out, format=kind, noise=0.5))
    (tmp_path / "thesis.hdf5").write_text("no HDF5")
    with pytest.raises(BadInputError, match="choose another --out"):
        collect_robosuite(config(tmp_path / "thesis.hdf5", format="robomimic"))


def test_a_robomimic_file_holds_the_same_without_loss(made: type[MadeTask], tmp_path: Path) -> None:
    made.troubles = ("fails",)
    wanted = {"successful_only": False, "test_episodes": 1}
    video = open_dataset(collect_robosuite(config(tmp_path / "set", **wanted)))
    out = collect_robosuite(config(tmp_path / "set.hdf5", format="robomimic", **wanted))
    exact = open_dataset(out)
    images = tuple(f"{camera}_image" for camera in CAMERAS)
    assert exact.cameras == (*images, *map(mask_camera, images))
    assert split_names(out) == ("train", "valid", "test")
    assert exact.episodes == video.episodes
    for number, episode in enumerate(exact.episodes):
        steps = np.arange(episode.length)
        for read in ("actions", "state", "rewards"):
            np.testing.assert_array_equal(getattr(exact, read)(number), getattr(video, read)(number))
        for camera, image in zip(CAMERAS, images, strict=True):
            kept = exact.frames(number, steps, mask_camera(image))
            np.testing.assert_array_equal(kept, video.frames(number, steps, mask_camera(camera)))
            drawn = np.where(binary_mask(kept)[..., None], ROBOT, FLOOR)
            np.testing.assert_array_equal(exact.frames(number, steps, image), np.repeat(drawn, 3, axis=-1))
    with h5py.File(out) as file:
        assert file["data/demo_0/states"].shape[1] == 2
        args = json.loads(file["data"].attrs["env_args"])
    assert args["env_name"] == "Lift"
    assert args["env_kwargs"]["robots"] == ["Panda"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.hdf5"]


def test_noise_is_on_the_hand_alone_and_recorded_actions_are_those_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = MadeTask("Lift", cameras=CAMERAS, size=16)
    carried: list[Any] = []
    step = task.step

    def carry(action: Any) -> Any:
        carried.append(action)
        return step(action)

    monkeypatch.setattr(task, "step", carry)
    settings: dict[str, Any] = {"masks": CAMERAS, "after_success": 2, "steps": 12}
    noisy = record(task, NoisyExpert(task.expert, 0.3, exact=1), 3, **settings)
    np.testing.assert_array_equal(noisy.actions, np.stack(carried))
    clean = record(task, NoisyExpert(task.expert, 0.0, exact=1), 3, **settings)
    assert len(clean.actions) == 4 + 2
    assert (noisy.actions[:, :6] != clean.actions[:, :6]).any(axis=0).all()
    np.testing.assert_array_equal(noisy.actions[:, 6], clean.actions[:, 6])
    assert set(noisy.extra) == {"environment_state"}


def same_data(one: Path, two: Path) -> None:
    for path in sorted(one.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (two / path.relative_to(one)).read_bytes(), path


@pytest.mark.slow
def test_a_killed_collection_goes_on_with_two_workers_and_ends_as_an_undisturbed_one_with_one(tmp_path: Path) -> None:
    script, unfinished = tmp_path / "program.py", tmp_path / "unfinished.py"
    script.write_text(PROGRAM)
    unfinished.write_text(UNFINISHED + PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}

    def start(wanted: RobosuiteCollectConfig, script: Path = script) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), wanted.model_dump_json()], env=environment, cwd=tmp_path)

    whole, out = tmp_path / "whole" / "set", tmp_path / "killed" / "set"
    assert start(config(whole, episodes=6)).wait() == 0
    kill(start(config(out, episodes=6, workers=2), unfinished), out.with_name("set.partial"))
    assert not out.exists()
    assert start(config(out, episodes=6, workers=2)).wait() == 0
    assert told(out)["raised"] > 0
    same_data(whole, out)
    assert [path.name for path in out.parent.iterdir()] == ["set"]


@pytest.mark.sim
@pytest.mark.slow
def test_robosuite_itself(tmp_path: Path) -> None:
    pytest.importorskip("robosuite", reason="needs the extra `robosuite`")
    wanted = {"episodes": 1, "val_episodes": 0, "size": 48}
    out = collect_robosuite(config(tmp_path / "set", **wanted))
    again = collect_robosuite(config(tmp_path / "again", workers=2, **wanted))
    same_data(out, again)
    store = open_dataset(out)
    assert all(episode.success and 20 < episode.length < 200 for episode in store.episodes)
    steps = np.arange(store.episodes[0].length)
    for camera in CAMERAS:
        share = binary_mask(store.frames(0, steps, mask_camera(camera))).mean(axis=(1, 2))
        assert (share > 0.03).all()
        assert (share < 0.6).all()
    assert len(told(out)["collect"]["rendering"]["canary"]["sha256"]) == 64
