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


@app.command
def collect(
    suite: Positional[Literal["metaworld"]],
    /,
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
    """Record scripted experts of a simulator as a LeRobot v3 data set. An interrupted call continues.

    Args:
        suite: Which simulator.
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
    from counterpoint.envs.collect import CollectConfig, collect_metaworld

    written = collect_metaworld(
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
    """`pretrain R --a.b=c --out O` as `pretrain R --a.b=c`'s positional form: recipe keys are free, flags are not."""
    if not arguments or arguments[0] != "pretrain":
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
