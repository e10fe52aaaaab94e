"""The claims of TD InfoNCE."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from math import log

import numpy as np

from studies.goal_reaching import summary as summarise_agents
from studies.gridworld import GridWorld
from studies.harness import RESULTS, Differences, Tree, kept, read_rows
from studies.occupancy.analysis import summarise as summarise_occupancy
from studies.ogbench.run import OURS, less
from studies.ogbench.run import summary as summarise_ogbench
from studies.stitching.run import summary as summarise_stitching
from studies.stitching.tables import RULES
from studies.verdicts import Claim, Gate, Line, Settings

SMALL_AGENTS = "small networks and 26,000 or fewer steps here"
LEARNED = 50
"""TD InfoNCE's table has learned if its error is at most this part of an untrained table's."""


# Tables


def less_data(baseline: str, data: str = "episodes", steps: str = "decayed") -> Differences:
    """Return log(n / m), where TD InfoNCE needs m samples to reach the error that a baseline reaches with n."""
    found = kept("occupancy", summarise_occupancy)["advantages"][data][steps][baseline]
    logs: Differences = np.log(np.array(found["per_seed"]))[:, None]
    return logs


def table_learned(data: str = "episodes", steps: str = "decayed") -> Gate:
    """Return a gate: with the most data, the error of TD InfoNCE's table is far below an untrained table's."""
    errors = kept("occupancy", summarise_occupancy)["errors"][data][steps]["td_infonce"]
    error, most = list(errors.values())[-1]["mean"], untrained_error() / LEARNED
    text = f"TD InfoNCE's error {1000 * error:.2f} thousandths (at most {1000 * most:.2f}, "
    return Gate(f"{text}1/{LEARNED} of an untrained table's)", bool(error <= most))


@cache
def untrained_error() -> float:
    """Return the mean absolute error of an estimate of 1/25 everywhere."""
    grid, discount = GridWorld(), kept("occupancy")["config"]["discount"]
    truth = grid.exact_occupancy(grid.uniform_policy(), discount)
    return float(np.abs(truth - 1 / truth.shape[-1]).mean())


def stitched(rule: str) -> Differences:
    """Return TD InfoNCE's success minus Monte Carlo InfoNCE's on both kinds of staircases."""
    found = kept("stitching", summarise_stitching)["stitching"]
    return np.array(
        [
            np.subtract(found[style]["td_infonce"][rule]["by_seed"], found[style]["mc_infonce"][rule]["by_seed"])
            for style in ("alternating", "random")
        ]
    ).T


def shortcuts(kind: str, rule: str) -> Differences:
    """Return by how much more often TD InfoNCE took the short way than Monte Carlo InfoNCE, by seed and layout."""
    found = kept("stitching", summarise_stitching)["shortcuts"][kind]
    td, mc = (found[method][rule]["layouts"] for method in ("td_infonce", "mc_infonce"))
    steps = {name: (td[name]["steps"], mc[name]["steps"], td[name]["short"]) for name in td}
    short = [[(a == least) - (b == least) for a, b in zip(*both, strict=True)] for *both, least in steps.values()]
    return np.array(short, dtype=np.float64).T


def solvable(experiment: str, rule: str) -> Gate:
    """Return a gate: a trained table solves nine of ten tasks, and an untrained one hardly any.

    The trained table is the better of both methods: a task that neither solves can show no difference. A shortcut is
    solved by the short way.
    """
    found = kept("stitching", summarise_stitching)
    place = found["stitching"].get(experiment) or found["shortcuts"][experiment]
    trained = max(_solved(place[method][rule]) for method in ("td_infonce", "mc_infonce"))
    chance = _solved(place["untrained"][rule])
    text = f"the better table solves {trained:.2f} (at least .9), an untrained one {chance:.2f} (at most .1)"
    return Gate(text, trained >= 0.9 and chance <= 0.1)


def _solved(found: Tree) -> float:
    if "success" in found:
        return float(found["success"])
    return float(found["took_short"] / found["n"])


# Agents


def _agents(result: str) -> Tree:
    found: Tree = kept(f"goal_reaching_{result}", summarise_agents)["rows"]
    return found


def _less(result: str, key: str, row: str, baseline: str) -> Differences:
    rows = _agents(result)
    differences: Differences = np.subtract(rows[row][key]["values"], rows[baseline][key]["values"])[:, None]
    return differences


def reaches(row: str) -> Gate:
    """Return a gate: a row of contrastive RL reaches nine of ten goals."""
    success = _agents("fetch_reach_matched")[row]["success"]["mean"]
    return Gate(f"contrastive RL reaches {success:.2f} of its goals (at least .9)", success >= 0.9)


def joinable(study: str, *pair: str) -> Gate:
    """Return a gate: cloning fails between the maze's parts, and at least one of the two methods does not."""
    rows = _agents(study)
    cloned, best = rows["gcbc"]["success"]["mean"], max(rows[row]["success"]["mean"] for row in pair)
    text = f"GCBC arrives in {cloned:.2f} (below .3), the better of the two in {best:.2f} (at least .3)"
    return Gate(text, cloned < 0.3 <= best)


