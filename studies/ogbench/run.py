"""OGBench's agents and TD InfoNCE on OGBench's data sets, beside OGBench's own code on the same data and machine.

    python -m studies.ogbench --preset cpu --data=DATA --out runs/ogbench

The data sets are recorded first, each in `DATA/NAME`, by OGBench's protocol. With `--impls=IMPLS --python=PYTHON`, the
code in the folder `impls` of OGBench's repository trains on them too, by the interpreter of an environment of its own:

    git clone https://github.com/seohongpark/ogbench && git -C ogbench checkout 1d41409
    python -m venv env && env/bin/pip install jax flax optax distrax ml_collections tqdm ogbench==1.2.2

Hyperparameters are those of its `hyperparameters.sh`. Success is the mean over five tasks of the share of solved
episodes, as OGBench's `impls/main.py` logs it (Park et al., ICLR 2025).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field, PositiveInt

from counterpoint.config import FrozenConfig
from counterpoint.envs.goal.tasks import OGBENCH_TASKS
from counterpoint.errors import require
from counterpoint.training.recipe import load_recipe
from studies.goal_reaching import combinations, counterpoint, flags
from studies.harness import (
    Differences,
    Rows,
    Study,
    Tree,
    Trial,
    estimate,
    file_name,
    markdown,
    number,
    over_seeds,
    paired,
)

Agent = Literal["gcbc", "gcivl", "gciql", "qrl", "crl", "hiql", "td_infonce"]
AGENTS: tuple[Agent, ...] = get_args(Agent)
ALPHAS: dict[str, dict[str, float]] = {
    "pointmaze": {"gcivl": 10, "gciql": 0.003, "qrl": 0.0003, "crl": 0.03, "hiql": 3},
    "antmaze": {"gcivl": 10, "gciql": 0.3, "qrl": 0.003, "crl": 0.1, "hiql": 3},
    "explore": {"gcivl": 10, "gciql": 0.01, "qrl": 0.001, "crl": 0.003, "hiql": 10},
    "play": {"gcivl": 10, "gciql": 1, "qrl": 0.3, "crl": 3, "hiql": 3},
    "noisy": {"gcivl": 10, "gciql": 0.03, "qrl": 0.03, "crl": 0.1, "hiql": 3},
}
"""Weight of cloning or of advantages, by kind of data (else by robot) and agent: OGBench's `hyperparameters.sh`."""
RANDOM_GOALS = {"stitch": 0.5, "explore": 1.0}
"""Share of random goals for policies, by kind of data; elsewhere there are none."""
OURS, THEIRS = "ours", "OGBench's"


class OGBenchConfig(FrozenConfig):
    """Data sets, agents and their settings.

    Attributes:
        data: Folder of the data sets.
        episodes: Number of training episodes recorded of each data set; by default OGBench's.
        datasets: OGBench's names without the version.
        agents: The agents, whose recipes are `AGENT-ogbench`.
        common: Overrides of every recipe, such as the number of steps.
        expert: The file of the ant's expert, with which the data sets of antmaze are recorded.
        grid: By agent, a list of grids: values by key. Every combination of a grid's values becomes a separate row. The
            share of future goals is what the share of random ones leaves.
        test_episodes: Number of episodes of each task.
        impls: The folder `impls` of OGBench's repository; without it, OGBench's own agents are not run.
        python: The interpreter of an environment with OGBench's requirements.
        first_seed: The first seed, so that settings can be chosen on seeds that are not reported.
        seeds: Number of seeds.
        processes: Number of runs that run in parallel.
    """

    data: str
    episodes: PositiveInt | None = None
    datasets: tuple[str, ...] = Field(min_length=1)
    agents: tuple[Agent, ...] = Field(default=AGENTS, min_length=1)
    common: dict[str, Any] = Field(default={})
    expert: str = ""
    grid: dict[Agent, tuple[dict[str, tuple[Any, ...]], ...]] = Field(default={})
    test_episodes: PositiveInt = 50
    impls: str = ""
    python: str = ""
    first_seed: int = Field(default=0, ge=0)
    seeds: PositiveInt = 3
    processes: PositiveInt = 2

    def variants(self, agent: Agent) -> dict[str, Tree]:
        """Return an agent's settings of the grid by their name, which is empty without a grid."""
        found: dict[str, Tree] = {}
        for chosen in chain.from_iterable(map(combinations, self.grid.get(agent, ({},)))):
            name = " ".join(f"{key.rpartition('.')[2]} {value}" for key, value in chosen.items())
            share = chosen.get("agent.actor_goals.random")
            found[name] = chosen | ({} if share is None else {"agent.actor_goals.future": 1 - share})
        return found


