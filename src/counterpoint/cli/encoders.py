"""`counterpoint pretrain`, `recipes`, `reward`, `report` and `convert`: encoders, and what they are good for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

__all__ = ["convert", "pretrain", "recipes", "report", "reward"]


def pretrain(
    recipe: Positional[Annotated[str, arg(metavar="RECIPE")]],
    overrides: Positional[Annotated[tuple[str, ...], arg(metavar="--KEY=VALUE...")]] = (),
    /,
    *,
    data: Annotated[tuple[Path, ...], arg(metavar="PATH...")],
    out: Path,
) -> None:
    """Train an encoder by a recipe. Run it again to continue an interrupted run.

    Args:
        recipe: A recipe's name (see `counterpoint recipes`) or the path of a TOML file.
        overrides: Any key of the recipe: --train.steps=3000 --objective.temperature=0.05
        data: A data set; several, each with its own action space, for objectives on transitions.
        out: The run's folder.
    """
    from counterpoint.config import parse_overrides
    from counterpoint.training.pretrain import pretrain as run

    print(f"Wrote {run(recipe, data, out, parse_overrides(overrides))}")


def recipes() -> None:
    """List the recipes, each with its first line."""
    from counterpoint.config import recipe_names, recipe_title

    for name in recipe_names():
        print(f"{name:24} {recipe_title(name)}")


def reward(
    videos: Positional[tuple[Path, ...]],
    /,
    *,
    instruction: Annotated[str | None, arg(metavar="TEXT")] = None,
    model: Annotated[str, arg(metavar="RUN")],
    out: Path,
    against: Annotated[tuple[str, ...], arg(metavar="TEXT...")] = (),
    goal: Annotated[Path | None, arg(metavar="IMAGE")] = None,
    form: Literal["potential", "transition", "goal", "language"] | None = None,
    device: Annotated[str, arg(metavar="DEVICE")] = "cpu",
) -> None:
    """Plot the reward curve of videos: CSV, PNG and a page with the frames under a cursor on the curve.

    Args:
        videos: Video files.
        instruction: What the videos should show being done; this or --goal.
        model: A run's folder, a folder of saved weights or a Hub id.
        out: Where the files go.
        against: Other instructions, plotted beside it.
        goal: Image of the goal, for a reward without words.
        form: The reward, where it is not the one that the encoder was trained for.
        device: The device that computes, such as cuda.
    """
    from counterpoint.rewards.curves import reward_command

    written = reward_command(
        videos, instruction, against=against, goal=goal, form=form, model=model, out=out, device=device
    )
    for path in written:
        print(f"Wrote {path}")


def report(
    run: Positional[Path],
    /,
    *,
    data: Annotated[Path | None, arg(metavar="PATH")] = None,
    split: Annotated[str | None, arg(metavar="SPLIT")] = None,
    device: Annotated[str, arg(metavar="DEVICE")] = "cpu",
) -> None:
    """Write a run's report: one page, RUN/report.html, and its numbers with intervals, RUN/report.json.

    Args:
        run: The run's folder.
        data: Episodes to report on; by default the run's own data.
        split: Which split of the data; by default `test`, or `val` where there is no `test`.
        device: The device that computes, such as cuda.
    """
    from counterpoint.evaluation.report import write_report

    print(f"Wrote {write_report(run, data=data, split=split, device=device)}")


def convert(method: Positional[Literal["decisionnce", "actol"]], checkpoint: Positional[Path], /, *, out: Path) -> None:
    """Turn a checkpoint that a paper's authors released into ours.

    Args:
        method: Whose checkpoint it is.
        checkpoint: The authors' file.
        out: The folder to write.
    """
    from counterpoint.encoders.convert import convert_checkpoint

    print(f"Wrote {convert_checkpoint(method, checkpoint, out)}")
