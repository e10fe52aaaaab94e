from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from counterpoint.data.anchors import Anchors
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore, MemoryStore
from counterpoint.data.store_views import SubsetStore, task_numbers
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.objectives import StepObjective, objective_names
from counterpoint.training.recipe import load_recipe
from counterpoint.training.run import METRICS, list_checkpoints, load_checkpoint
from counterpoint.training.train import train
from counterpoint.training.transitions import TransitionsRecipe, build_step_objective, evenly_spaced_frames
from tests.data.numbered import numbered_store
from tests.data.reading import read_episode
from tests.marks import quick
from tests.training.runs import pretrain
from tests.training.step_data import SIZE, control_store, write_control_set, write_recipe
from tests.training.test_checkpoint import equal

NARROW: dict[str, dict[str, Any]] = {
    "premier_taco": {"hidden": 16},
    "taco": {"hidden": 16},
    "curl": {},
    "atc": {"hidden": 16, "compressed": 8},
    "spr": {"steps": 2, "hidden": 16, "projected": 8},
    "inverse_dynamics": {"hidden": 16},
    "multitask_cloning": {"hidden": 16, "tasks": 2, "task_dim": 4},
    "td3_bc": {"hidden": 16},
    "smart": {"context": 4, "layers": 1, "heads": 2, "width": 8},
}
"""Settings that keep each objective's networks small."""


def recipe(folder: Path, objective: str = "premier_taco") -> str:
    return str(write_recipe(folder / f"{objective}.toml", objective, NARROW[objective]))


def load_step_config(name: str, overrides: dict[str, Any]) -> TransitionsRecipe:
    found = load_recipe(name, overrides)
    assert isinstance(found, TransitionsRecipe)
    return found


def pretrain_steps(config: TransitionsRecipe, store: EpisodeStore, out: Path, val: EpisodeStore | None = None) -> Path:
    return train(config, store, out, validation=val).model


def data(folder: Path, name: str = "data", **settings: Any) -> Path:
    train = control_store(4, **settings)
    return write_control_set(folder / name, {"train": train, "val": control_store(2, seed=1, **settings)})


def weights(encoder: Path) -> dict[str, torch.Tensor]:
    return load_file(encoder / "model.safetensors")