def ogbench_study(config: OGBenchConfig, out: Path) -> Tree:
    """Record the data sets, train and evaluate every agent; write `ogbench.json`, `ogbench.md` and `results.parquet`.

    Raises:
        BadInputError: If a data set or a setting is unknown, or OGBench's code is not where the configuration says.
    """
    require(bool(config.impls) == bool(config.python), "impls", config.impls, "--python beside it", "give both or none")
    ants = any(name.startswith("antmaze") for name in config.datasets)
    hint = "train one: python -m studies.ant_expert --preset cpu --out OUT"
    expert = config.expert or "none"
    require(not ants or Path(expert).is_file(), "expert", expert, "the file of the ant's expert, for antmaze", hint)
    given = not config.impls or (Path(config.impls) / "agents" / "gcbc.py").exists()
    require(given, config.impls, "no agents/gcbc.py", "the folder `impls` of OGBench's repository", "clone it")
    for dataset, agent in product(config.datasets, config.agents):
        for chosen in config.variants(agent).values():
            settings = settings_of(config, dataset, agent, chosen)
            if config.impls and agent != "td_infonce":
                as_theirs(settings)
    study = Study("OGBench's data sets", out, config, free=("processes", "python"))
    for dataset in config.datasets:
        words = ["collect", "ogbench", "--dataset", dataset, "--out", str(file_of(config, dataset).parent)]
        words += ["--episodes", str(config.episodes)] if config.episodes else []
        words += ["--expert", config.expert] if dataset.startswith("antmaze") else []
        counterpoint(words, out / "logs" / f"{dataset}.log")
    trials = [
        Trial(name, partial(run, config, out / "runs" / name, dataset, agent, chosen, seed), about=about)
        for seed in range(config.first_seed, config.first_seed + config.seeds)
        for dataset in config.datasets
        for agent in config.agents
        for variant, chosen in config.variants(agent).items()
        for by, run in ((OURS, train_ours), (THEIRS, train_theirs))
        if by == OURS or (config.impls and agent != "td_infonce")
        for row in [f"{agent} {variant}".rstrip()]
        for about in [{"dataset": dataset, "agent": row, "by": by, "seed": seed}]
        for name in [file_name(dataset, row, "ours" if by == OURS else "theirs", seed)]
    ]
    study.run(trials, config.processes)
    found = summary(study.rows())
    return study.finish("ogbench", found, table(found) + "\n")


def file_of(config: OGBenchConfig, dataset: str) -> Path:
    """Return the file of a data set."""
    return Path(config.data) / dataset / f"{dataset}-v0.npz"


