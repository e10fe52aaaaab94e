from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.episode import Array
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.encoders.text import SentenceTower
from counterpoint.envs.control import ControlTask, Outcome
from counterpoint.errors import BadInputError
from counterpoint.evaluation.statistics import mean_bca, wilson
from counterpoint.policies import command
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.command import evaluate_policy, is_cloning, train_policy
from tests.policies.demos import demonstrations, spelled
from tests.training.step_data import SIZE, control_store, write_control_set

TINY = {
    "clone.steps": 2,
    "clone.batch_size": 4,
    "clone.lr": 1e-12,
    "clone.cloning.hidden": 8,
    "clone.cloning.shift": 1,
    "encoder.size": SIZE,
    "encoder.stack": 2,
    "encoder.width": 4,
    "encoder.embed_dim": 8,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Instructions "move the dot 0" and "move the dot 1" in turns: 5 episodes to train on, 2 more."""
    return write_control_set(
        tmp_path / "data", {"train": control_store(5), "val": control_store(2, ground=200, seed=1)}
    )


def trained(data: Path, out: Path, **overrides: Any) -> ClonedPolicy:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    assert train_policy("cloning", str(data), out, TINY | dotted) == out / "policy"
    return ClonedPolicy.from_pretrained(out)


class Stub:
    """Solved at the second step for odd seeds; the reward is the seed's last digit at every step."""

    instruction, action_dim, state_dim, horizon = "move the dot", 2, 2, 3
    made: tuple[tuple[str, dict[str, Any]], ...] = ()
    seeds: tuple[int, ...] = ()
    closed = 0

    def __init__(self, name: str, **settings: Any) -> None:
        type(self).made = (*type(self).made, (name, settings))
        self.name, self._size = name, settings["size"]
        self._cameras = len(settings["camera"] or ("usual",))

    def reset(self, seed: int) -> None:
        type(self).seeds = (*type(self).seeds, seed)
        self._seed, self._step = seed, 0

    def draw(self) -> Array:
        picture = np.full((self._size, self._size, 3), 7, np.uint8)
        return picture if self._cameras == 1 else np.stack([picture] * self._cameras)

    def state(self) -> Array:
        return np.zeros(self.state_dim, np.float32)

    def step(self, action: Array) -> Outcome:
        assert action.shape == (2,)
        self._step += 1
        return Outcome(float(self._seed % 10), self._step == 2 and self._seed % 2 == 1)

    def close(self) -> None:
        type(self).closed += 1


class WiderStub(Stub):
    """Of another robot."""

    action_dim = 5


class BareStub(Stub):
    """Of other proprioception."""

    state_dim = 9


def stubbed(monkeypatch: pytest.MonkeyPatch, kind: type[Stub] = Stub) -> type[Stub]:
    own = type("Own", (kind,), {"made": (), "seeds": (), "closed": 0})

    def make(name: str, **settings: Any) -> ControlTask:
        task: ControlTask = own(name, **settings)
        return task

    monkeypatch.setattr(command, "make_task", make)
    return own


def recorded(run: Path, **changes: Any) -> None:
    """Let a policy's demonstrations have been others."""
    path = run / "policy" / "config.json"
    config = json.loads(path.read_text())
    config["demonstrations"] |= changes
    path.write_text(json.dumps(config))


def test_what_cloning_is(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[clone]\nsteps = 3\n")
    other = tmp_path / "other.toml"
    other.write_text("[agent]\nname = 'td3_bc'\n")
    assert is_cloning("cloning")
    assert is_cloning(str(recipe))
    assert not is_cloning(str(other))
    assert not is_cloning("td_infonce")
    assert not is_cloning("premier_taco-metaworld")
    with pytest.raises(BadInputError, match="no file"):
        is_cloning(str(tmp_path / "none.toml"))


def test_demonstrations_become_a_policy(data: Path, tmp_path: Path) -> None:
    policy = trained(data, tmp_path / "run")
    assert policy.demonstrations is not None
    assert policy.demonstrations.count == 5  # those of the training split
    assert policy.instruction == ""  # there are two
    record = json.loads((tmp_path / "run" / "demonstrations.json").read_text())
    assert record == {"path": str(data.resolve()), "cameras": ["front"]}
    assert (policy.demonstrations.fps, policy.demonstrations.frame) == (10, (SIZE, SIZE))
    again = trained(data, tmp_path / "run")  # which has ended, and is read
    for name, value in policy.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_one_instruction_s_demonstrations_are_chosen(data: Path, tmp_path: Path) -> None:
    policy = trained(data, tmp_path / "run", data__instruction="move the dot 1", data__split=None)
    assert policy.demonstrations is not None
    store = control_store(5)
    chosen = [store.actions(1), store.actions(3), control_store(2, seed=1).actions(1)]
    assert policy.demonstrations.count == 3
    assert policy.instruction == "move the dot 1"
    mean = np.concatenate([part for part in chosen if part is not None]).mean(0)
    np.testing.assert_allclose(policy.demonstrations.actions.mean, mean, rtol=1e-6)


def test_the_first_few_demonstrations_are_taken(data: Path, tmp_path: Path) -> None:
    policy = trained(data, tmp_path / "run", data__instruction="move the dot 0", data__episodes=2)
    assert policy.demonstrations is not None
    store = control_store(5)
    parts = [part for part in (store.actions(0), store.actions(2)) if part is not None]
    np.testing.assert_allclose(policy.demonstrations.actions.mean, np.concatenate(parts).mean(0), rtol=1e-6)


def test_a_recipe_s_values_are_used_and_overridden(data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f"[clone]\nsteps = 1\nbatch_size = 2\n[encoder]\nsize = {SIZE}\nstack = 3\nwidth = 4\n")
    train_policy(str(recipe), str(data), tmp_path / "run", {"clone.batch_size": 3})
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (record["clone"]["steps"], record["clone"]["batch_size"], record["clone"]["lr"]) == (1, 3, 1e-4)
    assert ClonedPolicy.from_pretrained(tmp_path / "run").stack == 3


def test_the_encoder_starts_from_a_pretrained_one(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    given = ObservationEncoder(ObservationConfig(size=20, stack=1, width=4, embed_dim=6, centre=True))
    given.centre_on(torch.randint(0, 256, (5, 20, 20, 3), dtype=torch.uint8))
    given.save_pretrained(tmp_path / "pretrained")
    train_policy("cloning", str(data), tmp_path / "run", TINY, encoder=str(tmp_path / "pretrained"))
    policy = ClonedPolicy.from_pretrained(tmp_path / "run")
    assert (policy.encoder.config.size, policy.stack) == (20, 1)
    for name, value in policy.encoder.state_dict().items():
        torch.testing.assert_close(value, given.state_dict()[name])  # at a learning rate of next to nothing


@pytest.mark.parametrize("centre", [False, True])
def test_an_encoder_from_scratch_is_centred_where_that_is_asked_for(
    data: Path, tmp_path: Path, centre: bool
) -> None:
    """On the demonstrations it is trained on, and no others."""
    policy = trained(data, tmp_path / "run", encoder__centre=centre, data__episodes=3)
    store = control_store(5)
    pictures = np.concatenate([store.frames(e, np.arange(14)) for e in range(3)])
    mean = torch.from_numpy(pictures).float().mean(0) / 255
    expected = mean if centre else torch.full_like(mean, 0.5)
    torch.testing.assert_close(policy.encoder.mean_image, expected)


def test_seeds_decide_the_encoder_from_scratch(data: Path, tmp_path: Path) -> None:
    first, again, other = (
        trained(data, tmp_path / name, clone__seed=seed).encoder.state_dict()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"data.episodes": 6}, "5 demonstrations; expected 6 or more"),
        ({"data.instruction": "move the dot 1", "data.episodes": 3}, "2 demonstrations of 'move the dot 1'"),
        ({"data.instruction": "sing"}, "its instructions are ['move the dot 0', 'move the dot 1']"),
        ({"data.split": "test"}, "test"),
        ({"data.camera": "back"}, "back"),
        ({"encoder.cameras": 2}, "camera"),
        ({"clone.step": 3}, "did you mean 'steps'"),
        ({"data.episodes": 0}, "data.episodes = 0"),
    ],
)
def test_bad_demonstrations_are_one_message(
    data: Path, tmp_path: Path, overrides: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInputError) as refused:
        train_policy("cloning", str(data), tmp_path / "run", TINY | overrides)
    assert words in str(refused.value)
    assert "None" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_missing_demonstrations_or_actions_are_one_message(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--data: found nothing"):
        train_policy("cloning", None, tmp_path / "run", TINY)
    with pytest.raises(BadInputError, match="nothing there"):
        train_policy("cloning", str(tmp_path / "nowhere"), tmp_path / "run", TINY)
    videos = write_control_set(tmp_path / "videos", {"train": control_store(action_dim=None)})
    with pytest.raises(BadInputError, match="no actions"):
        train_policy("cloning", str(videos), tmp_path / "run", TINY)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_counts_successes_and_rewards(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run")
    task = stubbed(monkeypatch)
    path = evaluate_policy(tmp_path / "run", env="metaworld/stub", episodes=7, envs=3, seed=5)
    assert path == tmp_path / "run" / "evaluation.json"
    found = json.loads(path.read_text())
    assert (found["env"], found["seed"]) == ("metaworld/stub", 5)
    seeds = [episode["seed"] for episode in found["episodes"]]
    assert sorted(seeds) == sorted(task.seeds)
    assert len(set(seeds)) == 7
    for episode in found["episodes"]:  # to the end, whether solved or not
        seed = episode["seed"]
        assert episode == {
            "seed": seed, "success": seed % 2 == 1, "return": 3.0 * (seed % 10), "steps": 3,
        }  # fmt: skip
    rate = wilson(sum(seed % 2 for seed in seeds), 7)
    assert found["success"] == {
        "value": rate.value, "low": rate.low, "high": rate.high, "n": 7, "method": "Wilson",
    }  # fmt: skip
    returns = mean_bca(np.array([3.0 * (seed % 10) for seed in seeds]))
    assert (found["return"]["value"], found["return"]["low"]) == (returns.value, returns.low)
    assert found["provenance"]["packages"]["torch"]
    settings = {"camera": None, "size": SIZE, "render": SIZE, "repeat": 8}
    assert [given for _, given in task.made] == [settings] * 3
    assert task.closed == 3


def test_seeds_alone_decide_which_episodes(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run")
    stubbed(monkeypatch)

    def episodes(seed: int, envs: int, count: int = 4) -> list[dict[str, Any]]:
        path = evaluate_policy(tmp_path / "run", env="metaworld/stub", episodes=count, envs=envs, seed=seed)
        found: list[dict[str, Any]] = json.loads(path.read_text())["episodes"]
        return found

    first = episodes(0, 1)
    assert episodes(0, 4) == first
    assert episodes(0, 2, count=6)[:4] == first
    assert not {one["seed"] for one in first} & {one["seed"] for one in episodes(1, 1)}


def test_frames_are_drawn_as_large_as_the_demonstrations_were(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run", encoder__size=20)
    task = stubbed(monkeypatch)
    evaluate_policy(tmp_path / "run", env="metaworld/stub@corner", episodes=1, envs=1, seed=0)
    settings = {"camera": ("corner",), "size": 20, "render": SIZE, "repeat": 8}
    assert task.made == (("metaworld/stub", settings),)
    recorded(tmp_path / "run", fps=None, frame=None)  # a policy that does not say
    evaluate_policy(tmp_path / "run", env="metaworld/stub", episodes=1, envs=1, seed=0)
    assert (task.made[-1][1]["render"], task.made[-1][1]["repeat"]) == (None, 1)


def test_actions_last_as_they_did(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(data, tmp_path / "run")
    task = stubbed(monkeypatch)
    run: dict[str, Any] = {"run": tmp_path / "run", "episodes": 1, "envs": 1, "seed": 0}
    for suite, fps, repeat in (("metaworld", 26.7, 3), ("dmc", 50, 1), ("libero", 20, 1)):
        recorded(tmp_path / "run", fps=fps)
        evaluate_policy(**run, env=f"{suite}/stub")
        assert task.made[-1][1]["repeat"] == repeat
    made = len(task.made)
    for changes, words in (
        ({"fps": 10}, "10 actions a second; expected 20. Mend"),
        ({"fps": 30}, "30 actions a second; expected 80 divided by a whole number"),
        ({"frame": [SIZE, 24]}, f"frames of {SIZE} x 24; expected square ones"),
    ):
        recorded(tmp_path / "run", **changes)
        with pytest.raises(BadInputError, match=words):
            evaluate_policy(**run, env="libero/stub" if changes == {"fps": 10} else "metaworld/stub")
    assert len(task.made) == made


def test_numbers_that_are_not_known_are_null(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run")
    stubbed(monkeypatch)
    path = evaluate_policy(tmp_path / "run", env="dmc/walker-walk", episodes=1, envs=1, seed=0)
    assert "NaN" not in path.read_text()
    found = json.loads(path.read_text())
    assert found["success"] is None  # dm_control does not say when a task is solved
    assert found["return"]["low"] is None
    assert found["return"]["value"] == found["episodes"][0]["return"]


def test_a_policy_of_several_instructions_is_told_the_task_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def embed(tower: SentenceTower, text: str) -> torch.Tensor:
        told.append(text)
        return spelled(tower, text)

    monkeypatch.setattr(SentenceTower, "embed", embed)
    store = demonstrations(4, size=SIZE, action_dim=2, state_dim=2, tasks=2)
    data = write_control_set(tmp_path / "data", {"train": store})
    policy = trained(data, tmp_path / "run", clone__cloning__language=True)
    assert policy.instruction == ""
    stubbed(monkeypatch)
    told.clear()
    evaluate_policy(tmp_path / "run", env="metaworld/stub", episodes=2, envs=1, seed=0)
    assert set(told) == {"move the dot"}


@pytest.mark.parametrize(
    ("kind", "overrides", "words"),
    [
        (WiderStub, {}, "actions of 5 dimensions; expected 2"),
        (BareStub, {"clone__cloning__use_state": True}, "states of 9 dimensions; expected 2"),
    ],
)
def test_another_robot_is_refused(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Stub],
    overrides: dict[str, Any],
    words: str,
) -> None:
    trained(data, tmp_path / "run", **overrides)
    task = stubbed(monkeypatch, kind)
    with pytest.raises(BadInputError, match=words):
        evaluate_policy(tmp_path / "run", env="metaworld/stub", episodes=2, envs=2, seed=0)
    assert task.closed == len(task.made)
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_proprioception_a_policy_does_not_look_at_may_differ(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(data, tmp_path / "run")
    stubbed(monkeypatch, BareStub)
    assert evaluate_policy(tmp_path / "run", env="metaworld/stub", episodes=1, envs=1, seed=0).is_file()


def test_an_evaluation_that_cannot_be_is_one_message(data: Path, tmp_path: Path) -> None:
    trained(data, tmp_path / "run")
    given: dict[str, Any] = {"episodes": 1, "envs": 1, "seed": 0}
    for changes, words in (
        ({"env": None}, "no environment"),
        ({"env": "metaworld/stub", "episodes": 0}, "--episodes: found 0"),
        ({"env": "metaworld/stub", "envs": 0}, "envs: found 0"),
        ({"env": "atari/pong"}, "suite 'atari'"),
        ({"env": "metaworld/stub@corner,corner2"}, "2 cameras; expected 1"),
    ):
        with pytest.raises(BadInputError, match=words):
            evaluate_policy(tmp_path / "run", **(given | changes))
    with pytest.raises(BadInputError, match="no such file"):
        evaluate_policy(tmp_path / "nowhere", env="metaworld/stub", **given)
    assert not (tmp_path / "run" / "evaluation.json").exists()
