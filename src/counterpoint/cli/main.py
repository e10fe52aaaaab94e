"""The command line: parses, calls one function of a room, and turns bad input into one message and exit code 2.

Rooms are imported inside the functions, so that `counterpoint --help` loads no torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from counterpoint.cli.arguments import (
    Address,
    Computes,
    Device,
    File,
    Model,
    Name,
    Number,
    Paths,
    Targets,
    Text,
    Where,
    app,
    command,
    parsed_as,
    with_one_message,
)
from counterpoint.cli.data import data
from counterpoint.config import recipe_names, recipe_title, suggestion
from counterpoint.errors import CONTINUES, BadInputError, one_message, require

DESCRIPTION = "Learn representations of trajectories by contrast, and put them to work."

SUITES = {
    "metaworld": "counterpoint.envs.metaworld.collect:MetaWorldCollectConfig:collect_metaworld",
    "robosuite": "counterpoint.envs.robosuite.collect:RobosuiteCollectConfig:collect_robosuite",
    "kitchen": "counterpoint.envs.kitchen.collect:KitchenCollectConfig:collect_kitchen",
    "dmc": "counterpoint.envs.dmc.collect:DMCCollectConfig:collect_dmc",
    "pointmaze": "counterpoint.envs.goal.collect:PointMazeCollect:collect_pointmaze",
}
"""Suite -> module, configuration and function that record its scripted experts."""

COMMANDS = (
    *("collect", "data", "train", "evaluate", "plan", "reward", "label", "embed", "compare"),
    *("report", "view", "push", "convert", "recipes", "--version"),
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends in one message and exit code 2."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with one_message(CONTINUES if _continues(given) else "the same command starts anew"):
            try:
                _run(given)
            finally:
                sys.stdout.flush()
    except BrokenPipeError:  # `counterpoint ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _continues(given: list[str]) -> bool:
    """Return whether a command goes on where it was stopped."""
    first = (*given, "")[0]
    return first in ("collect", "train", "label", "plan") or (first == "compare" and "--recipes" in given)


def _run(given: list[str]) -> None:
    first, second = (*given, "", "")[:2]
    if first == "--version":
        print(f"counterpoint {metadata.version('counterpoint')}")
    elif first and not first.startswith("-") and first not in COMMANDS:
        hint = suggestion(first, COMMANDS) or "`counterpoint --help` lists them"
        raise BadInputError(f"command {first!r}", "no such command", f"one of {', '.join(COMMANDS)}", hint)
    elif first == "train" and second and not second.startswith("-"):
        _train(second, given[2:])
    elif first == "collect" and second and not second.startswith("-"):
        _collect(second, given[2:])
    elif first == "plan" and second and not second.startswith("-"):
        _plan(second, given[2:])
    else:
        work = with_one_message(lambda: app.cli(prog="counterpoint", description=DESCRIPTION, args=given))
        work()


@command("collect")
def collect(suite: Positional[Literal["metaworld", "robosuite", "kitchen", "dmc", "pointmaze"]], /) -> None:
    """Record scripted experts of a simulator as data sets. An interrupted call continues.

    Args:
        suite: The simulator; `counterpoint collect SUITE --help` lists its settings.
    """


def _collect(suite: str, arguments: list[str]) -> None:
    hint = suggestion(suite, list(SUITES)) or "choose one of these"
    require(suite in SUITES, f"collect {suite!r}", "no such simulator", f"one of {', '.join(SUITES)}", hint)
    module, config, function = SUITES[suite].split(":")
    room = import_module(module)
    record = getattr(room, function)
    settings = parsed_as(
        getattr(room, config), arguments, f"collect {suite}", (record.__doc__ or "").partition("\n\n")[0]
    )
    written = record(settings)
    from counterpoint.envs.collect import collected_about, summary

    for out in written.values() if isinstance(written, dict) else (written,):
        print(f"Wrote {out}" + (f": {summary(out)}" if collected_about(out) else ""))


@dataclasses.dataclass(frozen=True)
class _TrainArguments:
    """The arguments of `train` beside the recipe's keys.

    Attributes:
        out: The run's folder.
        data: Data sets; several, each with its own action space, for recipes of transitions.
        env: A goal environment, such as FetchReach-v4: trained in, or evaluated in where there are data; for a policy
            that learns from demonstrations SUITE/TASK, to evaluate in while it trains.
        start_from: A saved encoder that cloning starts from, or a saved diffusion policy to fine-tune.
        device: cpu, cuda or cuda:N; a GPU by default where there is one.
    """

    out: Path
    data: Paths = ()
    env: Annotated[str | None, arg(metavar="ID")] = None
    start_from: Annotated[str | None, arg(metavar="RUN")] = None
    device: Device = None


@command("train")
def train(
    recipe: Positional[Annotated[str, arg(metavar="RECIPE")]], /, *, training: OmitArgPrefixes[_TrainArguments]
) -> None:
    """Train a recipe: an encoder, a policy or an agent. Run it again to continue an interrupted run.

    `counterpoint train RECIPE --help` lists every key of the recipe, such as --train.steps.

    Args:
        recipe: A recipe's name (see `counterpoint recipes`), the path of a TOML file, or an agent's name.
        training: Arguments beside the keys of the recipe.
    """


def _train(name: str, arguments: list[str]) -> None:
    from counterpoint.training.recipe import load_recipe

    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # which keys there are depends on these
    early.add_argument("--data", nargs="*", default=())
    for flag in ("--env", "--env.name", AUXILIARY):
        early.add_argument(flag, nargs="?")
    chosen = vars(early.parse_known_args(arguments)[0])
    auxiliary = chosen[AUXILIARY[2:]]
    overrides = {AUXILIARY[2:]: auxiliary} if auxiliary else None
    default = load_recipe(name, overrides, data=chosen["data"], env=chosen["env"] or chosen["env.name"])
    typed = dataclasses.make_dataclass(
        "TrainArguments",
        [("recipe", Annotated[type(default), arg(name="")], dataclasses.field(default=default))],
        bases=(_TrainArguments,),
        frozen=True,
    )
    typed.__doc__ = _TrainArguments.__doc__
    title = recipe_title(name) if name in recipe_names() else str(type(default).__doc__).splitlines()[0]
    given: Any = parsed_as(typed, arguments, f"train {name}", title)
    from counterpoint.training.distributed import leave
    from counterpoint.training.train import train as run

    finished = run(given.recipe, given.data, given.out, given.env, start_from=given.start_from, device=given.device)
    leave()
    if finished.main:
        from counterpoint.evaluation.rollout import RESULT, main_number

        evaluated = finished.folder / RESULT
        print(f"Wrote {finished.model}" + (f": {main_number(evaluated)}" if evaluated.is_file() else ""))


AUXILIARY = "--auxiliary.objective.name"


@command()
def evaluate(
    run: Positional[Path],
    /,
    *,
    env: Annotated[str | None, arg(metavar="ID")] = None,
    episodes: int = 50,
    envs: int = 2,
    seed: int = 0,
    video: int = 0,
    device: Device = None,
    ensemble: float | None = None,
    sampler: Literal["ddim", "ddpm"] | None = None,
    steps: Number = None,
) -> None:
    """Run a trained agent or policy and write RUN/evaluation.json: success with its interval.

    Args:
        run: The run's folder.
        env: Another environment than the one it was trained for; SUITE/TASK for a policy trained on demonstrations.
        episodes: Number of episodes.
        envs: Environments side by side; the result does not depend on it.
        seed: Random seed of the episodes, which never meet those of training.
        video: Number of episodes that are written as RUN/videos/episode-NUMBER.mp4.
        device: Device of the networks; a GPU where there is one.
        ensemble: Decay of a temporal ensemble, for a diffusion policy; 0.01 is ACT's.
        sampler: Sampler of a diffusion policy; by default that of its training.
        steps: Steps of sampling of a diffusion policy.
    """
    from counterpoint.evaluation.evaluate import evaluate as written
    from counterpoint.evaluation.rollout import main_number

    acting: dict[str, Any] = {"ensemble": ensemble, "sampler": sampler, "steps": steps}
    path = written(run, env, episodes=episodes, envs=envs, seed=seed, video=video, device=device, **acting)
    print(f"Wrote {path}: {main_number(path)}")


@command("plan")
def plan(env: Positional[Annotated[str, arg(metavar="kitchen/TASK@CAMERA")]], /) -> None:
    """Act by planning with the simulator's own dynamics under a reward, and write every episode.

    Args:
        env: The task; `counterpoint plan kitchen/TASK --help` lists the settings.
    """


@dataclasses.dataclass(frozen=True)
class _PlanArguments:
    """The arguments of `plan` beside the planner's.

    Attributes:
        out: File of the result.
        device: Device that computes rewards, such as cuda.
    """

    out: Path
    device: Computes = "cpu"


def _plan(env: str, arguments: list[str]) -> None:
    from counterpoint.evaluation.plan import PlanConfig
    from counterpoint.evaluation.plan import plan as run
    from counterpoint.evaluation.rollout import with_interval

    default = PlanConfig(env=env)
    typed = dataclasses.make_dataclass(
        "PlanArguments",
        [("settings", Annotated[PlanConfig, arg(name="")], dataclasses.field(default=default))],
        bases=(_PlanArguments,),
        frozen=True,
    )
    typed.__doc__ = _PlanArguments.__doc__
    given: Any = parsed_as(typed, arguments, f"plan {env}", (run.__doc__ or "").partition("\n\n")[0])
    found = run(given.settings, given.out, device=given.device)
    rate = f"{found['actions_a_second']:.0f} actions simulated a second"
    progress, success = (with_interval(found[key]) for key in ("progress", "success"))
    print(f"Wrote {given.out}: progress {progress}, success {success}, {rate}")


@command()
def recipes() -> None:
    """List the recipes: name, kind and first line."""
    from counterpoint.config import read_recipe

    for name in recipe_names():
        print(f"{name:30} {read_recipe(name)['kind']:12} {recipe_title(name)}")


@command()
def reward(
    videos: Positional[tuple[Path, ...]],
    /,
    *,
    model: Model,
    out: Path,
    episodes: Annotated[tuple[int, ...], arg(metavar="INT...")] = (),
    camera: Name = None,
    instruction: Text = None,
    text_file: File = None,
    against: Annotated[tuple[str, ...], arg(metavar="TEXT...")] = (),
    goal: Annotated[Path | None, arg(metavar="IMAGE")] = None,
    form: Literal["potential", "similarity", "transition", "goal", "language"] | None = None,
    device: Computes = "cpu",
) -> None:
    """Plot the reward curve of videos: CSV, PNG and a page with the frames under a cursor on the curve.

    Args:
        videos: Video files, or one data set with --episodes.
        model: A run's folder, a folder of saved weights or a Hub id.
        out: The folder to write.
        episodes: Numbers of a data set's episodes.
        camera: The data set's camera; the first by default.
        instruction: The task that the videos should show; episodes have their own by default.
        text_file: File with each video's instruction in a line.
        against: Other instructions, plotted beside it.
        goal: Image of the goal, for a reward without words.
        form: The reward, where it is not the one that the encoder was trained for.
        device: The device that computes, such as cuda.
    """
    from counterpoint.rewards.curves import reward_command

    options: dict[str, Any] = {"text_file": text_file, "against": against, "goal": goal, "form": form, "camera": camera}
    for path in reward_command(videos, instruction, model=model, out=out, device=device, episodes=episodes, **options):
        print(f"Wrote {path}")


@command()
def label(
    data: Positional[Path],
    /,
    *,
    model: Model,
    out: Annotated[Path | None, arg(metavar="PATH")] = None,
    feature: Name = None,
    cameras: Annotated[tuple[str, ...], arg(metavar="NAME...")] = (),
    instruction: Text = None,
    text_file: File = None,
    goal: Annotated[Path | None, arg(metavar="IMAGE")] = None,
    device: Computes = "cpu",
    batch_size: Number = None,
    engine: Where = "single",
    workers: Number = None,
    address: Address = None,
    overwrite: bool = False,
) -> None:
    """Write progress in [0, 1] of every frame of a data set. An interrupted call continues.

    Args:
        data: A data set of any format.
        model: A run's folder, a folder of saved weights or a Hub id.
        out: Parquet file to write; by default MODEL_progress.parquet in a LeRobot data set. With --feature, the copy.
        feature: Write a copy of a LeRobot data set with progress as this feature, such as next.progress.
        cameras: Cameras whose rewards are averaged; those of the run's training by default.
        instruction: The instruction of all episodes, instead of their own.
        text_file: File with each episode's instruction in a line, instead of their own.
        goal: Image of the goal, for models that compare frames with goals.
        device: The device that computes, such as cuda.
        batch_size: Frames encoded at once; as many as suit the model by default.
        engine: Where the work is done: processes of this machine, or workers of Ray Data (the extra `ray`).
        workers: Processes that decode and compute; one by default, which has a thread a core, and with Ray one a core.
        address: Ray's cluster, HOST:PORT or auto; by default one on this machine that ends with the call.
        overwrite: Replace labels that are there.
    """
    from counterpoint.blocks import Engine
    from counterpoint.rewards.label import label as written

    options: dict[str, Any] = {"cameras": cameras, "instruction": instruction, "text_file": text_file, "goal": goal}
    speed: dict[str, Any] = {"device": device, "batch_size": batch_size, "engine": Engine(engine, workers, address)}
    print(f"Wrote {written(data, model=model, out=out, feature=feature, overwrite=overwrite, **options, **speed)}")


@command()
def embed(
    data: Positional[Path],
    /,
    *,
    model: Model,
    out: Path,
    cameras: Annotated[tuple[str, ...], arg(metavar="NAME...")] = (),
    device: Computes = "cpu",
    batch_size: Number = None,
    engine: Where = "single",
    workers: Number = None,
    address: Address = None,
) -> None:
    """Write the embedding of every frame of a data set as parquet. An interrupted call continues.

    Args:
        data: A data set of any format.
        model: A run's folder, a folder of saved weights or a Hub id.
        out: The folder to write: blocks/*.parquet and embeddings.json.
        cameras: The camera that is embedded, or all that an observation encoder has; the data's first by default.
        device: The device that computes, such as cuda.
        batch_size: Frames encoded at once; as many as suit the model by default.
        engine: Where the work is done: processes of this machine, or workers of Ray Data (the extra `ray`).
        workers: Processes that decode and compute; one by default, which has a thread a core, and with Ray one a core.
        address: Ray's cluster, HOST:PORT or auto; by default one on this machine that ends with the call.
    """
    from counterpoint.blocks import Engine
    from counterpoint.encoders.embed import embed as written

    speed: dict[str, Any] = {"device": device, "batch_size": batch_size, "engine": Engine(engine, workers, address)}
    print(f"Wrote {written(data, model=model, out=out, cameras=cameras, **speed)}")


@command()
def report(run: Positional[Path], /, *, data: File = None, split: Name = None, device: Computes = "cpu") -> None:
    """Write a run's report: one page, RUN/report.html, and its numbers with intervals, RUN/report.json.

    Args:
        run: The run's folder.
        data: Episodes to report on; by default the run's own data.
        split: Split of the data; by default `test`, or `val` where there is no `test`.
        device: The device that computes, such as cuda.
    """
    from counterpoint.evaluation.report import write_report

    print(f"Wrote {write_report(run, data=data, split=split, device=device)}")


@command()
def compare(
    runs: Positional[Annotated[tuple[str, ...], arg(metavar="RUN...")]] = (),
    /,
    *,
    data: Path,
    out: Path,
    recipes: Annotated[tuple[str, ...], arg(metavar="RECIPE...")] = (),
    seeds: int = 3,
    split: Name = None,
    cameras: Annotated[tuple[str, ...], arg(metavar="NAME...")] = (),
    max_videos: int = 100,
    device: Annotated[str, arg(metavar="DEVICE")] = "cpu",
) -> None:
    """Compare rewards on the same videos beside controls: OUT/compare.html and OUT/compare.json with intervals.

    Args:
        runs: Runs, folders of LeRobot reward models, or module:function, called with frames and an instruction.
        data: The data set; its episodes that none of them was trained on are used.
        out: The folder to write.
        recipes: Recipes that are trained on the data first, each with every seed; run again to continue.
        seeds: Number of training seeds.
        split: Split of the data; by default `test`, or `val` where there is no `test`.
        cameras: Cameras whose rewards are averaged; those of the run's training by default.
        max_videos: Greatest number of videos; of more, a sample is taken.
        device: The device that computes, such as cuda.
    """
    require(runs or recipes, "compare", "nothing", "RUN... or --recipes RECIPE...", "name what to compare")
    options: dict[str, Any] = {"split": split, "cameras": cameras, "max_videos": max_videos, "device": device}
    rewards = {(run if ":" in run else Path(run).resolve().name): [run] for run in runs}
    require(len(rewards) == len(runs), "runs", "two of one name", "different names", "rename a folder")
    if recipes:
        from counterpoint.training.compare import compare_recipes

        page = compare_recipes(recipes, data, out, rewards=rewards, seeds=seeds, **options)
    else:
        from counterpoint.evaluation.compare import compare_command

        page = compare_command(rewards, data, out, **options)
    print(f"Wrote {page}")


@command()
def view(targets: Positional[Targets], /, *, port: int = 0, browser: bool = True, device: str = "cpu") -> None:
    """Open a local page: drop a video, browse episodes, and see their reward curves by one run or several.

    Args:
        targets: Runs and data sets; without a data set, those that the runs were trained on.
        port: The port on this machine; 0 takes a free one.
        browser: Open the page in a browser.
        device: The device that computes, such as cuda.
    """
    from counterpoint.evaluation.view import view as serve

    serve(targets, port=port, browser=browser, device=device)


@command()
def push(run: Positional[Path], repo_id: Positional[str], /, *, private: bool = False, license: Name = None) -> None:
    """Upload a run's model to the Hub, with its card: method, data, numbers.

    Args:
        run: The run's folder, or a saved model.
        repo_id: OWNER/MODEL on the Hub, made when absent.
        private: Make a new repository private.
        license: Licence of the weights, such as apache-2.0.
    """
    from counterpoint.encoders.hub import push

    print(f"Wrote {push(run, repo_id, private=private or None, license=license)}")


@command()
def convert(
    method: Positional[Literal["decisionnce", "actol", "premier_taco"]], checkpoint: Positional[Path], /, *, out: Path
) -> None:
    """Turn a checkpoint that a paper's authors released into ours.

    Args:
        method: Whose checkpoint it is.
        checkpoint: The authors' file.
        out: The folder to write.
    """
    from counterpoint.encoders.convert import convert_checkpoint

    print(f"Wrote {convert_checkpoint(method, checkpoint, out)}")


app.command(data, name="data", help="Inspect, check and convert data sets.")