def hyperparameters(dataset: str, agent: str) -> Tree:
    """Return OGBench's settings of an agent on a data set, as keys of our recipes; TD InfoNCE has those of `crl`.

    Raises:
        BadInputError: If the data set is of a kind whose settings are not here.
    """
    robot, kind = dataset.partition("-")[0], dataset.rpartition("-")[2]
    known = robot != "powderworld" and (kind in ALPHAS or robot in ALPHAS)
    expected = "a data set of pointmaze, antmaze, cube, scene or puzzle"
    require(known, "datasets", dataset, expected, "name one, such as cube-single-play")
    if agent == "gcbc":
        return {}
    alphas = ALPHAS[kind if kind in ALPHAS else robot]
    found: Tree = {"agent.alpha": alphas["crl" if agent == "td_infonce" else agent]}
    if agent == "hiql":
        found["agent.subgoal_steps"] = 25 if robot in ALPHAS else 10
    if kind in RANDOM_GOALS:
        random = RANDOM_GOALS[kind]
        found |= {"agent.actor_goals.future": 1 - random, "agent.actor_goals.random": random}
    if "-giant-" in dataset:
        found["agent.discount"] = 0.995
    return found


def settings_of(config: OGBenchConfig, dataset: str, agent: str, chosen: Tree) -> Tree:
    """Return an agent's settings on a data set: OGBench's, then those of all agents, then the chosen ones."""
    return hyperparameters(dataset, agent) | config.common | chosen


def as_theirs(settings: Tree) -> Tree:
    """Return settings under the names of OGBench's agents; an agent ignores what it does not have.

    Raises:
        BadInputError: If OGBench's agents have no such setting.
    """
    names: dict[str, tuple[str, ...]] = {
        "agent.compile": (),
        "agent.bf16": (),
        "agent.cuda_graph": (),
        "agent.extraction": ("actor_loss",),
        "agent.alpha": ("alpha", "high_alpha", "low_alpha"),
        "agent.subgoal_steps": ("subgoal_steps",),
        "agent.actor_goals.future": ("actor_p_trajgoal",),
        "agent.actor_goals.random": ("actor_p_randomgoal",),
        "agent.hidden": ("actor_hidden_dims", "value_hidden_dims"),
        "agent.discount": ("discount",),
        "train.batch_size": ("batch_size",),
    }
    found: Tree = {}
    for key, value in settings.items():
        hint = "compare this library's agents alone, without --impls"
        known = key in names or not key.startswith("agent.")
        require(known, key, value, "a setting that OGBench's agents have too", hint)
        found |= dict.fromkeys(names.get(key, ()), "ddpgbc" if value == "ddpg_bc" else value)
    return found


def train_ours(config: OGBenchConfig, run: Path, dataset: str, agent: str, chosen: Tree, seed: int) -> Tree:
    """Train one agent by this library's command, and return its last evaluation and the curve."""
    settings = settings_of(config, dataset, agent, chosen)
    settings |= {"train.seed": seed, "data.eval_episodes": OGBENCH_TASKS * config.test_episodes}
    words = ["train", f"{agent}-ogbench", "--data", str(file_of(config, dataset)), "--env", f"ogbench/{dataset}"]
    words += ["--out", str(run), *flags(settings)]
    counterpoint(words, run.with_name(f"{run.name}.log"))
    result = json.loads((run / "result.json").read_text())
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "command": " ".join(["counterpoint", *words]),
        "steps": result["steps"],
        "tasks": {key: one["value"] for key, one in sorted(result.items()) if key.startswith("task")},
        "curve": [{key: line[key] for key in ("step", "success")} for line in lines if line["split"] == "eval"],
    }


