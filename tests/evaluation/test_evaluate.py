from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.episode import Array
from counterpoint.encoders.card import write_results
from counterpoint.encoders.dual import SentenceTower
from counterpoint.encoders.hub import write_model
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.envs.base import CameraEnv
from counterpoint.errors import BadInputError
from counterpoint.evaluation import evaluate as evaluation
from counterpoint.evaluation.evaluate import evaluate
from counterpoint.evaluation.rollout import rollout
from counterpoint.evaluation.statistics import mean_bca, wilson
from counterpoint.formats.video import probe_video, read_frames
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.networks import DiffusionConfig
from counterpoint.training.train import train
from tests.encoders.saved_kinds import write_digests
from tests.policies.demos import demonstrations, spelled
from tests.training.step_data import SIZE, write_control_set, write_two_tasks
from tests.training.test_cloning_command import TINY, trained


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_two_tasks(tmp_path / "data")


class Stub(CameraEnv):
    """Solved at the second step for odd seeds; the reward is the seed's last digit at every step."""

    actions, states = 2, 2
    made: tuple[tuple[str, dict[str, Any]], ...] = ()
    seeds: tuple[int, ...] = ()
    closed = 0

    def __init__(self, name: str, **settings: Any) -> None:
        type(self).made = (*type(self).made, (name, settings))
        super().__init__(
            name,
            "move the dot",
            cameras=settings.get("cameras") or ("usual",),
            size=settings.get("size", 84),
            action_dim=self.actions,
            state_dim=self.states,
            control_hz=10,
            horizon=3,
        )

    def _begin(self, seed: int) -> None:
        type(self).seeds = (*type(self).seeds, seed)
        self._seed, self._step = seed, 0

    def _images(self) -> dict[str, Array]:
        return {camera: np.full((self.size, self.size, 3), 7, np.uint8) for camera in self.cameras}

    def state(self) -> Array:
        return np.zeros(self.states, np.float32)

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        assert action.shape == (2,)
        self._step += 1
        return float(self._seed % 10), self._step == 2 and self._seed % 2 == 1, False

    def close(self) -> None:
        type(self).closed += 1


class WiderStub(Stub):
    """An environment of another robot."""

    actions = 5


class BareStub(Stub):
    """An environment of other proprioception."""

    states = 9


def stubbed(monkeypatch: pytest.MonkeyPatch, kind: type[Stub] = Stub) -> type[Stub]:
    own = type("Own", (kind,), {"made": (), "seeds": (), "closed": 0})

    def make(name: str, **settings: Any) -> CameraEnv:
        task: CameraEnv = own(name, **settings)
        return task

    monkeypatch.setattr(evaluation, "make_env", make)
    monkeypatch.setattr("counterpoint.training.cloning.make_env", make)
    return own


def recorded(run: Path, **changes: Any) -> None:
    """Let a policy's demonstrations have been others."""
    path = run / "model" / "config.json"
    config = json.loads(path.read_text())
    config["config"]["demonstrations"] |= changes
    path.write_text(json.dumps(config))
    write_digests(path.parent)


