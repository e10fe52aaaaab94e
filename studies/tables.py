"""The tables of the documentation, written from the result files: `python -m studies.tables [--figures]`.

A table is written between `<!-- table NAME -->` and `<!-- end -->` in a page of `docs` or in README.md. Numbers in the
prose are filled from its cells (`studies.prose` describes the marks). Results of studies are read from
`studies/results`, timings and faults from `benchmarks/results`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from studies import (
    actol_as_trained,
    ant_expert,
    claims,
    curation,
    diffusion_gate,
    failures,
    gradient_by_length,
    interpolation,
    labelled_cloning,
    lerobot_policies,
    metaworld_rewards,
    planning,
    verdicts,
    vlo_limits,
)
from studies import goal_reaching as goal_reaching_study
from studies import own_videos as own_videos_study
from studies import r3m_language as r3m_study
from studies import reward_rl as reward_rl_study
from studies.fewshot import figures as fewshot_figures
from studies.fewshot import tables as fewshot_tables
from studies.fewshot.summary import result as fewshot_result
from studies.fewshot.summary import scores as fewshot_scores
from studies.harness import Differences, estimate, kept, markdown, number, paired, seeds
from studies.icon import figures as icon_figures
from studies.icon import table as icon_table
from studies.icon.summary import summarise as summarise_icon
from studies.lcbc import summary as lcbc
from studies.mazes import maze_figure
from studies.occupancy.tables import TABLES as OCCUPANCY
from studies.ogbench import run as ogbench
from studies.plots import save
from studies.prose import TABLE, fill_marks
from studies.rewards.tables import TABLES as REWARDS
from studies.stitching.tables import TABLES as STITCHING

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
Tree = dict[str, Any]
Rows = list[list[str]]


# Rewards


SHARES = ("accuracy", "ordering", "triples")
"""First words of the names of metrics that are shares."""


def rewards(rows: Sequence[str], columns: Mapping[str, str]) -> str:
    """Return rows of the Meta-World study on test episodes; `{form}` in a column is replaced by the row's own form."""
    table = kept("metaworld_rewards", metaworld_rewards.summary)["rows"]
    lines: Rows = []
    for name in rows:
        test, wordless = table[name]["test"], name in ("vip", "tcn", "r3m")
        keys = [key.format(form=test["form"]) for key in columns.values()]
        image = [key == "goal_image_voc" or "_frame_similarity" in key for key in columns.values()]
        cells = [
            "not defined" if wordless and not own else estimate(test.get(key), share=key.startswith(SHARES))
            for key, own in zip(keys, image, strict=True)
        ]
        lines.append([name, *cells])
    return markdown(["objective", *columns], lines)


LANGUAGE_ROWS = ("decisionnce_t", "decisionnce_p", "liv", "clip_goal", "r3m", "vip", "tcn", "random encoder")
ACTOL_ROWS = ("decisionnce_t", *(f"actol {weight} from decisionnce_t" for weight in ("0", "0.1", "10")))
GROUNDING = {
    "VOC (potential)": "voc.potential",
    "VOC, wrong instruction": "voc_wrong_instruction.potential",
    "accuracy, whole video": "accuracy_whole_video.{form}",
    "accuracy, random segments": "accuracy_random_segments.{form}",
    "accuracy, last frame": "accuracy_last_frame",
    "accuracy, unseen paraphrases": "accuracy_paraphrases.{form}",
    "VOC to a goal image": "goal_image_voc",
}
FIRST_FRAMES = {
    "first frames": "first_frame_similarity",
    "first frames, mean-centred": "first_frame_similarity_centred",
    "last frames": "last_frame_similarity",
    "random frames": "random_frame_similarity",
    "first frames to mean language": "first_frame_to_language",
    "first frames to mean language, centred": "first_frame_to_language_centred",
}
ORDER = {
    "VOC (potential)": "voc.potential",
    "VOC, wrong instruction": "voc_wrong_instruction.potential",
    "ordering": "ordering",
    "accuracy, whole video": "accuracy_whole_video.potential",
    "accuracy, random segments": "accuracy_random_segments.potential",
    "accuracy, last frame": "accuracy_last_frame",
    "jump ratio": "jump_ratio",
    "bridge residual": "bridge_residual",
}


