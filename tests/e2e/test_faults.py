"""Runs that lose nothing: kills, full disks, signals, damage and two processes, on tiny runs of every long command."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.faults.jobs import JOBS, WORKING, Job, differences
from tests.e2e.faults.trials import Bench, Outcome, flip, of_interruption, truncate

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(shutil.which("cc") is None, reason="compiles what watches file operations"),
]

NAMES = {job.name: job for job in (*JOBS, *WORKING)}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("faults") / "bench")
    yield made
    made.close()


def unharmed(*outcomes: Outcome) -> None:
    lost = [f"{one.fault}, {one.job}, {one.detail}: {one.troubles}" for one in outcomes if one.troubles]
    assert not lost, "\n".join(lost)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train transitions", "studies"])
def test_kill_9_inside_a_file_operation_loses_nothing(bench: Bench, name: str) -> None:
    unharmed(bench.kill(NAMES[name], random.Random(1), inside=True))


@pytest.mark.slow
def test_a_full_disk_is_one_message_and_the_run_goes_on_when_there_is_room(bench: Bench) -> None:
    job = NAMES["train transitions"]
    outcomes = [bench.fill(job, at) for at in (3, len(bench.writes(job)) // 2)]
    assert all(one.hit for one in outcomes)
    unharmed(*outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_signal_is_one_message_and_the_run_goes_on(bench: Bench, number: signal.Signals) -> None:
    unharmed(bench.stop(NAMES["train transitions"], random.Random(2), number=number, inside=True))


@pytest.mark.slow
def test_kills_lose_nothing(bench: Bench) -> None:
    """Kill every fifth command, for time; `python -m tests.e2e.faults --kills 50` kills all."""
    rng = random.Random(0)
    unharmed(*(bench.kill(job, rng, inside=number % 2 == 0) for number, job in enumerate(JOBS[::5])))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train clips", "label"])
def test_a_full_disk_of_other_commands(bench: Bench, name: str) -> None:
    unharmed(bench.fill(NAMES[name], random.Random(3).randint(1, len(bench.writes(NAMES[name])))))


@pytest.mark.slow
@pytest.mark.parametrize("job", WORKING[:1], ids=lambda job: job.name)
def test_a_worker_that_the_kernel_kills(bench: Bench, job: Job) -> None:
    unharmed(bench.orphan(job, random.Random(4)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state.safetensors"])
@pytest.mark.parametrize("spoil", [truncate, flip])
def test_damaged_files_are_refused_or_made_again(bench: Bench, name: str, spoil: object) -> None:
    how = {truncate: "half", flip: "a flipped bit"}[spoil]  # type: ignore[index]
    unharmed(bench.damage(NAMES["train transitions"], random.Random(5), name=name, how=how, spoil=spoil))  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_processes_in_one_folder(bench: Bench) -> None:
    unharmed(*(bench.two(NAMES[name]) for name in ("train clips",)))


@pytest.mark.slow
def test_the_clock_may_jump(bench: Bench) -> None:
    unharmed(bench.jump(NAMES["train agent (online)"]))


def test_the_table_counts_by_fault_and_command() -> None:
    from tests.e2e.faults.__main__ import table

    lines = table([Outcome("kill", "train", "", True), Outcome("kill", "train", "", False, ("differs",))]).splitlines()
    assert lines[-1] == "| kill | train | 2 | 1 | 1 |"


def test_a_checkpoint_that_an_interruption_saves_is_no_loss() -> None:
    older, other, newest = (f"out/checkpoints/step-{step}/state.json" for step in (160, 180, 200))
    expected, found = {older: 1, newest: 1}, {other: 2, newest: 3}
    assert differences(expected, found, 0) == [older, other, newest]
    assert [of_interruption(name, expected, found) for name in (older, other, newest)] == [True, True, False]


def test_damage_changes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for spoil in (truncate, flip):
        file.write_bytes(b"eight by")
        spoil(file)
        assert file.read_bytes() != b"eight by"


def test_writes_are_chosen_at_random_and_of_each_kind_of_file() -> None:
    from tests.e2e.faults.__main__ import chosen_writes

    files = ["lock", *["frames"] * 50, "model", *["log"] * 2]
    ends = chosen_writes(files, argparse.Namespace(writes=0, files=3), random.Random(0))
    assert len(ends) == 1 + 3 + 1 + 2
    assert {1, 2, 51, 52, 53, 54} < set(ends)
    assert chosen_writes(files, argparse.Namespace(writes=1000, files=0), random.Random(0)) == list(range(1, 55))