def above_on(dataset: str, result: str = "ogbench_cpu") -> Differences:
    """Return TD InfoNCE's success on one of OGBench's data sets minus contrastive RL's."""
    rows, _ = read_rows(RESULTS / f"{result}.parquet")
    first, second = (_named(method, [row["agent"] for row in rows]) for method in ("td_infonce", "crl"))
    return less(rows, dataset, (first, OURS), (second, OURS))


def learned_on(dataset: str, result: str = "ogbench_cpu") -> Gate:
    """Return a gate: contrastive RL solves some of the episodes of a data set."""
    cells = kept(result, summarise_ogbench)["cells"][dataset]
    success = cells[_named("crl", cells)][OURS]["mean"]
    return Gate(f"contrastive RL solves {success:.2f} (at least .3)", success >= 0.3)


def _named(method: str, rows: Iterable[str]) -> str:
    """Return the row of a method, whose name goes on with the settings that a grid gave it."""
    return next(row for row in rows if row.split()[0] == method)


def loses_less() -> Differences:
    """Return QRL's loss of success due to corrupted observations, minus TD InfoNCE's loss."""
    rows, clean = _agents("fetch_reach_corrupted"), _agents("fetch_reach_matched")
    success = {name: np.array(one["success"]["values"]) for name, one in (clean | rows).items()}
    lost = {"TD": success["TD, its own actor"] - success["TD, corrupted"]}
    lost["QRL"] = success["QRL, clean"] - success["QRL, corrupted"]
    differences: Differences = (lost["QRL"] - lost["TD"])[:, None]
    return differences


def both_reach() -> Gate:
    """Return a gate: TD InfoNCE and QRL reach nine of ten goals on clean observations."""
    td = _agents("fetch_reach_matched")["TD, its own actor"]["success"]["mean"]
    qrl = _agents("fetch_reach_corrupted")["QRL, clean"]["success"]["mean"]
    return Gate(f"on clean observations TD {td:.2f}, QRL {qrl:.2f} (at least .9)", min(td, qrl) >= 0.9)


def interpolated(encoder: str, method: str) -> Differences:
    """Return the share of the way that a trained encoder's interpolants cover, minus that of a baseline, by seed."""
    rows = kept("interpolation")["rows"]
    return np.array([[row["trained"]["parametric"]["covered"] - row[encoder][method]["covered"]] for row in rows])


def shows_the_way() -> Gate:
    """Return a gate: encoders that know nothing of walls cover little of the ways, and the agents reach their goals."""
    rows = kept("interpolation")["rows"]
    untrained = np.mean([row["untrained"]["parametric"]["covered"] for row in rows])
    known = max(rows[0]["trained"]["straight_line"]["covered"], float(untrained))
    reached = float(np.mean([row["reached"] for row in rows]))
    text = f"baselines cover {known:.2f} of the ways (at most .5), the agents reach {reached:.2f} of their goals"
    return Gate(f"{text} (at least .8)", known <= 0.5 and reached >= 0.8)


_ACTORS = {
    "both with TD InfoNCE's actor and critic": ("TD, its own actor", "MC, TD's actor"),
    "both with contrastive RL's": ("TD, MC's actor", "MC, its own actor"),
}
_GRID = "[5 x 5 grid](occupancy.md#results), 10⁷ transitions, each method at its best of four to seven rates"


def _tabular(baseline: str, steps: str, tail: str = "", data: str = "episodes", effect: float | None = None) -> Line:
    test = f"{_GRID}, {steps} steps{tail}"
    settings: Settings = "searched"
    gate = partial(table_learned, data, steps)
    return Line(test, "occupancy", partial(less_data, baseline, data, steps), gate, effect, "ratio", settings, True)