def sign_study() -> str:
    """Return the VOC of every seed, because the mean of numbers with random signs says nothing."""
    table, rows = kept("metaworld_rewards", metaworld_rewards.summary)["rows"], []
    for name in ("vlo from scratch", "directed vlo from scratch"):
        test = table[name]["test"]
        cells = [estimate(test[key], share=True) for key in ("ordering", "accuracy_whole_video.potential")]
        rows.append([name, seeds(test["voc.potential"]["values"]), *cells])
    return markdown(["objective", "VOC (potential) of each seed", "ordering", "accuracy, whole video"], rows)


def own_videos(name: str) -> str:
    """Return the results of recipes on a few real videos."""
    return markdown(*own_videos_study.table(kept(f"own_videos_{name}", own_videos_study.summary)))


def r3m_language() -> str:
    """Return the results of R3M's own language reward."""
    found = kept("r3m_language", r3m_study.summary)
    names = {"voc": "VOC", "voc_wrong_instruction": "VOC, wrong instruction", "accuracy": "accuracy at the last frame"}
    return markdown(
        ["R3M's language reward", *names.values()],
        [["r3m", *[estimate(found[key], share=key in SHARES) for key in names]]],
    )


def reward_rl() -> str:
    """Return SAC's success from every reward."""
    found = kept("reward_rl", reward_rl_study.summary)
    asked = {"all tasks": "yes", "other tasks": "no"}
    rows = []
    for name, row in found["rows"].items():
        solved = row["solved"]
        share = f"{round(solved['value'] * solved['n'])} of {solved['n']} [{solved['low']:.2f}, {solved['high']:.2f}]"
        encoder = found["config"]["rows"][name]["encoder"]
        rows.append([name, asked.get(encoder, ""), share, *(seeds(row[key]["values"]) for key in ("end", "area"))])
    head = ["reward", "task in pretraining", "seeds that solve it", "success of each seed"]
    head += ["mean over evaluations, each seed"]
    return markdown(head, rows)


# Goal-reaching agents


def difference(differences: Differences) -> str:
    """Return paired differences, and their mean with its interval."""
    found = paired(differences)
    return estimate({"value": found.value, "low": found.low, "high": found.high})


def each_seed(found: Tree, *, share: bool) -> str:
    """Return the mean, its interval if there are several seeds, and the value of every seed."""
    if found["low"] is None:
        return f"{found['mean']:.2f} (one seed)"
    return f"{estimate(found, share=share)} ({seeds(found['values'])})"


def goal_reaching(name: str) -> str:
    """Return agents in one environment and, if measured, success inside a part and signals for staying at a goal."""
    found = kept(f"goal_reaching_{name}", goal_reaching_study.summary)["rows"]
    keys = {"success": "success", "success_at_end": "success at the end", "closest_distance": "closest distance, m"}
    keys |= {"inside": "success inside a part"} if any("inside" in one for one in found.values()) else {}
    signals = goal_reaching_study.SIGNALS if any("holding" in one for one in found.values()) else {}
    several = any(len(run["curve"]) > 1 for one in found.values() for run in one["runs"])
    keys |= {"area": "success, mean over training"} if several else {}
    rows = []
    for row, one in found.items():
        minutes = sum(run["seconds"] for run in one["runs"]) / len(one["runs"]) / 60
        cells = [each_seed(one[key], share=key != "closest_distance") if key in one else "" for key in keys]
        staying = [estimate(one["holding"][key], 3) for key in signals]
        rows.append([row, *cells, *staying, f"{minutes:.1f}"])
    return markdown(["agent", *keys.values(), *signals.values(), "minutes a run"], rows)


def when_reached(name: str, share: float = 0.9) -> str:
    """Return the environment steps after which each seed first reached a share of its goals."""
    rows = []
    for row, found in kept(f"goal_reaching_{name}", goal_reaching_study.summary)["rows"].items():
        steps = [[point["step"] for point in run["curve"] if point["success"] >= share] for run in found["runs"]]
        rows.append([row, ", ".join(f"{one[0]:,}" if one else "never" for one in steps)])
    return markdown(["agent", f"steps to success {share}, each seed"], rows)


