"""What every collection shares, shown on Meta-World's."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoint import workers
from counterpoint.config import validate
from counterpoint.envs import collect as collection
from counterpoint.envs.collect import episode_seed, plan_jobs, slots, split_ranges
from counterpoint.envs.metaworld import collect
from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld
from counterpoint.envs.metaworld.env import INSTRUCTIONS
from counterpoint.envs.recording import Recording, Staging
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from tests.marks import quick

QUICK = ("handle-press", "coffee-button")


def config(out: Path, **changes: Any) -> MetaWorldCollectConfig:
    settings: dict[str, Any] = {"tasks": QUICK, "episodes": 2, "val_episodes": 1, "size": 32, "workers": 1}
    return validate(MetaWorldCollectConfig, {"out": out, **settings, **changes}, "collect metaworld")


def test_order_and_splits(tmp_path: Path) -> None:
    tasks = ("handle-press-v3", "coffee-button-v3")
    wanted = collect._MetaWorldCollection(
        config(tmp_path / "set", tasks=tasks, episodes=3, val_episodes=0, test_episodes=2)
    )
    plan = slots(wanted)
    assert [slot.place for slot in plan] == list(range(10))
    assert [slot.split for slot in plan] == ["train"] * 6 + ["test"] * 4
    assert [slot.task for slot in plan[:6]] == ["handle-press-v3"] * 3 + ["coffee-button-v3"] * 3
    assert split_ranges(wanted) == {"train": "0:6", "test": "6:10"}


@pytest.mark.slow
@given(tasks=st.integers(1, 50), episodes=st.integers(0, 30), workers=st.integers(1, 8), keep=st.randoms())
def test_jobs_divide_what_is_pending(tasks: int, episodes: int, workers: int, keep: Any) -> None:
    names = tuple(INSTRUCTIONS)[:tasks]
    plan = slots(collect._MetaWorldCollection(config(Path("set"), tasks=names, episodes=episodes, val_episodes=0)))
    pending = [slot for slot in plan if keep.random() < 0.7]
    jobs = plan_jobs(pending, workers)
    assert sorted(slot.place for job in jobs for slot in job) == [slot.place for slot in pending]
    assert all(len({slot.task for slot in job}) == 1 for job in jobs)
    if workers > 1:
        assert len(jobs) >= min(8 * workers, len(pending))


def test_seeds_stay_when_more_is_asked_for() -> None:
    seeds = {
        episode_seed(0, task, split, number, attempt)
        for task in QUICK
        for split in ("train", "val", "test")
        for number in range(20)
        for attempt in range(2)
    }
    assert len(seeds) == 2 * 3 * 20 * 2
    assert episode_seed(0, "drawer-open-v3", "val", 2) == 2302215871
    assert episode_seed(1, "drawer-open-v3", "val", 2) != episode_seed(0, "drawer-open-v3", "val", 2)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "thesis.tex").touch()
    with pytest.raises(BadInputError, match="choose another --out"):
        collect_metaworld(config(tmp_path / "set"))
    assert (tmp_path / "set" / "thesis.tex").exists()


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_a_staging_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set.partial").mkdir()
    (tmp_path / "set.partial" / "thesis.tex").touch()
    with pytest.raises(BadInputError, match=r"without collect\.json"):
        collect_metaworld(config(tmp_path / "set"))
    assert (tmp_path / "set.partial" / "thesis.tex").exists()


def pretend(monkeypatch: pytest.MonkeyPatch, solved: list[bool]) -> None:
    """Let the simulation be a stub whose k-th recording is solved or not."""
    outcomes = iter(solved)

    def recorded(*_: Any, **__: Any) -> Recording:
        frames = {"corner2": np.zeros((2, 32, 32, 3), np.uint8)}
        rows = np.zeros((2, 4), np.float32)
        return Recording(rows, rows, np.zeros(2, np.float32), next(outcomes), frames)

    env = Mock(action_dim=4, state_dim=4, environment_dim=0, describe_rendering=lambda: {"canary": "made"})
    monkeypatch.setattr(collection, "record", recorded)
    monkeypatch.setattr(collect, "MetaWorldEnv", lambda *_, **__: env)


def test_failed_episodes_are_kept_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = {"tasks": ("reach",), "episodes": 2, "val_episodes": 0}
    pretend(monkeypatch, [False, True])
    kept = collect_metaworld(config(tmp_path / "kept", **wanted))
    assert [episode.success for episode in open_dataset(kept).episodes] == [False, True]

    pretend(monkeypatch, [False, False, True, True])
    only = collect_metaworld(config(tmp_path / "only", successful_only=True, **wanted))
    assert [episode.success for episode in open_dataset(only).episodes] == [True, True]
    told = json.loads((only / "meta" / "info.json").read_text())["counterpoint"]
    assert told["dropped"] == 2
    assert told["episodes"]["seed"][0] == episode_seed(0, "reach-v3", "train", 0, attempt=2)
    assert "2 failed ones dropped" in capfd.readouterr().err


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were recorded, by a stub whose episodes are a function of their seed."""
    recorded: list[int] = []

    def record(_: Any, __: Any, seed: int, **___: Any) -> Recording:
        recorded.append(seed)
        rng = np.random.default_rng(seed)
        length = int(rng.integers(3, 9))
        frames = {"corner2": rng.integers(0, 256, (length, 32, 32, 3), dtype=np.uint8)}
        rows = rng.normal(size=(length, 4)).astype(np.float32)
        return Recording(rows, rows + 1, rows[:, 0], True, frames)

    env = Mock(action_dim=4, state_dim=4, environment_dim=0, describe_rendering=lambda: {"canary": "made"})
    monkeypatch.setattr(collection, "record", record)
    monkeypatch.setattr(collect, "MetaWorldEnv", lambda *_, **__: env)
    return recorded