CLAIMS = (
    Claim(
        "T1",
        "TD InfoNCE",
        "needs 1,500 times less data than Monte Carlo InfoNCE (Fig. 3)",
        tuple(
            _tabular(f"mc_infonce_{rule}", steps, f"; {tail}", data, log(1500))
            for steps in ("decayed", "constant")
            for rule, data, tail in (
                ("renormalise", "episodes", "futures past an episode's end are drawn again"),
                ("clip", "episodes", "futures past an episode's end are its last state"),
                ("reject", "episodes", "transitions whose future lies past the end are drawn again"),
                ("renormalise", "trajectory", "one uncut trajectory"),
            )
        ),
    ),
    Claim(
        "T2",
        "TD InfoNCE",
        "needs 130 times less data than C-learning (Fig. 3)",
        tuple(_tabular("c_learning", steps, effect=log(130)) for steps in ("decayed", "constant")),
    ),
    Claim(
        "T3",
        "TD InfoNCE",
        "needs 20 times less data than the successor representation (Fig. 3)",
        tuple(_tabular("sr", steps, effect=log(20)) for steps in ("decayed", "constant")),
    ),
    Claim(
        "T4",
        "TD InfoNCE",
        "its advantage over C-learning is due to the categorical cross entropy, not to normalised weights or more "
        "negatives, which have little effect (App. E.3, Fig. 12)",
        tuple(
            _tabular(f"c_learning_{name}", steps, f"; C-learning with {what}", effect=log(130))
            for steps in ("decayed", "constant")
            for name, what in (("normalised", "self-normalised weights"), ("pairs", "N² negatives"), ("both", "both"))
        ),
    ),
    Claim(
        "T5",
        "TD InfoNCE",
        "joins trajectories where Monte Carlo does not (Fig. 4)",
        tuple(
            Line(
                f"success of table policies on two kinds of [staircases](stitching.md#stitching), {rule}",
                "stitching",
                partial(stitched, key),
                partial(solvable, "alternating", key),
                1.0,
                papers_measure=True,
            )
            for key, rule in RULES.items()
        ),
    ),
    Claim(
        "T6",
        "TD InfoNCE",
        "takes the shortcut that one trajectory in twenty shows, where Monte Carlo does not (Fig. 5)",
        tuple(
            Line(
                f"share of runs on four layouts, short ways {where}, [shortcuts](stitching.md#shortcuts), {rule}",
                "stitching",
                partial(shortcuts, kind, key),
                partial(solvable, kind, key),
                1.0,
                papers_measure=True,
            )
            for kind, where in (("branching", "in one piece"), ("two pieces", "in two pieces"))
            for key, rule in RULES.items()
        ),
    ),
    Claim(
        "T7",
        "TD InfoNCE",
        "reaches goals after fewer steps than contrastive RL online (Fig. 2 and 6)",
        tuple(
            Line(
                f"mean success over training on [FetchReach](goal_reaching.md#fetchreach-with-actors-alike), {both}",
                "goal_reaching_fetch_reach_matched",
                partial(_less, "fetch_reach_matched", "area", *rows),
                partial(reaches, rows[1]),
                papers_measure=True,
                fewest=8,
            )
            for both, rows in _ACTORS.items()
        ),
        SMALL_AGENTS,
    ),
    Claim(
        "T8",
        "TD InfoNCE",
        "is above contrastive RL offline: by .073, mean of six AntMaze settings (Table 1)",
        (
            *(
                Line(
                    f"success between parts of [{maze}](goal_reaching.md#stitching-in-a-maze-offline), {both}",
                    f"goal_reaching_{study}",
                    partial(_less, study, "success", *rows),
                    partial(joinable, study, *rows),
                    0.073,
                    settings="searched",
                    papers_measure=True,
                    fewest=8,
                )
                for maze, study in (("Medium", "stitch"), ("Large", "stitch_large"))
                for both, rows in _ACTORS.items()
            ),
            *(
                Line(
                    f"success on [{name}](ogbench.md#{name}), both with OGBench's settings of contrastive RL",
                    study,
                    partial(above_on, name, study),
                    partial(learned_on, name, study),
                    0.073,
                    papers_measure=True,
                    fewest=8,
                )
                for name, study in (
                    ("pointmaze-medium-navigate", "ogbench_cpu"),
                    ("pointmaze-medium-stitch", "ogbench_pointmaze_stitch"),
                    ("pointmaze-large-navigate", "ogbench_pointmaze_large"),
                    ("antmaze-medium-navigate", "ogbench_antmaze"),
                    ("antmaze-medium-stitch", "ogbench_antmaze_stitch"),
                    ("cube-single-play", "ogbench_cube_contrastive"),
                )
            ),
            Line(
                "success on [pointmaze-medium-navigate](ogbench.md#tuned), each at its best of the same search",
                "ogbench_tuned",
                partial(above_on, "pointmaze-medium-navigate", "ogbench_tuned"),
                partial(learned_on, "pointmaze-medium-navigate", "ogbench_tuned"),
                0.073,
                settings="searched",
                papers_measure=True,
                fewest=8,
            ),
        ),
        "point mazes, two AntMazes and a cube of OGBench here; six AntMaze settings of D4RL in the paper",
    ),
    Claim(
        "T9",
        "TD InfoNCE",
        "loses less than QRL where observations are corrupted (Fig. 2b)",
        (
            Line(
                "[FetchReach](goal_reaching.md#fetchreach-with-corrupted-observations), a tenth of the observations "
                "corrupted; QRL without its entropy bonus",
                "goal_reaching_fetch_reach_corrupted",
                loses_less,
                both_reach,
                papers_measure=True,
                fewest=8,
            ),
        ),
        SMALL_AGENTS,
    ),
    Claim(
        "T10",
        "TD InfoNCE",
        "interpolated representations visit the states on the way (App. E.4, Fig. 13)",
        tuple(
            Line(
                f"share of the way's cells that interpolants visit in order, trained minus {baseline}, "
                "[a point maze](goal_reaching.md#interpolation-of-representations)",
                "interpolation",
                partial(interpolated, encoder, method),
                shows_the_way,
            )
            for baseline, encoder, method in (
                ("untrained", "untrained", "parametric"),
                ("a straight line", "trained", "straight_line"),
            )
        ),
        "point mazes here; AntMaze in the paper",
    ),
    Claim(
        "T11",
        "TD InfoNCE",
        "is the only method that solves image-based pick and place and slide (Fig. 6)",
        reason="days of a graphics card for each agent",
    ),
)