def learning_curve(name: str) -> str:
    """Return success at each evaluation in training, for every agent; the mean over seeds if there are several."""
    found = kept(f"goal_reaching_{name}", goal_reaching_study.summary)["rows"]
    curves = {row: [run["curve"] for run in one["runs"]] for row, one in found.items()}
    steps = [point["step"] for point in next(iter(curves.values()))[0]]
    rows = [
        [f"{step:,}", *(number(np.mean([curve[at]["success"] for curve in runs])) for runs in curves.values())]
        for at, step in enumerate(steps)
    ]
    return markdown(["environment steps", *(f"success of {row}" for row in curves)], rows)


PAPER_TABLE_1 = {
    "umaze": ("84.9 ± 1.2", "76.8 ± 2.3", "79.8 ± 1.6", "65.4", "65.6", "87.5", "78.6"),
    "umaze-diverse": ("91.7 ± 1.3", "80.1 ± 1.3", "77.6 ± 2.8", "60.9", "51.2", "62.2", "71.4"),
    "medium-play": ("86.8 ± 1.7", "76.5 ± 2.1", "72.6 ± 2.9", "58.1", "1.0", "71.2", "10.6"),
    "medium-diverse": ("82.0 ± 3.4", "73.4 ± 1.9", "71.5 ± 1.3", "67.3", "0.6", "70.0", "3.0"),
    "large-play": ("47.0 ± 2.5", "52.9 ± 2.8", "48.6 ± 4.4", "32.4", "0.0", "39.6", "0.2"),
    "large-diverse": ("55.6 ± 3.6", "51.5 ± 3.8", "54.1 ± 5.5", "36.9", "0.2", "47.5", "0.0"),
}


def lost_to_corruption() -> str:
    """Return success on clean observations minus success on corrupted observations, paired by seed."""
    clean, corrupted = (
        kept(f"goal_reaching_{name}", goal_reaching_study.summary)["rows"]
        for name in ("fetch_reach_matched", "fetch_reach_corrupted")
    )
    pairs = {
        "QRL": (corrupted["QRL, clean"], corrupted["QRL, corrupted"]),
        "TD": (clean["TD, its own actor"], corrupted["TD, corrupted"]),
        "MC": (clean["MC, its own actor"], corrupted["MC, corrupted"]),
    }
    keys = {"success": "success", "success_at_end": "success at the end"}
    rows = [
        [name, *(difference(np.subtract(own[key]["values"], other[key]["values"])[:, None]) for key in keys)]
        for name, (own, other) in pairs.items()
    ]
    return markdown(["agent", *(f"{title}, clean minus corrupted" for title in keys.values())], rows)


def antmaze() -> str:
    """Return the paper's Table 1; none of its experiments was run."""
    agents = ("TD InfoNCE", "QRL", "contrastive RL", "GCBC", "DT", "IQL", "TD3 + BC")
    rows = [[name, *numbers, "not run"] for name, numbers in PAPER_TABLE_1.items()]
    return markdown(["AntMaze (D4RL v2), paper's Table 1", *agents, "ours, any agent"], rows)


# Few-shot policies


def premier_taco_start() -> str:
    """Return each seed's results for the settings of the window loss; accuracies are on one common sample."""
    found: dict[str, list[Tree]] = {}
    for row in sorted(kept("premier_taco_start")["rows"], key=lambda row: row["seed"]):
        found.setdefault(row["setting"], []).append(row)
    rows = []
    for name in kept("premier_taco_start")["config"]["settings"]:
        loss = seeds([row["validation"][-1]["loss"] for row in found[name]], 3)
        common = [[row["common"][key] for row in found[name]] for key in ("window_accuracy", "categorical_accuracy")]
        rows.append([name, loss, *map(seeds, common)])
    return markdown(["setting", "loss of the setting", "window accuracy", "accuracy in the batch"], rows)