def train_theirs(config: OGBenchConfig, run: Path, dataset: str, agent: str, chosen: Tree, seed: int) -> Tree:
    """Train one agent by OGBench's code, and return its last evaluation."""
    settings = settings_of(config, dataset, agent, chosen)
    job = {
        "impls": str(Path(config.impls).resolve()),
        "data": str(file_of(config, dataset).resolve()),
        "dataset": dataset,
        "agent": agent,
        "steps": load_recipe(f"{agent}-ogbench", settings).model_dump()["train"]["steps"],
        "settings": as_theirs(settings),
        "episodes": config.test_episodes,
        "seed": seed,
        "out": str(run.resolve().with_suffix(".json")),
    }
    run.parent.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).with_name("theirs.py")
    with run.with_name(f"{run.name}.log").open("a") as log:
        environment = os.environ | {"NPROC": "1", "OMP_NUM_THREADS": "1"}  # JAX reads NPROC as its number of threads
        words = [config.python, str(script), json.dumps(job)]
        subprocess.run(words, check=True, stdout=log, stderr=log, env=environment)
    return {"steps": job["steps"], **json.loads(Path(str(job["out"])).read_text())}


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return `cells`: by data set, agent and code, success with a t interval over seeds and each task's mean.

    `agree`: by data set and agent, our success minus that of OGBench's code, where both were run.
    """
    cells: Tree = {}
    for dataset, agent in dict.fromkeys((row["dataset"], row["agent"]) for row in rows):
        for by in (OURS, THEIRS):
            runs = _runs(rows, dataset, agent, by)
            if runs:
                found = over_seeds([_mean(run) for run in runs], share=True)
                names = runs[0]["tasks"]
                found["tasks"] = {name: float(np.mean([run["tasks"][name] for run in runs])) for name in names}
                found["steps"] = runs[0]["steps"]
                cells.setdefault(dataset, {}).setdefault(agent, {})[by] = found
    agree = {
        dataset: {
            agent: paired(less(rows, dataset, (agent, OURS), (agent, THEIRS))).as_json()
            for agent, cell in agents.items()
            if THEIRS in cell
        }
        for dataset, agents in cells.items()
    }
    return {"cells": cells, "agree": agree}


def table(found: Tree) -> str:
    """Return, by data set and agent, our success, that of OGBench's code, their difference, and ours by task."""
    rows = []
    for dataset, agents in found["cells"].items():
        for agent, cell in agents.items():
            theirs = estimate(cell[THEIRS], share=True) if THEIRS in cell else "not run"
            gap = estimate(found["agree"][dataset][agent]) if THEIRS in cell else ""
            tasks = [number(value) for value in cell[OURS]["tasks"].values()]
            rows.append([dataset, agent, estimate(cell[OURS], share=True), theirs, gap, *tasks])
    tasks = [f"task {task}" for task in range(1, OGBENCH_TASKS + 1)]
    return markdown(["data set", "agent", "here", "OGBench's code, same data", "here minus OGBench's", *tasks], rows)


def pooled(results: Sequence[Rows]) -> str:
    """Return, by agent and over all data sets, our success minus that of OGBench's code, with the number of pairs.

    A pair is two runs on one data set with one seed. Runs that several results hold count once.
    """
    rows = list({(row["dataset"], row["agent"], row["by"], row["seed"]): row for row in chain(*results)}.values())
    datasets = sorted({row["dataset"] for row in rows})
    pairs: dict[str, list[Differences]] = {}
    for agent in AGENTS:
        found = [less(rows, dataset, (agent, OURS), (agent, THEIRS)) for dataset in datasets]
        pairs[agent] = [each for each in found if len(each)]
    pairs["all agents"] = list(chain(*pairs.values()))
    lines = [
        [agent, str(sum(map(len, found))), estimate(paired(np.concatenate(found)).as_json())]
        for agent, found in pairs.items()
        if found
    ]
    return markdown(["agent", "pairs of runs", "here minus OGBench's"], lines)


def less(rows: Rows, dataset: str, one: tuple[str, str], other: tuple[str, str]) -> Differences:
    """Return the success of an agent of one code minus that of another, for the seeds that both have: [seeds, 1]."""
    first, second = ({run["seed"]: _mean(run) for run in _runs(rows, dataset, *which)} for which in (one, other))
    return np.array([[first[seed] - second[seed]] for seed in sorted(first.keys() & second.keys())])


def _runs(rows: Rows, dataset: str, agent: str, by: str) -> list[Tree]:
    found = [row for row in rows if (row["dataset"], row["agent"], row["by"]) == (dataset, agent, by)]
    return sorted(found, key=lambda row: int(row["seed"]))


def _mean(run: Tree) -> float:
    return float(np.mean(list(run["tasks"].values())))
