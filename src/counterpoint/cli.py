"""The command line: parses, calls one function of a room, and turns bad input into one message and exit code 2.

Rooms are imported inside the functions, so that `counterpoint --help` loads no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["main"]

Names = Annotated[tuple[str, ...], arg(metavar="NAME...")]
Words = Annotated[str, arg(metavar="TEXT")]
app = tyro.extras.SubcommandApp()
data = tyro.extras.SubcommandApp()
bench = tyro.extras.SubcommandApp()
collect = tyro.extras.SubcommandApp()


@collect.command(name="metaworld")
def collect_metaworld(
    *,
    out: Path,
    tasks: Names = ("default",),
    episodes: int = 10,
    val_episodes: int = 0,
    test_episodes: int = 0,
    noise: float = 0.0,
    cameras: Names = ("corner2",),
    size: int = 112,
    stride: int = 1,
    successful_only: bool = False,
    workers: int = 2,
    seed: int = 0,
) -> None:
    """Record Meta-World's scripted experts as a LeRobot v3 data set. An interrupted call continues.

    Args:
        out: The data set's folder; it appears when everything is recorded.
        tasks: Task names, `default` (15 tasks) or `all` (50).
        episodes: Training episodes a task.
        val_episodes: Validation episodes a task.
        test_episodes: Test episodes a task.
        noise: Standard deviation of Gaussian noise on the expert's actions, in action units.
        cameras: Camera names.
        size: Height and width of the frames, in pixels.
        stride: Control steps a frame; 1 is 80 frames a second.
        successful_only: Give failed episodes up and record the next scene instead.
        workers: Processes that simulate.
        seed: Of initial states and noise.
    """
    from counterpoint.envs.collect import CollectConfig
    from counterpoint.envs.collect import collect_metaworld as record

    written = record(
        CollectConfig(
            tasks=tasks,
            episodes=episodes,
            val_episodes=val_episodes,
            test_episodes=test_episodes,
            noise=noise,
            cameras=cameras,
            size=size,
            stride=stride,
            successful_only=successful_only,
            workers=workers,
            seed=seed,
            out=out,
        )
    )
    print(f"Wrote {written}")


@collect.command(name="pointmaze")
def collect_pointmaze(
    *,
    out: Path,
    maze: Literal["UMaze", "Open", "Medium", "Large"] = "UMaze",
    suite: Literal["navigate", "stitch"] = "navigate",
    episodes: int = 500,
    val_episodes: int = 50,
    steps: int = 200,
    noise: float = 0.5,
    overlap: int = 1,
    seed: int = 0,
) -> None:
    """Record a waypoint controller in a maze as Minari data sets OUT/train and OUT/val.

    Args:
        out: The folder; it appears when everything is recorded.
        maze: Which PointMaze.
        suite: `navigate` goes all over the maze; `stitch` keeps every episode in one of two overlapping parts, so
            that no episode joins the start of the evaluation with its goal.
        episodes: Training episodes.
        val_episodes: Validation episodes.
        steps: Transitions an episode.
        noise: Standard deviation of Gaussian noise on the controller's actions, in action units.
        overlap: Cells to either side of the middle of the way that both parts share (`stitch`).
        seed: Of all that is random.
    """
    from counterpoint.envs.collect_mazes import PointMazeCollect
    from counterpoint.envs.collect_mazes import collect_pointmaze as record

    written = record(
        PointMazeCollect(
            out=out,
            maze=maze,
            suite=suite,
            episodes=episodes,
            val_episodes=val_episodes,
            steps=steps,
            noise=noise,
            overlap=overlap,
            seed=seed,
        )
    )
    print(f"Wrote {written}")


app.command(collect, name="collect", help="Record scripted experts of a simulator.")


@data.command(name="info")
def data_info(path: Positional[Path], /) -> None:
    """Say what a data set holds: episodes, cameras, instructions, splits.

    Args:
        path: A LeRobot, video-folder or EPIC-KITCHENS data set.
    """
    from counterpoint.data.commands import info

    info(path)


@data.command(name="doctor")
def data_doctor(path: Positional[Path], /) -> None:
    """Look for damage: timestamps, indices, frame counts, statistics, decodability. Exit code 2 when there is some.

    Args:
        path: A LeRobot, video-folder or EPIC-KITCHENS data set, or a training store.
    """
    from counterpoint.data.commands import doctor

    sys.exit(doctor(path))


@data.command(name="convert")
def data_convert(
    path: Positional[Path],
    out: Positional[Path],
    /,
    *,
    size: Annotated[int | None, arg(metavar="INT")] = None,
    fps: Annotated[int | None, arg(metavar="INT")] = None,
) -> None:
    """Write any data set that can be read as LeRobot v3.

    Args:
        path: What to read.
        out: The folder to write; must not exist.
        size: Height and width to resize frames to, in pixels; by default they stay as they are.
        fps: Frames a second to write, where the episodes differ; by default their own, rounded.
    """
    from counterpoint.data.commands import convert

    convert(path, out, size=size, fps=fps)


app.command(data, name="data", help="Look into, check and convert data sets.")
app.command(bench, name="bench", help="Run a study of a paper again.")


@bench.command(name="occupancy")
def bench_occupancy(*, out: Path, quick: bool = False, workers: int = 2) -> None:
    """Estimate occupancies on a 5x5 grid by four methods: TD InfoNCE, Fig. 3, 11 and 12. Interrupted, it continues.

    Args:
        out: Where results (JSON) and figures go.
        quick: A small version, in a minute.
        workers: Processes.
    """
    from counterpoint.bench.occupancy import OccupancyConfig, occupancy_study

    config = OccupancyConfig.quick() if quick else OccupancyConfig()
    print(f"Wrote {occupancy_study(config, out, workers=workers)}")


@bench.command(name="stitching")
def bench_stitching(*, out: Path, quick: bool = False) -> None:
    """Join trajectories and find shortcuts on a grid: TD InfoNCE, Fig. 4, 5, 8 and 9. Interrupted, it continues.

    Args:
        out: Where results (JSON) and figures go.
        quick: A small version, in a minute.
    """
    from counterpoint.bench.stitching import StitchingConfig, stitching_study

    config = StitchingConfig.quick() if quick else StitchingConfig()
    print(f"Wrote {stitching_study(config, out)}")


@app.command
def train(
    agent: Positional[Annotated[str, arg(metavar="AGENT")]],
    overrides: Positional[Annotated[tuple[str, ...], arg(metavar="--KEY=VALUE...")]] = (),
    /,
    *,
    out: Path,
    env: Annotated[str | None, arg(metavar="ID")] = None,
    data: Annotated[str | None, arg(metavar="PATH")] = None,
) -> None:
    """Train a goal-reaching agent, online in an environment or offline on a data set. Run it again to continue.

    Args:
        agent: An agent (td_infonce, contrastive_rl, ...), a recipe (see `counterpoint recipes`) or a TOML file.
        overrides: Any key of the recipe: --online.steps=50000 --agent.discount=0.95
        out: The run's folder.
        env: A goal environment, such as FetchReach-v4: trained in, or evaluated in where there are data.
        data: A Minari data set (folder or id) or a LeRobot data set.
    """
    from counterpoint.agents.train import train_agent
    from counterpoint.config import parse_overrides

    print(f"Wrote {train_agent(agent, out, parse_overrides(overrides), env=env, data=data)}")


@app.command
def evaluate(
    run: Positional[Path],
    /,
    *,
    env: Annotated[str | None, arg(metavar="ID")] = None,
    episodes: int = 50,
    envs: int = 2,
    seed: int = 0,
) -> None:
    """Run a trained agent and write RUN/evaluation.json: success with its interval, distance to the goal.

    Args:
        run: The run's folder.
        env: Another environment than the one it was trained for.
        episodes: How many.
        envs: Environments side by side; the result does not depend on it.
        seed: Of the episodes, which never meet those of training.
    """
    from counterpoint.agents.evaluate import evaluate_run

    print(f"Wrote {evaluate_run(run, env=env, episodes=episodes, envs=envs, seed=seed)}")


@app.command
def pretrain(
    recipe: Positional[Annotated[str, arg(metavar="RECIPE")]],
    overrides: Positional[Annotated[tuple[str, ...], arg(metavar="--KEY=VALUE...")]] = (),
    /,
    *,
    data: Path,
    out: Path,
) -> None:
    """Train an encoder by a recipe. Run it again to continue an interrupted run.

    Args:
        recipe: A recipe's name (see `counterpoint recipes`) or the path of a TOML file.
        overrides: Any key of the recipe: --train.steps=3000 --objective.temperature=0.05
        data: A LeRobot, video-folder or EPIC-KITCHENS data set.
        out: The run's folder.
    """
    from counterpoint.config import parse_overrides
    from counterpoint.training.pretrain import pretrain as run

    print(f"Wrote {run(recipe, data, out, parse_overrides(overrides))}")


@app.command
def recipes() -> None:
    """List the recipes, each with its first line."""
    from counterpoint.config import recipe_names, recipe_title

    for name in recipe_names():
        print(f"{name:24} {recipe_title(name)}")


@app.command
def reward(
    videos: Positional[tuple[Path, ...]],
    /,
    *,
    instruction: Words,
    model: Annotated[str, arg(metavar="RUN")],
    out: Path,
    against: Annotated[tuple[str, ...], arg(metavar="TEXT...")] = (),
) -> None:
    """Draw the reward curve of videos: CSV, PNG and a page with the frames under a cursor on the curve.

    Args:
        videos: Video files.
        instruction: What the videos should show being done.
        model: A run's folder, a folder of saved weights or a Hub id.
        out: Where the files go.
        against: Other instructions, drawn beside it.
    """
    from counterpoint.rewards.command import reward_command

    for path in reward_command(videos, instruction=instruction, against=against, model=model, out=out):
        print(f"Wrote {path}")


@app.command
def report(
    run: Positional[Path],
    /,
    *,
    data: Annotated[Path | None, arg(metavar="PATH")] = None,
    split: Annotated[str | None, arg(metavar="SPLIT")] = None,
) -> None:
    """Write a run's report: one page, RUN/report.html, and its numbers with intervals, RUN/report.json.

    Args:
        run: The run's folder.
        data: Episodes to report on; by default the run's own data.
        split: Which split of the data; by default `test`, or `val` where there is no `test`.
    """
    from counterpoint.evaluation.report import write_report

    print(f"Wrote {write_report(run, data=data, split=split)}")


@app.command
def convert(
    method: Positional[Literal["decisionnce", "actol"]], checkpoint: Positional[Path], /, *, out: Path
) -> None:
    """Turn a checkpoint that a paper's authors released into ours.

    Args:
        method: Whose checkpoint it is.
        checkpoint: The authors' file.
        out: The folder to write.
    """
    from counterpoint.encoders.convert import convert_checkpoint

    print(f"Wrote {convert_checkpoint(method, checkpoint, out)}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends in one message and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        app.cli(prog="counterpoint", description=DESCRIPTION, args=_gather_overrides(given))
    except (BadInputError, MissingExtraError) as error:
        print(f"counterpoint: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("counterpoint: interrupted; run the same command again to continue", file=sys.stderr)
        sys.exit(130)


DESCRIPTION = "Learn representations of trajectories by contrast, and put them to work."


def _gather_overrides(arguments: list[str]) -> list[str]:
    """`train R --a.b=c --out O` with the recipe's keys as positionals: they are free, flags are not."""
    if not arguments or arguments[0] not in ("pretrain", "train"):
        return arguments
    plain, overrides = [], []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument.startswith("--") and "." in argument.partition("=")[0]:
            value = "" if "=" in argument or not rest else f"={rest.pop(0)}"
            overrides.append(argument.removeprefix("--") + value)
        else:
            plain.append(argument)
    return [plain[0], *plain[1:2], *overrides, *plain[2:]]