def fewshot_window_differences() -> str:
    """Return success with other windows, batches and negatives minus Premier-TACO's, paired by seed and task."""
    found = fewshot_scores(kept("fewshot_window", fewshot_result)["table"])["last"]
    own = found.pop("premier_taco/finetuned")
    rows = [[name, difference(other - own)] for name, other in found.items()]
    return markdown(["method", "success minus premier_taco/finetuned"], rows)


def dmc_experts() -> str:
    """Return the table of the planners' returns with the true dynamics."""
    rows = []
    for about in [*kept("dmc_experts")["rows"], *kept("dmc_dog_experts")["rows"]]:
        returns = [episode["return"] for episode in about["episodes"]]
        possible = 2 * about["steps"]
        values = (possible, about["expert_return"], min(returns), max(returns), about["random_return"])
        failed = sum(earned < possible / 10 for earned in returns)
        rows.append([about["task"], *(f"{value:.0f}" for value in values), f"{failed}", f"{about['n']}"])
    head = ["task", "possible return", "expert, mean", "expert, lowest", "expert, highest", "random actions, mean"]
    head += ["episodes below a tenth of the possible return", "episodes"]
    return markdown(head, rows)


# Diffusion policies and ICon


def experts(suite: str) -> str:
    """Return the table of the scripted experts' success."""
    rows = []
    for cell in kept(f"{suite}_experts")["rows"]:
        steps = number(cell.get("steps_median"), 0), str(cell.get("steps_most", ""))
        task, success = cell["task"].removesuffix(" noise 0"), cell["success"]
        rows.append([task, estimate(success), f"{success['n']}", *steps])
    return markdown(["task", "solved", "episodes", "actions, median", "actions, maximum"], rows)


def _labelled() -> Tree:
    return kept("labelled_cloning", labelled_cloning.summary)


OGBENCH = (
    "ogbench_cpu",
    "ogbench_gcivl",
    "ogbench_qrl",
    "ogbench_search",
    "ogbench_tuned",
    "ogbench_pointmaze_stitch",
    "ogbench_pointmaze_stitch_hiql",
    "ogbench_pointmaze_stitch_qrl",
    "ogbench_pointmaze_large",
    "ogbench_pointmaze_large_gcbc",
    "ogbench_antmaze",
    "ogbench_antmaze_stitch",
    "ogbench_cube",
    "ogbench_cube_contrastive",
    "ogbench_scene",
    "ogbench_puzzle",
)
"""Results of `studies.ogbench`; their tables have the same names with spaces."""


def ogbench_cells(name: str) -> str:
    """Return the agents of one result of `studies.ogbench`."""
    return ogbench.table(kept(name, ogbench.summary))