def stop_after(monkeypatch: pytest.MonkeyPatch, recorded: list[int], count: int) -> None:
    """Interrupt the collection before the next episode after `count` is kept."""
    staged = Staging.add

    def add(*arguments: Any, **more: Any) -> None:
        if len(recorded) > count:
            raise KeyboardInterrupt
        staged(*arguments, **more)

    monkeypatch.setattr(Staging, "add", add)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("lossless", [False, True])
def test_more_episodes_extend_a_data_set_and_record_only_what_is_new(
    tmp_path: Path, numbered: list[int], capfd: pytest.CaptureFixture[str], lossless: bool
) -> None:
    """What comes out is, byte for byte, what the larger recording would have been."""
    smaller, larger = {"episodes": 2, "val_episodes": 1}, {"episodes": 3, "val_episodes": 2}
    out = collect_metaworld(config(tmp_path / "set", lossless=lossless, **smaller))
    before = len(numbered)
    assert before == 2 * 3
    assert collect_metaworld(config(tmp_path / "set", lossless=lossless, **larger)) == out
    assert len(numbered) - before == 2 * 5 - before
    assert "10/10 episodes" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]
    whole = collect_metaworld(config(tmp_path / "whole", lossless=lossless, **larger))
    assert content(out) == content(whole)
    with pytest.raises(BadInputError, match="more episodes of the same settings extend it"):
        collect_metaworld(config(tmp_path / "set", lossless=lossless, **smaller))
    with pytest.raises(BadInputError, match=r"config\.noise = 0"):
        collect_metaworld(config(tmp_path / "set", lossless=lossless, noise=0.5, **larger))