def logged(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def mean_image_of(store: EpisodeStore) -> torch.Tensor:
    images = [store.frames(e, np.arange(info.length)) for e, info in enumerate(store.episodes)]
    return torch.from_numpy(np.concatenate(images)).float().mean(0) / 255


def last_state(run: Path) -> dict[str, Any]:
    state = load_checkpoint(list_checkpoints(run / "checkpoints")[-1])[1]
    return {name: value for name, value in state.items() if name != METRICS}  # a run is scored at its end, too


def test_the_folder_holds_the_encoder_that_was_trained(tmp_path: Path) -> None:
    folder = pretrain(recipe(tmp_path), data(tmp_path), tmp_path / "run", {})
    assert folder == tmp_path / "run" / "model"
    config = load_step_config(recipe(tmp_path), {})
    trained = build_step_objective(config, control_store())
    trained.load_state_dict(last_state(tmp_path / "run")["learner"]["objective"])
    frames = torch.randint(0, 256, (3, 2, SIZE, SIZE, 3), dtype=torch.uint8)
    with torch.no_grad():
        expected = trained.encoder.eval()(frames)
        for place in (folder, tmp_path / "run"):  # a run holds it too
            loaded = ObservationEncoder.from_pretrained(place)
            assert torch.equal(loaded(frames), expected)
            assert loaded.config == trained.encoder.config
    fresh = build_step_objective(config, control_store()).encoder
    assert not torch.equal(next(fresh.parameters()), next(trained.encoder.parameters()))


def test_only_training_frames_centre_the_encoder(tmp_path: Path) -> None:
    found = []
    for name, ground in (("dark", 0), ("bright", 220)):
        train, val = control_store(2), control_store(3, ground=ground)
        path = write_control_set(tmp_path / name, {"train": train, "val": val})
        encoder = ObservationEncoder.from_pretrained(
            pretrain(recipe(tmp_path), path, tmp_path / f"run-{name}", {"train.steps": 1})
        )
        torch.testing.assert_close(encoder.mean_image, mean_image_of(train))
        found.append(encoder)
    assert torch.equal(found[0].mean_image, found[1].mean_image)
    assert torch.equal(found[0].deviation, found[1].deviation)


@pytest.mark.parametrize(("lengths", "count"), [([5, 7, 3], 4), ([5, 7, 3], 100), ([1, 1, 2, 9], 5), ([4], 1)])
def test_frames_for_centring_are_evenly_spaced_over_all_episodes(lengths: list[int], count: int) -> None:
    places = [(episode, step) for episode, length in enumerate(lengths) for step in range(length)]
    frames = evenly_spaced_frames(numbered_store(lengths), count)
    seen = [tuple(image[0, 0, :2].tolist()) for image in frames]  # red and green tell the place
    assert seen == places[:: max(1, len(places) // count)]
    other = evenly_spaced_frames(numbered_store(lengths), count, "back")
    assert torch.equal(other, 255 - frames)


# Of the last two, one draws from the global stream while it trains and the other has dropout and masks.
@pytest.mark.parametrize("objective", quick(["td3_bc"], ["premier_taco", "td3_bc", "smart"]))
def test_an_interrupted_run_ends_in_the_same_bits(tmp_path: Path, objective: str) -> None:
    store, val = control_store(4, rewards=True), control_store(2, rewards=True, seed=1)
    optimizer = {"optimizer.ema": 0.9, "optimizer.encoder_lr": 1e-5, "optimizer.weight_decay": 0.1}
    config = load_step_config(recipe(tmp_path, objective), optimizer)
    whole = pretrain_steps(config, store, tmp_path / "whole", val)
    cut = load_step_config(recipe(tmp_path, objective), {**optimizer, "train.steps": 3})
    before = weights(pretrain_steps(cut, store, tmp_path / "cut", val))
    torch.manual_seed(17)  # another process starts with other random numbers
    again = pretrain_steps(config, store, tmp_path / "cut", val)
    assert any(not torch.equal(value, before[name]) for name, value in weights(again).items())
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(whole).items())
    assert equal(last_state(tmp_path / "whole"), last_state(tmp_path / "cut"))


def test_a_run_through_the_recipe_goes_on(tmp_path: Path) -> None:
    whole = pretrain(recipe(tmp_path), data(tmp_path), tmp_path / "whole", {})
    for steps in (2, 4):
        cut = pretrain(recipe(tmp_path), tmp_path / "data", tmp_path / "cut", {"train.steps": steps})
    assert all(torch.equal(value, weights(cut)[name]) for name, value in weights(whole).items())
    record = json.loads((tmp_path / "cut" / "config.json").read_text())
    assert record["data"]["path"] == str(tmp_path / "data")
    assert record["recipe"] == recipe(tmp_path)
    assert record["provenance"]["packages"]["torch"]


def test_a_run_belongs_to_its_settings_and_data(tmp_path: Path) -> None:
    config = load_step_config(recipe(tmp_path), {"train.steps": 1})
    pretrain_steps(config, control_store(), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    for changed, store in (
        (load_step_config(recipe(tmp_path), {"train.steps": 1, "objective.window": 2}), control_store()),
        (config, control_store(seed=5)),
    ):
        with pytest.raises(BadInputError, match="a run with another"):
            pretrain_steps(changed, store, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_domains_of_other_actions_train_together(tmp_path: Path) -> None:
    """The second has no validation split, so that the scored batches are narrower than those trained on."""
    narrow = data(tmp_path / "a", "arm", action_dim=2)
    wide = write_control_set(tmp_path / "b" / "arm", {"train": control_store(3, action_dim=5, seed=2)})
    folder = pretrain(recipe(tmp_path), [narrow, wide], tmp_path / "run", {})
    state = last_state(tmp_path / "run")["learner"]["objective"]
    assert state["heads.psi.0.0.weight"].shape[1] == 5
    assert {line["split"] for line in logged(tmp_path / "run")} == {"train", "val"}
    both = [open_dataset(path, split="train") for path in (narrow, wide)]
    encoder = ObservationEncoder.from_pretrained(folder)
    counts = [sum(info.length for info in store.episodes) for store in both]
    joined = sum(n * mean_image_of(store) for n, store in zip(counts, both, strict=True)) / sum(counts)
    torch.testing.assert_close(encoder.mean_image, torch.as_tensor(joined))


def test_validation_is_logged_with_the_window_accuracy(tmp_path: Path) -> None:
    pretrain(recipe(tmp_path), data(tmp_path), tmp_path / "run", {})
    lines = logged(tmp_path / "run")
    assert [(line["step"], line["split"]) for line in lines] == [
        (2, "train"), (2, "val"), (4, "train"), (4, "val"),
    ]  # fmt: skip
    for line in lines:
        assert 0 <= line["window_accuracy"] <= 1
        assert {"loss", "chance_gap"} <= line.keys()
    pretrain(recipe(tmp_path), tmp_path / "data", tmp_path / "blind", {"data.val_split": None})
    assert {line["split"] for line in logged(tmp_path / "blind")} == {"train"}


@pytest.mark.slow
def test_training_learns_how_the_dot_moved(tmp_path: Path) -> None:
    changes = {"train.steps": 120, "train.log_every": 40, "train.eval_every": 40, "train.eval_batches": 2}
    changes |= {"train.batch_size": 16, "encoder.width": 12, "encoder.embed_dim": 16}
    config = load_step_config(
        recipe(tmp_path, "inverse_dynamics"),
        changes | {"optimizer.lr": 1e-2, "objective.hidden": 64, "objective.shift": 0},
    )
    pretrain_steps(config, control_store(24), tmp_path / "run", control_store(8, seed=1))
    for split in ("train", "val"):
        lines = [line for line in logged(tmp_path / "run") if line["split"] == split]
        assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]
        assert lines[-1]["action_error"] < 0.5 * lines[-1]["action_error_constant"]


def test_training_starts_from_given_weights(tmp_path: Path) -> None:
    config = load_step_config(recipe(tmp_path), {})
    start = pretrain_steps(config, control_store(), tmp_path / "first")
    given = config.model_copy(update={"initialize_from": str(tmp_path / "first")})
    encoder = build_step_objective(given, control_store(ground=200, seed=7)).encoder
    found = encoder.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in weights(start).items())
    slow = given.model_copy(update={"optimizer": config.optimizer.model_copy(update={"lr": 1e-12})})
    tuned = weights(pretrain_steps(slow, control_store(ground=200, seed=7), tmp_path / "second"))
    for name, value in weights(start).items():  # mean image and deviation are those it was trained with
        torch.testing.assert_close(tuned[name], value)


def test_frames_of_another_size_than_the_given_encoder_s_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = load_step_config(recipe(tmp_path), {})
    ObservationEncoder(config.encoder.model_copy(update={"size": 20})).save_pretrained(tmp_path / "larger")
    with pytest.raises(BadInputError, match="expected size = 20"):
        pretrain(recipe(tmp_path), data(tmp_path), tmp_path / "run", {"initialize_from": str(tmp_path / "larger")})


def test_every_objective_has_small_settings_here() -> None:
    assert set(NARROW) == set(objective_names(StepObjective))


@pytest.mark.parametrize("objective", objective_names(StepObjective))
def test_every_objective_takes_a_step(tmp_path: Path, objective: str) -> None:
    """Two steps: TD3 + BC's policy learns at every second one."""
    store = control_store(3, rewards=True)
    config = load_step_config(recipe(tmp_path, objective), {"train.steps": 2})
    torch.manual_seed(config.train.seed)
    before = build_step_objective(config, store).encoder
    after = ObservationEncoder.from_pretrained(pretrain_steps(config, store, tmp_path / "run"))
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(moved)
    (line,) = logged(tmp_path / "run")
    assert np.isfinite([value for name, value in line.items() if name != "split"]).all()


@pytest.mark.parametrize("balance", ["steps", "tasks"])
def test_the_balance_of_the_recipe_reaches_the_batches(
    tmp_path: Path, balance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    plain = Sampler.__init__

    def spied(self: Sampler, *args: Any, **settings: Any) -> None:
        plain(self, *args, **settings)
        seen.append(self.bound.spec)

    monkeypatch.setattr(Sampler, "__init__", spied)
    config = load_step_config(recipe(tmp_path), {"train.steps": 1, "data.balance": balance})
    pretrain_steps(config, control_store(), tmp_path / "run", control_store(seed=1))
    assert [isinstance(spec.index, Anchors) and spec.index.balance for spec in seen] == [balance] * 2


def refusal(store: MemoryStore, folder: Path, objective: str = "premier_taco") -> str:
    with pytest.raises(BadInputError) as refused:
        pretrain_steps(load_step_config(recipe(folder, objective), {}), store, folder / "run")
    assert not (folder / "run" / "config.json").exists()
    assert not (folder / "run" / "model").exists()
    return str(refused.value)


def test_data_that_lack_something_are_refused(tmp_path: Path) -> None:
    assert "no actions" in refusal(control_store(action_dim=None), tmp_path)
    assert "no rewards" in refusal(control_store(), tmp_path, "td3_bc")
    assert "none longer than 3 steps" in refusal(control_store(length=3), tmp_path)
    path = write_control_set(tmp_path / "videos", {"train": control_store(action_dim=None)})
    with pytest.raises(BadInputError, match="no actions"):
        pretrain(recipe(tmp_path), path, tmp_path / "run", {})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective.windows": 3}, "did you mean 'window'"),
        ({"objective.window": 0}, "window = 0"),
        ({"objective.name": "premier_tacos"}, "objective.name = 'premier_tacos'"),
        ({"encoder.sise": 3}, "did you mean 'size'"),
        ({"data.balance": "even"}, "data.balance = 'even'"),
        ({"data.camera": "back"}, "back"),
        ({"data.train_split": "training"}, "training"),
        ({"train.steps": None}, "a number of steps"),
        ({"initialize_from": "nowhere/at/all"}, "nowhere/at/all"),
    ],
)
def test_a_bad_recipe_is_one_message(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = data(tmp_path)
    with pytest.raises(BadInputError) as refused:
        pretrain(recipe(tmp_path), path, tmp_path / "run", changes)
    assert words in str(refused.value)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("objective", ["curl", "atc"])
def test_what_looks_at_no_actions_learns_from_videos(tmp_path: Path, objective: str) -> None:
    config = load_step_config(recipe(tmp_path, objective), {"train.steps": 1})
    folder = pretrain_steps(config, control_store(action_dim=None), tmp_path / "run")
    assert ObservationEncoder.from_pretrained(folder).embed_dim == 8


def test_objectives_on_clips_take_one_data_set(tmp_path: Path) -> None:
    path = data(tmp_path)
    with pytest.raises(BadInputError, match="2 data sets; expected one"):
        pretrain("decisionnce_t-demo", [path, path], tmp_path / "run", {})
    mixed = path.parent / "mixed.toml"
    mixed.write_text('kind = "transitions"\n[objective]\nname = "decisionnce_t"\n')
    with pytest.raises(BadInputError, match=r"objective\.name = 'decisionnce_t'"):
        load_recipe(mixed)


def test_validation_knows_tasks_by_their_numbers_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first data set has none to validate on, and the second's episodes come in another order there."""
    first = write_control_set(tmp_path / "first", {"train": control_store(2)})
    val = SubsetStore(control_store(4, seed=1), [1, 0])
    kept = MemoryStore([read_episode(val, episode) for episode in range(2)])
    second = write_control_set(tmp_path / "second", {"train": control_store(4, seed=2), "valid": kept})
    tasks = []
    plain = Sampler.__init__

    def spied(self: Sampler, *args: Any, **settings: Any) -> None:
        plain(self, *args, **settings)
        tasks.append(task_numbers(self.store, self.bound.tasks).tolist())

    monkeypatch.setattr(Sampler, "__init__", spied)
    changes = {"objective.tasks": 4, "train.steps": 1, "train.eval_every": 1}
    name = recipe(tmp_path, "multitask_cloning")
    pretrain(name, [first, second], tmp_path / "run", changes)
    assert tasks == [[0, 1, 2, 3, 2, 3], [3, 2]]
    assert "val" in {line["split"] for line in logged(tmp_path / "run")}  # of `valid`, as robomimic calls it
    record = json.loads((tmp_path / "run" / "config.json").read_text())["tasks"]
    words = ["move the dot 0", "move the dot 1"]
    assert [(one["domain"], one["instruction"]) for one in record] == [
        (domain, instruction) for domain in ("first", "second") for instruction in words
    ]
    store = control_store(4, seed=2)
    parts = [part for part in (store.actions(1), store.actions(3)) if part is not None]
    actions = np.concatenate(parts)
    assert record[3]["actions"]["mean"] == pytest.approx(actions.mean(0).tolist(), abs=1e-6)
    assert record[3]["actions"]["deviation"] == pytest.approx(actions.std(0).tolist(), abs=1e-6)
    assert record[3]["actions"]["low"] == pytest.approx(actions.min(0).tolist())
    assert record[3]["actions"]["high"] == pytest.approx(actions.max(0).tolist())


def test_frames_of_two_sizes_are_refused(tmp_path: Path) -> None:
    episodes = [read_episode(control_store(2), number) for number in range(2)]
    frames = episodes[1].frames["front"].repeat(2, 1).repeat(2, 2)
    store = MemoryStore([episodes[0], replace(episodes[1], frames={"front": frames})])
    assert "episode 1: found frames of 32 x 32; expected 16 x 16" in refusal(store, tmp_path)


def test_a_data_set_given_twice_is_refused(tmp_path: Path) -> None:
    path = data(tmp_path)
    with pytest.raises(BadInputError, match="its own name"):
        pretrain(recipe(tmp_path), [path, path], tmp_path / "run", {})