TABLES: dict[str, Callable[[], str]] = {
    "claims": lambda: verdicts.table(claims.CLAIMS),
    "claim tests": lambda: verdicts.evidence(claims.CLAIMS),
    "metaworld": partial(rewards, LANGUAGE_ROWS, GROUNDING),
    "first frames": partial(rewards, LANGUAGE_ROWS, FIRST_FRAMES),
    "actol": partial(rewards, ACTOL_ROWS, ORDER),
    "sign study": sign_study,
    "failures": failures.table,
    "vlo limits": vlo_limits.table,
    "r3m language": r3m_language,
    "reward rl": reward_rl,
    "own videos widowx": partial(own_videos, "widowx"),
    "own videos bridge": partial(own_videos, "bridge"),
    "own videos bridge state": partial(own_videos, "bridge_state"),
    "own videos backbones": lambda: own_videos_study.backbones_table(kept("own_videos_backbones")["rows"]),
    "fetch reach": partial(goal_reaching, "fetch_reach"),
    "fetch reach steps": partial(when_reached, "fetch_reach"),
    "stitch gate large": partial(goal_reaching, "stitch_gate"),
    "stitch gate medium": partial(goal_reaching, "stitch_gate_medium"),
    "stitch screen": partial(goal_reaching, "stitch_screen"),
    "stitch": partial(goal_reaching, "stitch"),
    "stitch large": partial(goal_reaching, "stitch_large"),
    "stitch baselines": partial(goal_reaching, "stitch_baselines"),
    "stitch goals": partial(goal_reaching, "stitch_screen_goals"),
    "fetch reach matched": partial(goal_reaching, "fetch_reach_matched"),
    "qrl search": partial(goal_reaching, "qrl_search"),
    "fetch reach corrupted": partial(goal_reaching, "fetch_reach_corrupted"),
    "sensitivity": partial(goal_reaching, "sensitivity"),
    "push gate": partial(goal_reaching, "push_gate"),
    "push gate curve": partial(learning_curve, "push_gate"),
    "fetch reach lost": lost_to_corruption,
    "antmaze": antmaze,
    **{f"curation {name}": partial(curation.table, name) for name in ("kitchen", "metaworld")},
    "stream": partial(curation.stream_table, "kitchen"),
    "ant expert": lambda: ant_expert.table(kept("ant_expert")["rows"]),
    **{name.replace("_", " "): partial(ogbench_cells, name) for name in OGBENCH},
    "ogbench pooled": lambda: ogbench.pooled([kept(name)["rows"] for name in OGBENCH]),
    "interpolation": lambda: interpolation.table(kept("interpolation", interpolation.summary)),
    "fewshot tasks": lambda: fewshot_tables.scores(kept("fewshot_tasks", fewshot_result), "last"),
    "fewshot arms": lambda: fewshot_tables.scores(kept("fewshot_embodiment_tasks", fewshot_result), "last"),
    "fewshot last": lambda: fewshot_tables.scores(kept("fewshot_finetuned", fewshot_result), "last"),
    "fewshot camera": lambda: fewshot_tables.scores(kept("fewshot_camera", fewshot_result), "last"),
    "fewshot random": lambda: fewshot_tables.scores(kept("fewshot_random", fewshot_result), "last"),
    "fewshot embodiment": lambda: fewshot_tables.scores(kept("fewshot_embodiment", fewshot_result), "last"),
    "fewshot embodiment pretraining": lambda: fewshot_tables.pretraining(kept("fewshot_embodiment", fewshot_result)),
    "fewshot window": lambda: fewshot_tables.scores(kept("fewshot_window", fewshot_result), "last"),
    "fewshot window differences": fewshot_window_differences,
    "fewshot imagenet": lambda: fewshot_tables.scores(kept("fewshot_imagenet", fewshot_result), "last"),
    "fewshot imagenet pretraining": lambda: fewshot_tables.pretraining(kept("fewshot_imagenet", fewshot_result)),
    "fewshot window pretraining": lambda: fewshot_tables.pretraining(kept("fewshot_window", fewshot_result)),
    "fewshot random pretraining": lambda: fewshot_tables.pretraining(kept("fewshot_random", fewshot_result)),
    "fewshot pretraining": lambda: fewshot_tables.pretraining(kept("fewshot_finetuned", fewshot_result)),
    "premier taco start": premier_taco_start,
    "dmc experts": dmc_experts,
    "diffusion state": lambda: diffusion_gate.table(kept("diffusion_gate_state")["rows"]),
    "diffusion images": lambda: diffusion_gate.table(kept("diffusion_gate_images")["rows"]),
    "icon success": lambda: icon_table.success(kept("icon_close_drawer", summarise_icon)),
    "icon attention": lambda: icon_table.attention(kept("icon_close_drawer", summarise_icon)),
    "icon separability": lambda: icon_table.separability(kept("icon_close_drawer", summarise_icon)),
    "icon stability": lambda: icon_table.stability(kept("icon_close_drawer", summarise_icon)),
    "icon lift success": lambda: icon_table.success(kept("icon_lift", summarise_icon)),
    "icon lift attention": lambda: icon_table.attention(kept("icon_lift", summarise_icon)),
    "icon lift separability": lambda: icon_table.separability(kept("icon_lift", summarise_icon)),
    "icon lift stability": lambda: icon_table.stability(kept("icon_lift", summarise_icon)),
    "icon transfer": lambda: icon_table.success(kept("icon_transfer", summarise_icon)),
    "icon transfer attention": lambda: icon_table.attention(kept("icon_transfer", summarise_icon)),
    "icon door": lambda: icon_table.stability(kept("icon_door", summarise_icon)),
    "icon methods": lambda: icon_table.overview(kept("icon_methods", summarise_icon)),
    "robosuite experts": partial(experts, "robosuite"),
    "language cloning experts": partial(experts, "lcbc"),
    "labelled cloning": lambda: labelled_cloning.success_table(kept("labelled_cloning", labelled_cloning.summary)),
    "labels of demonstrations": lambda: labelled_cloning.labels_table(
        kept("labelled_cloning", labelled_cloning.summary)
    ),
    "language cloning gate": lambda: lcbc.ceiling(kept("lcbc_gate", lcbc.summarise)),
    "language cloning places": lambda: lcbc.places(kept("lcbc", lcbc.summarise)),
    "language cloning 5": lambda: lcbc.scores(kept("lcbc", lcbc.summarise), "5"),
    "language cloning 25": lambda: lcbc.scores(kept("lcbc", lcbc.summarise), "25"),
    "language cloning encoders": lambda: lcbc.scores(kept("lcbc_encoders", lcbc.summarise), "25"),
    "language cloning words": lambda: lcbc.words(kept("lcbc_words", lcbc.summarise)),
    "language cloning encoders places": lambda: lcbc.places(kept("lcbc_encoders", lcbc.summarise)),
    "planning": lambda: planning.table(kept("planning", planning.summary)),
    "lerobot policies": lambda: lerobot_policies.table(kept("lerobot_policies", lerobot_policies.summary)),
    **REWARDS,
    **OCCUPANCY,
    **STITCHING,
}
"""Tables of studies by name. A benchmark's result file holds its own tables: `<!-- table losses: NAME -->`."""