def test_an_evaluation_counts_successes_and_rewards(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run")
    task = stubbed(monkeypatch)
    path = evaluate(tmp_path / "run", env="metaworld/stub", episodes=7, envs=3, seed=5)
    assert path == tmp_path / "run" / "evaluation.json"
    found = json.loads(path.read_text())
    assert (found["env"], found["seed"]) == ("metaworld/stub", 5)
    seeds = [episode["seed"] for episode in found["episodes"]]
    assert sorted(seeds) == sorted(task.seeds)
    assert len(set(seeds)) == 7
    for episode in found["episodes"]:  # to the end, whether solved or not
        seed = episode["seed"]
        assert episode == {
            "seed": seed, "success": seed % 2 == 1, "held": False, "return": 3.0 * (seed % 10), "steps": 3,
            **({"steps_to_success": 2} if seed % 2 else {}),
        }  # fmt: skip
    assert found["steps_to_success"]["value"] == 2  # of the solved ones alone
    assert found["steps_to_success"]["n"] == sum(seed % 2 for seed in seeds)
    rate = wilson(sum(seed % 2 for seed in seeds), 7)
    assert found["success"] == {
        "value": rate.value, "low": rate.low, "high": rate.high, "n": 7, "method": "Wilson",
    }  # fmt: skip
    returns = mean_bca(np.array([3.0 * (seed % 10) for seed in seeds]))
    assert (found["return"]["value"], found["return"]["low"]) == (returns.value, returns.low)
    assert found["provenance"]["packages"]["torch"]
    settings = {"cameras": None, "size": SIZE, "render": SIZE, "repeat": 8}
    assert [given for _, given in task.made] == [settings] * 3
    assert task.closed == 3


def test_seeds_alone_decide_which_episodes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(data, tmp_path / "run")
    stubbed(monkeypatch)

    def episodes(seed: int, envs: int, count: int = 4) -> list[dict[str, Any]]:
        path = evaluate(tmp_path / "run", env="metaworld/stub", episodes=count, envs=envs, seed=seed)
        found: list[dict[str, Any]] = json.loads(path.read_text())["episodes"]
        return found

    first = episodes(0, 1)
    assert episodes(0, 4) == first
    assert episodes(0, 2, count=6)[:4] == first
    assert not {one["seed"] for one in first} & {one["seed"] for one in episodes(1, 1)}


def test_frames_are_rendered_as_large_as_the_demonstrations_were(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run", encoder__size=20)
    task = stubbed(monkeypatch)
    evaluate(tmp_path / "run", env="metaworld/stub@corner", episodes=1, envs=1, seed=0)
    settings = {"cameras": ("corner",), "size": 20, "render": SIZE, "repeat": 8}
    assert task.made == (("metaworld/stub", settings),)
    recorded(tmp_path / "run", fps=None, frame=None)  # a policy that does not say
    evaluate(tmp_path / "run", env="metaworld/stub", episodes=1, envs=1, seed=0)
    assert (task.made[-1][1]["render"], task.made[-1][1]["repeat"]) == (None, 1)


def test_actions_last_as_they_did(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(data, tmp_path / "run")
    task = stubbed(monkeypatch)
    run: dict[str, Any] = {"run": tmp_path / "run", "episodes": 1, "envs": 1, "seed": 0}
    for suite, fps, repeat in (("metaworld", 26.7, 3), ("dmc", 50, 1), ("libero", 20, 1)):
        recorded(tmp_path / "run", fps=fps)
        evaluate(**run, env=f"{suite}/stub")
        assert task.made[-1][1]["repeat"] == repeat
    made = len(task.made)
    for changes, words in (
        ({"fps": 10}, "10 actions a second; expected 20. Hint"),
        ({"fps": 30}, "30 actions a second; expected 80 divided by a whole number"),
        ({"frame": [SIZE, 24]}, f"frames of {SIZE} x 24; expected square ones"),
    ):
        recorded(tmp_path / "run", **changes)
        with pytest.raises(BadInputError, match=words):
            evaluate(**run, env="libero/stub" if changes == {"fps": 10} else "metaworld/stub")
    assert len(task.made) == made


def test_numbers_that_are_not_known_are_null(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(data, tmp_path / "run")
    monkeypatch.setattr(stubbed(monkeypatch), "has_success", False)
    path = evaluate(tmp_path / "run", env="dmc/walker-walk", episodes=1, envs=1, seed=0)
    assert "NaN" not in path.read_text()
    found = json.loads(path.read_text())
    assert found["success"] is None  # dm_control does not say when a task is solved
    assert found["return"]["low"] is None
    assert found["return"]["value"] == found["episodes"][0]["return"]


def test_a_policy_of_several_instructions_gets_the_task_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def embed(tower: SentenceTower, text: str) -> torch.Tensor:
        texts.append(text)
        return spelled(tower, text)

    monkeypatch.setattr(SentenceTower, "embed", embed)
    store = demonstrations(4, size=SIZE, action_dim=2, state_dim=2, tasks=2)
    data = write_control_set(tmp_path / "data", {"train": store})
    policy = trained(data, tmp_path / "run", cloning__language=True)
    assert policy.instruction == ""
    stubbed(monkeypatch)
    texts.clear()
    evaluate(tmp_path / "run", env="metaworld/stub", episodes=2, envs=1, seed=0)
    assert set(texts) == {"move the dot"}
    small = {**TINY, "cloning.language": True, "evaluation.episodes": 1, "train.eval_every": 2, "train.trackers": []}
    run = train("cloning", data, tmp_path / "rolled_out", "metaworld/stub", overrides=small)
    assert json.loads((run.folder / "result.json").read_text())["success"]["n"] == 1
    assert ClonedPolicy.from_pretrained(run.model).instruction == ""


def diffused(run: Path, cameras: tuple[str, ...] = ("agentview", "robot0_eye_in_hand")) -> DiffusionPolicy:
    """A saved diffusion policy that sees through two cameras at 20 pixels, recorded at 32, and crops to 16."""
    torch.manual_seed(0)
    encoder = ObservationEncoder(ObservationConfig(size=16, width=4, embed_dim=4, stack=1, cameras=2))
    config = DiffusionConfig(down_dims=(8, 16), step_dim=8, train_steps=10, inference_steps=2, horizon=4, executed=2)
    store = demonstrations(2, size=32, action_dim=2, state_dim=2)
    policy = DiffusionPolicy(
        encoder,
        DiffusionHead(2, 8, config),
        state_dim=2,
        frame=20,
        cameras=cameras,
        demonstrations=Demonstrations.of(store, (32, 32)).model_copy(update={"fps": 20.0}),
    )
    policy.save_pretrained(run / "model")
    return policy


def test_a_diffusion_policy_is_evaluated_as_it_is_told_to_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = diffused(tmp_path / "run")
    stubbed(monkeypatch)
    acted: list[DiffusionPolicy] = []

    def watched(policy: Any, *given: Any, **named: Any) -> Any:
        acted.append(policy)
        return rollout(policy, *given, **named)

    monkeypatch.setattr(evaluation, "rollout", watched)
    run: dict[str, Any] = {"run": tmp_path / "run", "env": "robosuite/stub", "episodes": 2}
    assert "sampler" not in json.loads(evaluate(**run).read_text())
    found = json.loads(evaluate(**run, ensemble=0.01, sampler="ddpm").read_text())
    assert (found["ensemble"], found["sampler"]) == (0.01, "ddpm")
    evaluate(**run, steps=5)
    acting = [(one.ensemble, one.head.config.sampler, one.head.config.inference_steps) for one in acted]
    assert acting == [(None, "ddim", 2), (0.01, "ddpm", 10), (None, "ddim", 5)]
    for one in acted:
        assert all(torch.equal(value, one.state_dict()[name]) for name, value in policy.state_dict().items())
    with pytest.raises(BadInputError, match="inference_steps of at most train_steps = 10"):
        evaluate(**run, steps=11)
    with pytest.raises(BadInputError, match=r"decay: found -1.0; expected 0 or more"):
        evaluate(**run, ensemble=-1.0)


def test_only_a_diffusion_policy_has_a_sampler(data: Path, tmp_path: Path) -> None:
    trained(data, tmp_path / "run")
    with pytest.raises(BadInputError, match=r"'cloned_policy'; expected a diffusion policy\. Hint: leave --steps out"):
        evaluate(tmp_path / "run", "robosuite/stub", steps=4)


SMALL = {"diffusion.down_dims": [8, 16], "diffusion.step_dim": 8, "data.state": ["state"], "train.batch_size": 4}


@pytest.mark.parametrize(("recipe", "small"), [("cloning", TINY), ("diff_c-robosuite-state", SMALL)])
def test_rollouts_while_training(
    recipe: str, small: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = stubbed(monkeypatch)
    own = {**small, "evaluation.episodes": 3, "train.steps": 4, "train.eval_every": 2, "train.trackers": []}
    train(recipe, data, tmp_path / "run", "metaworld/stub", overrides=own)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["split"] == "eval"]
    assert [line["step"] for line in told] == [2, 4]
    wanted = np.mean([seed % 2 for seed in set(task.seeds)])
    assert [line["success"] for line in told] == pytest.approx([wanted, wanted])
    assert f"| success | {wanted:.3f} |" in (tmp_path / "run/model/README.md").read_text()
    stubbed(monkeypatch, WiderStub)
    with pytest.raises(BadInputError, match="actions of 5 dimensions; expected 2"):
        train(recipe, data, tmp_path / "other", "metaworld/stub", overrides=own)
    assert not (tmp_path / "other/checkpoints").exists()


def test_a_diffusion_policy_is_evaluated_with_its_own_cameras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = diffused(tmp_path / "run").cameras
    task = stubbed(monkeypatch)
    run: dict[str, Any] = {"run": tmp_path / "run", "episodes": 4, "envs": 2, "seed": 0}
    for env in ("robosuite/stub", f"robosuite/stub@{','.join(names)}"):
        found = json.loads(evaluate(**run, env=env).read_text())
        assert task.made[-1][1] == {"cameras": names, "size": 20, "render": 32, "repeat": 1}
        assert (found["success"]["n"], found["success"]["method"], found["simulator_errors"]) == (4, "Wilson", 0)
        for episode in found["episodes"]:  # they end when they are solved
            assert episode["success"] == (episode["seed"] % 2 == 1)
            assert episode["steps"] == (2 if episode["success"] else 3)
    made = len(task.made)
    for cameras in ("agentview,frontview", "robot0_eye_in_hand,agentview", "agentview"):
        with pytest.raises(BadInputError, match="expected agentview, robot0_eye_in_hand, which the policy was"):
            evaluate(**run, env=f"robosuite/stub@{cameras}")
    recorded(tmp_path / "run", fps=50)
    with pytest.raises(BadInputError, match="50 actions a second; expected 20"):
        evaluate(**run, env="robosuite/stub")
    assert len(task.made) == made


def test_robomimic_s_names_of_images_are_its_cameras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diffused(tmp_path / "run", ("agentview_image", "robot0_eye_in_hand_image"))
    task = stubbed(monkeypatch)
    run: dict[str, Any] = {"run": tmp_path / "run", "episodes": 1, "envs": 1, "seed": 0}
    for named in ("", "@agentview,robot0_eye_in_hand"):
        evaluate(**run, env=f"robosuite/stub{named}")
        assert task.made[-1][1]["cameras"] == ("agentview", "robot0_eye_in_hand")


class FragileStub(Stub):
    """Its physics become unstable in the episode of the fourth reset."""

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        if self.seeds[3:4] == (self._seed,):
            raise FloatingPointError("unstable")
        return super()._advance(action)


def test_episodes_that_raise_are_counted_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diffused(tmp_path / "run")
    task = stubbed(monkeypatch, FragileStub)
    path = evaluate(tmp_path / "run", env="robosuite/stub", episodes=10, envs=1, seed=0)
    found = json.loads(path.read_text())
    assert found["simulator_errors"] == 1
    assert [one.get("error") for one in found["episodes"]].count("FloatingPointError: unstable") == 1
    assert found["episodes"][3]["success"] is False
    assert (found["success"]["n"], len(task.made)) == (10, 2)  # the simulation was built again
    stubbed(monkeypatch, FragileStub)
    with pytest.raises(BadInputError, match="1 of 9 episodes in which the simulator failed"):
        evaluate(tmp_path / "run", env="robosuite/stub", episodes=9, envs=1, seed=0)


@pytest.mark.parametrize(
    ("kind", "overrides", "words"),
    [
        (WiderStub, {}, "actions of 5 dimensions; expected 2"),
        (BareStub, {"cloning__use_state": True}, "states of 9 dimensions; expected 2"),
    ],
)
def test_another_robot_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Stub], overrides: dict[str, Any], words: str
) -> None:
    trained(data, tmp_path / "run", **overrides)
    task = stubbed(monkeypatch, kind)
    with pytest.raises(BadInputError, match=words):
        evaluate(tmp_path / "run", env="metaworld/stub", episodes=2, envs=2, seed=0)
    assert task.closed == len(task.made)
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_proprioception_a_policy_does_not_look_at_may_differ(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run")
    stubbed(monkeypatch, BareStub)
    assert evaluate(tmp_path / "run", env="metaworld/stub", episodes=1, envs=1, seed=0).is_file()


def test_refusals_come_before_the_progress(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(data, tmp_path / "run")
    stubbed(monkeypatch, WiderStub)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal, where the progress is drawn when it begins
    capsys.readouterr()
    with pytest.raises(BadInputError, match="found actions of 5 dimensions"):
        evaluate(tmp_path / "run", env="metaworld/stub", episodes=2)
    assert "Evaluating" not in capsys.readouterr().err


def test_an_evaluation_writes_its_numbers_into_the_card(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run")
    stubbed(monkeypatch)
    evaluate(tmp_path / "run", env="metaworld/stub", episodes=7, seed=5)
    success = json.loads((tmp_path / "run" / "evaluation.json").read_text())["success"]
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"| success | {success['value']:.3f} |" in card
    write_results(tmp_path / "run")
    assert (tmp_path / "run" / "model" / "README.md").read_text() == card


def test_an_evaluation_that_cannot_be_is_one_message(data: Path, tmp_path: Path) -> None:
    trained(data, tmp_path / "run")
    given: dict[str, Any] = {"episodes": 1, "envs": 1, "seed": 0}
    for changes, words in (
        ({"env": None}, "no environment"),
        ({"env": "metaworld/stub", "episodes": 0}, "episodes = 0; .*greater than or equal to 1"),
        ({"env": "metaworld/stub", "envs": 0}, "envs = 0; .*greater than or equal to 1"),
        ({"env": "atari/pong"}, "suite 'atari'"),
        ({"env": "metaworld/stub@corner,corner2"}, "2 cameras; expected 1"),
    ):
        with pytest.raises(BadInputError, match=words):
            evaluate(tmp_path / "run", **(given | changes))
    with pytest.raises(BadInputError, match="no such file"):
        evaluate(tmp_path / "nowhere", env="metaworld/stub", **given)
    assert not (tmp_path / "run" / "evaluation.json").exists()


@pytest.mark.parametrize("given", ["a name", "an instance", "a function"])
def test_videos_of_the_first_episodes_are_written(
    given: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run")
    task = stubbed(monkeypatch)
    settings: dict[str, Any] = {"cameras": None, "size": SIZE}
    made: Any = {
        "a name": "metaworld/stub",
        "an instance": task("metaworld/stub", **settings),
        "a function": partial(task, "metaworld/stub", **settings),
    }[given]
    found = json.loads(evaluate(tmp_path / "run", made, episodes=4, envs=2, video=2).read_text())
    assert [episode["steps"] for episode in found["episodes"]] == [3] * 4
    videos = sorted((tmp_path / "run" / "videos").iterdir())
    assert [video.name for video in videos] == ["episode-000.mp4", "episode-001.mp4"]
    for video in videos:
        info = probe_video(video)
        assert (info.frames, info.height, info.width, info.fps) == (4, SIZE, SIZE, 10)
        assert np.abs(read_frames(video, [0]).astype(int) - 7).max() < 4
    plain = json.loads(evaluate(tmp_path / "run", made, episodes=4, envs=2).read_text())
    assert plain["episodes"] == found["episodes"]


def test_a_model_that_does_not_act_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "dual_encoder", {}, {})
    with pytest.raises(BadInputError, match="'dual_encoder'; expected an agent or a policy"):
        evaluate(tmp_path, "metaworld/stub")