@pytest.mark.parametrize("stop", quick(["assemble"], ["record", "assemble", "rename"]))
def test_an_extension_that_was_interrupted_continues(
    tmp_path: Path, numbered: list[int], monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    smaller, larger = {"episodes": 1, "val_episodes": 0}, {"episodes": 3, "val_episodes": 0}
    out = collect_metaworld(config(tmp_path / "set", **smaller))
    whole = content(collect_metaworld(config(tmp_path / "whole", **larger)))
    numbered.clear()
    with monkeypatch.context() as broken:
        rename = Path.rename

        def refuse(path: Path, target: Path) -> Path:
            if path.name == "dataset" and target == out:
                raise KeyboardInterrupt
            return rename(path, target)

        def interrupt(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        if stop == "record":
            staged = Staging.add
            broken.setattr(Staging, "add", lambda *a, **k: interrupt() if len(numbered) > 2 else staged(*a, **k))
        elif stop == "assemble":
            broken.setattr(collect._MetaWorldCollection, "assemble", interrupt)
        else:
            broken.setattr(Path, "rename", refuse)
        with pytest.raises(KeyboardInterrupt):
            collect_metaworld(config(tmp_path / "set", **larger))
    assert out.exists() == (stop != "rename")
    collect_metaworld(config(tmp_path / "set", **larger))
    assert content(out) == whole
    assert len(numbered) == (5 if stop == "record" else 4)
    assert not (tmp_path / "set.partial").exists()


def test_resuming_counts_the_same_episodes_on_both_sides(
    tmp_path: Path, numbered: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = config(tmp_path / "set", episodes=4, val_episodes=0, tasks=("reach",))
    with monkeypatch.context() as broken:
        stop_after(broken, numbered, 2)
        with pytest.raises(KeyboardInterrupt):
            collect_metaworld(wanted)
    capfd.readouterr()
    collect_metaworld(wanted)
    shown = capfd.readouterr().err
    assert "Collecting: 4/4 episodes" in shown
    assert "4 of 4 solved" in shown
    assert "dropped" not in shown
    assert "simulator" not in shown
    assert collection.summary(tmp_path / "set") == "4 episodes"


def test_a_task_that_is_never_solved_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, [False] * 20)
    with pytest.raises(BadInputError, match=r"20 scenes of reach-v3 in a row"):
        collect_metaworld(config(tmp_path / "set", tasks=("reach",), successful_only=True))


class FakePool:
    """In place of a pool of processes whose worker dies."""

    def __init__(self, *_: Any) -> None:
        self._processes: dict[int, Any] = {}

    def submit(self, function: Any, *_: Any) -> Future[int]:
        future: Future[int] = Future()
        if function is os.getpid:
            future.set_result(0)
        else:
            future.set_exception(BrokenProcessPool())
        return future

    def shutdown(self, **_: Any) -> None: ...


def test_the_death_of_a_worker_is_told_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, [])
    monkeypatch.setattr(workers, "ProcessPoolExecutor", FakePool)
    with pytest.raises(BadInputError, match="run the same again to continue"):
        collect_metaworld(config(tmp_path / "set", tasks=("reach",), workers=2))
    assert (tmp_path / "set.partial" / "collect.json").exists()


class SleepyCollection(collect._MetaWorldCollection):
    """Its first worker raises, the other would take for ever."""

    def record(self, env: Any, slot: Any, seed: int) -> Recording:
        (self.config.out.parent / f"{slot.place}.{os.getpid()}").touch()
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            raise BadInputError("SIGINT", "heard", "left to the parent", "")
        if slot.place == 0:
            while len(list(self.config.out.parent.glob("*.*"))) < 3:
                time.sleep(0.01)
            raise BadInputError("the first", "trouble", "none", "")
        time.sleep(600)
        raise AssertionError

    def identity(self) -> dict[str, Any]:
        return {}

    def make(self, task: str) -> Any:
        return None


@pytest.mark.slow
def test_an_error_ends_the_other_workers_at_once(tmp_path: Path) -> None:
    wanted = config(tmp_path / "set", tasks=("reach-v3", "push-v3"), episodes=1, val_episodes=0, workers=2)
    with pytest.raises(BadInputError, match="the first: found trouble"):
        collection.collect(SleepyCollection(wanted))
    workers = {int(path.suffix[1:]) for path in tmp_path.glob("[01].*")}
    assert len(workers) == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