def plot(folder: Path) -> None:
    """Write the documentation's figures whose data are in result files."""
    save(actol_as_trained.figure(kept("actol_as_trained")["rows"]), folder / "actol_as_trained.svg")
    lengths = kept("gradient_by_length")
    save(gradient_by_length.figure(lengths["rows"], lengths["config"]["lengths"]), folder / "gradient_by_length.svg")
    gate = kept("goal_reaching_stitch_gate", goal_reaching_study.summary)
    save(maze_figure(gate, {"gcbc": "GCBC"}), folder / "maze_gate.png")
    medium, large = (kept(f"goal_reaching_{name}", goal_reaching_study.summary) for name in ("stitch", "stitch_large"))
    shown = {row: row for row in ("TD, its own actor", "MC, TD's actor", "gcbc")}
    save(maze_figure(large, shown), folder / "maze_stitch.png")
    save(goal_reaching_study.curves_figure(medium, "updates"), folder / "stitch_training.png")
    matched = kept("goal_reaching_fetch_reach_matched", goal_reaching_study.summary)
    save(goal_reaching_study.curves_figure(matched), folder / "fetch_reach_matched.png")
    save(reward_rl_study.figure(kept("reward_rl")["rows"]), folder / "reward_rl.png")
    save(fewshot_figures.scores(kept("fewshot_finetuned", fewshot_result)), folder / "fewshot_scores_cpu.png")
    for name, figure in icon_figures.FIGURES.items():
        save(figure(kept("icon_close_drawer", summarise_icon)), folder / f"icon_{name}_cpu.png")


@cache
def table(name: str) -> str:
    """Return a table in Markdown by its name."""
    file, colon, own = name.partition(": ")
    if not colon:
        return TABLES[name]()
    result = json.loads((BENCHMARKS / f"{file}.json").read_text())
    if own not in result["tables"]:  # the median of some rounds, with minimum and maximum
        return markdown(["name", "value"], [[own, estimate({**result[own], "value": result[own]["median"]}, 1)]])
    return markdown(result["tables"][own]["head"], result["tables"][own]["rows"])


def fill(text: str) -> str:
    """Return a page with every table, and every marked number in its prose, updated."""
    tables = TABLE.sub(lambda found: f"<!-- table {found[1]} -->\n{table(found[1])}\n<!-- end -->", text)
    return fill_marks(tables, table)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text()))
    if "--figures" in sys.argv:
        plot(ROOT / "docs" / "assets")
