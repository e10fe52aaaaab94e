"""`counterpoint train` under torchrun: killed, resumed, with other numbers of processes, sharded, on two machines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from counterpoint.formats.minari.writer import write_minari
from counterpoint.training.memory import CAN_SHARD
from counterpoint.training.run import list_checkpoints
from tests.conftest import write_robot_set
from tests.e2e.commands import PROGRAM
from tests.forkserver import Forked, counterpoint, program
from tests.formats.minari.made import goal_episodes
from tests.policies.masked_demos import write_masked_demos
from tests.training.step_data import SIZE, control_store, write_control_set, write_recipe
from tests.training.test_imitation_command import SMALL

pytestmark = pytest.mark.slow
TINY: tuple[str, ...] = ("--encoder.image_size=32", "--encoder.embed_dim=16", "--data.size=32", "--train.batch_size=8")
TINY += ("--train.eval_batches=2", "--train.save_every=4", "--optimizer.ema=0.9", "--device=cpu")
# Gentle steps: training magnifies rounding, which differs between the sums of one process and of several.
GENTLE = ("--optimizer.lr=0.01", "--optimizer.eps=1.0")
TINY += ("--objective.temperature=1.0", "--optimizer.lr=0.002", "--optimizer.eps=1.0")
STEPS = 12  # rounding grows: units of ReLU whose inputs it moves across zero change whole gradients


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_robot_set(folder / "data", 15, 32, {"train": "0:12", "val": "12:15"})
    return folder


def start(
    folder: Path,
    out: str,
    ranks: int,
    *settings: str,
    train: Sequence[str] = ("decisionnce_t-demo", "--data", "data", *TINY),
    unfinished: int | None = None,
) -> Forked:
    """Start the command in `ranks` processes with torchrun's variables, each with one thread, as a process group."""
    environment = os.environ | {"COUNTERPOINT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    words = ("train", *train, "--out", out, *settings)
    return Forked(
        launch, (ranks, words, unfinished), pipes=("stdout",), cwd=folder, env=environment, start_new_session=True
    )


def launch(ranks: int, words: Sequence[str], unfinished: int | None) -> None:
    """Do as `torchrun --nproc-per-node=RANKS -m counterpoint WORDS`, whose every process would import torch anew."""
    os.dup2(1, 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(_rank, (ranks, port, words, unfinished), nprocs=ranks, start_method="fork")  # type: ignore[no-untyped-call]


def _rank(rank: int, ranks: int, port: int, words: Sequence[str], unfinished: int | None) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if unfinished is None:
        counterpoint(*words)
    else:
        program(PROGRAM, str(unfinished), *words)


def finish(process: Forked | subprocess.Popen[str]) -> str:
    told, _ = process.communicate()
    assert process.returncode == 0, told
    return str(told)


def weights(folder: Path, out: str) -> dict[str, Tensor]:
    return load_file(folder / out / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, Tensor]:
    told = finish(start(folder, "two", 2, f"--train.steps={STEPS}"))
    assert (told.count("Wrote "), told.count(f"Training: {STEPS}/{STEPS}")) == (1, 1)  # by the first process alone
    return weights(folder, "two")


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Tensor]:
    finish(start(folder, "one", 1, f"--train.steps={STEPS}"))
    return weights(folder, "one")


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_two_processes_train_what_one_does(two: dict[str, Tensor], one: dict[str, Tensor]) -> None:
    assert_close(two, one)


ENCODER = (f"--encoder.size={SIZE}", "--encoder.stack=2", "--encoder.width=4", "--encoder.embed_dim=8")
KINDS: dict[str, tuple[str, ...]] = {
    "transitions": ("tiny.toml", "--data", "control"),
    "cloning": ("cloning", "--data", "control", "--cloning.hidden=8", "--cloning.shift=1", *ENCODER),
    "imitation": ("small.toml", "--data", "demos"),
    "agent": ("td_infonce", "--data", "maze", "--env=none", "--agent.hidden", "8", "8"),
}


@pytest.mark.release
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_every_kind_as_one_does(kind: str, folder: Path, tmp_path: Path) -> None:
    write_recipe(folder / "tiny.toml", "premier_taco", {"hidden": 16})
    (folder / "small.toml").write_text(SMALL)
    if not (folder / "control").exists():
        write_control_set(folder / "control", {"train": control_store(6)})
        write_masked_demos(folder / "demos")
        write_minari(folder / "maze", goal_episodes((20, 30)), env_id="PointMaze_UMaze-v3", description="Made.")
    for ranks in (1, 2):
        more: tuple[str, ...] = ("--train.steps=8", "--train.batch_size=4", "--device=cpu")
        more += () if kind == "agent" else ("--train.eval_every=0", *GENTLE)
        finish(start(folder, str(tmp_path / str(ranks)), ranks, *more, train=KINDS[kind]))
    assert_close(*(load_file(tmp_path / str(ranks) / "model" / "model.safetensors") for ranks in (2, 1)))


ONLINE: tuple[str, ...] = (
    "td_infonce",
    "--env",
    "PointMaze_UMaze-v3",
    "--env.max_episode_steps=10",
    "--agent.hidden",
    "8",
    "8",
)
ONLINE += ("--online.envs=2", "--online.warmup=40", "--online.steps=80", "--online.updates_per_step=0.25")
ONLINE += ("--online.batch_size=8", "--online.eval_episodes=2", "--online.save_every=20", "--device=cpu")


@pytest.fixture(scope="module")
def online(folder: Path) -> dict[str, Tensor]:
    finish(start(folder, "online-two", 2, train=ONLINE))
    return weights(folder, "online-two")


@pytest.mark.release
def test_two_processes_train_online_as_one_does(folder: Path, online: dict[str, Tensor]) -> None:
    finish(start(folder, "online-one", 1, train=ONLINE))
    assert_close(online, weights(folder, "online-one"))
    one, two = (json.loads((folder / f"online-{n}" / "result.json").read_text()) for n in ("one", "two"))
    assert (one["success"], one["steps"]) == (two["success"], two["steps"])


@pytest.mark.release
def test_two_processes_that_train_online_and_are_killed_go_on_bit_for_bit(
    folder: Path, online: dict[str, Tensor]
) -> None:
    killed = start(folder, "online-cut", 2, train=ONLINE, unfinished=80)
    while len(list_checkpoints(folder / "online-cut" / "checkpoints")) < 2:
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert "Resumed from" in finish(start(folder, "online-cut", 2, train=ONLINE))
    found = weights(folder, "online-cut")
    assert all(torch.equal(found[name], value) for name, value in online.items())


def test_two_processes_that_are_killed_go_on_bit_for_bit(folder: Path, two: dict[str, Tensor]) -> None:
    killed = start(folder, "cut", 2, f"--train.steps={STEPS}", unfinished=STEPS)
    while len(list_checkpoints(folder / "cut" / "checkpoints")) < 2:
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert "Resumed from" in finish(start(folder, "cut", 2, f"--train.steps={STEPS}"))
    found = weights(folder, "cut")
    assert all(torch.equal(found[name], value) for name, value in two.items())


@pytest.mark.release
def test_four_two_and_one_process_go_on_in_one_order(folder: Path, one: dict[str, Tensor]) -> None:
    for ranks, steps in ((4, 4), (2, 8), (1, STEPS)):
        finish(start(folder, "elastic", ranks, f"--train.steps={steps}"))
    assert_close(weights(folder, "elastic"), one)


@pytest.mark.release
@pytest.mark.skipif(not CAN_SHARD, reason="this torch averages gradients of shards otherwise")
def test_shards_of_four_processes_are_loaded_by_one(folder: Path, one: dict[str, Tensor]) -> None:
    finish(start(folder, "shards", 4, "--train.steps=8", "--memory.shard"))
    finish(start(folder, "shards", 1, f"--train.steps={STEPS}"))
    assert_close(weights(folder, "shards"), one)


@pytest.mark.release
def test_two_machines_meet(folder: Path, two: dict[str, Tensor]) -> None:
    """Two launchers of torchrun with one process each, which meet over the loopback device."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--nnodes=2"]
    torchrun += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29517", "--rdzv-id=counterpoint"]
    words = ["-m", "counterpoint", "train", "decisionnce_t-demo", "--data", "data", *TINY, f"--train.steps={STEPS}"]
    environment = os.environ | {"COUNTERPOINT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    machines = [
        subprocess.Popen(
            [*torchrun, *words, "--out", "machines"],
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]
    for machine in machines:
        finish(machine)
    found = weights(folder, "machines")
    assert all(torch.equal(found[name], value) for name, value in two.items())
