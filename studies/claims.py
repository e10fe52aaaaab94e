"""The central claims of the five papers and our tests of them: the table of `docs/results/index.md`."""

from __future__ import annotations

from functools import partial
from math import log

import numpy as np

from studies.fewshot.summary import LEFT_CHANCE
from studies.fewshot.summary import result as summarise_fewshot
from studies.fewshot.summary import scores as fewshot_scores
from studies.goal_reaching import summary as summarise_goal_reaching
from studies.harness import Differences, Tree, kept
from studies.icon.summary import in_band, more
from studies.lcbc.summary import comparable
from studies.lcbc.summary import last as cloned
from studies.occupancy.analysis import summarise as summarise_occupancy
from studies.planning import planned, solves
from studies.rewards.tables import by_task
from studies.stitching.run import summary as summarise_stitching
from studies.stitching.tables import RULES
from studies.verdicts import Claim, Gate

IMAGE_MODEL = "imagenet/finetuned"
SEEN = "training videos: identification"


def _learned(study: str, *rows: str) -> Gate:
    """Return a gate: every row ranks the right instruction first for nine of ten training videos."""
    runs = [run for run in kept(f"rewards_{study}")["rows"] if run["row"] in rows]
    learned = {row: np.mean([run["groups"][SEEN]["accuracy"] for run in runs if run["row"] == row]) for row in rows}
    least = min(learned.values())
    return Gate(f"right on training videos {least:.2f} or more (at least .9)", bool(least >= 0.9))


def _less(study: str, row: str, baseline: str, key: str) -> Differences:
    return by_task(study, row, key) - by_task(study, baseline, key)


def _two_actions(study: str, row: str, baseline: str) -> Differences:
    """Return differences in the share of clips of two actions with correct rewards (`rewards.measures.two_actions`).

    They are correct if the first instruction's reward peaks between the actions and then falls, and the second
    instruction's reward rises.
    """

    def shares(name: str) -> Differences:
        runs = [run for run in kept(f"rewards_{study}")["rows"] if run["row"] == name]
        runs.sort(key=lambda run: run["seed"])
        return np.array([[run["groups"]["two actions: any"]["both"]] for run in runs])

    return shares(row) - shares(baseline)


def _padding_costs_less(key: str) -> Differences:
    """Return AcTOL's change due to padded training clips, minus the change of DecisionNCE-T."""
    own, other = (_less("padding", f"{row}, padded 0.6", row, key) for row in ("actol", "decisionnce_t"))
    return own - other


def _less_data(baseline: str, data: str = "episodes", steps: str = "decayed") -> Differences:
    """Return log(n / m), where TD InfoNCE needs m samples to reach the error that a baseline reaches with n."""
    found = kept("occupancy", summarise_occupancy)["advantages"][data][steps][baseline]
    logs: Differences = np.log(np.array(found["per_seed"]))[:, None]
    return logs


def _known_model() -> Gate:
    error = kept("occupancy", summarise_occupancy)["known_model_error"]["td_infonce"]
    return Gate(f"error on a known model {error:.0e} (rounding)", error < 1e-12)


def _stitched(rule: str) -> Differences:
    found = kept("stitching", summarise_stitching)["stitching"]
    return np.array(
        [
            np.subtract(found[style]["td_infonce"][rule]["by_seed"], found[style]["mc_infonce"][rule]["by_seed"])
            for style in ("alternating", "random")
        ]
    ).T


def _shortcuts(rule: str) -> Differences:
    found = kept("stitching", summarise_stitching)["shortcuts"]["branching"]
    td, mc = (found[method][rule]["layouts"] for method in ("td_infonce", "mc_infonce"))
    steps = {name: (td[name]["steps"], mc[name]["steps"], td[name]["short"]) for name in td}
    short = [[(a == least) - (b == least) for a, b in zip(*both, strict=True)] for *both, least in steps.values()]
    return np.array(short, dtype=np.float64).T


def _untrained_fails() -> Gate:
    by_rule = kept("stitching", summarise_stitching)["stitching"]["alternating"]["untrained"]
    success = max(one["success"] for one in by_rule.values())
    return Gate(f"an untrained table solves {success:.2f} (at most .1)", success <= 0.1)


def _fewshot(result: str, row: str, baseline: str) -> Differences:
    found = fewshot_scores(kept(result, summarise_fewshot)["table"])["last"]
    return found[row] - found[baseline]


def _tellable(result: str, baseline: str = "scratch") -> Gate:
    """Return a gate: the baseline solves every task sometimes but not always, so that differences can be measured."""
    own = fewshot_scores(kept(result, summarise_fewshot)["table"])["last"][baseline].mean(0)
    low, high = own.min(), own.max()
    name = "from scratch" if baseline == "scratch" else baseline
    return Gate(f"{name} {low:.2f} to {high:.2f} (.1 to .8)", bool(low >= 0.1 and high <= 0.8))


def _image_model() -> Gate:
    runs = kept("fewshot_imagenet", summarise_fewshot)["pretraining"]
    cloned = _tellable("fewshot_imagenet", IMAGE_MODEL)
    least = min(run["window_accuracy"] for run in runs.values())
    text = f"{cloned.text}, held-out window pairs right {least:.2f} or more (at least {LEFT_CHANCE})"
    return Gate(text, cloned.passed and least >= LEFT_CHANCE)


def _agents(result: str) -> Tree:
    found: Tree = kept(f"goal_reaching_{result}", summarise_goal_reaching)["rows"]
    return found


def _sooner(row: str, baseline: str) -> Differences:
    rows = _agents("fetch_reach_matched")
    differences: Differences = np.subtract(rows[row]["area"]["values"], rows[baseline]["area"]["values"])[:, None]
    return differences


def _reaches(row: str) -> Gate:
    success = _agents("fetch_reach_matched")[row]["success"]["mean"]
    return Gate(f"contrastive RL reaches {success:.2f} of its goals (at least .9)", success >= 0.9)


def _joins(study: str, row: str, baseline: str) -> Differences:
    rows = _agents(study)
    differences: Differences = np.subtract(rows[row]["success"]["values"], rows[baseline]["success"]["values"])[:, None]
    return differences


def _joinable(study: str, *pair: str) -> Gate:
    """Return a gate: cloning fails between the maze's parts, and at least one of the two methods does not."""
    rows = _agents(study)
    cloned, best = rows["gcbc"]["success"]["mean"], max(rows[row]["success"]["mean"] for row in pair)
    text = f"GCBC arrives in {cloned:.2f} (below .3), the better of the two in {best:.2f} (at least .3)"
    return Gate(text, cloned < 0.3 <= best)


def _loses_less() -> Differences:
    """Return QRL's loss of success due to corrupted observations, minus TD InfoNCE's loss."""
    rows, clean = _agents("fetch_reach_corrupted"), _agents("fetch_reach_matched")
    success = {name: np.array(one["success"]["values"]) for name, one in (clean | rows).items()}
    lost = {"TD": success["TD, its own actor"] - success["TD, corrupted"]}
    lost["QRL"] = success["QRL, clean"] - success["QRL, corrupted"]
    differences: Differences = (lost["QRL"] - lost["TD"])[:, None]
    return differences


def _both_reach() -> Gate:
    td = _agents("fetch_reach_matched")["TD, its own actor"]["success"]["mean"]
    qrl = _agents("fetch_reach_corrupted")["QRL, clean"]["success"]["mean"]
    return Gate(f"on clean observations TD {td:.2f}, QRL {qrl:.2f} (at least .9)", min(td, qrl) >= 0.9)


_FOLLOWS = "VOC under the right instruction minus VOC under wrong ones"
_EQUAL = "[15 Meta-World tasks](clip_methods.md#all-methods-with-equal-steps-and-frames), equal steps and frames"
_ARM = "[18 clips of a real arm](clip_methods.md#the-same-on-a-real-arm), equal steps and frames"
_DIRECTED = "our directed form from random heads"
_ACTORS = {
    "both with TD InfoNCE's actor and critic": ("TD, its own actor", "MC, TD's actor"),
    "both with contrastive RL's": ("TD, MC's actor", "MC, its own actor"),
}
_CLONED = "success after 25 demonstrations of two tasks, [language-conditioned cloning](language_cloning.md)"
_TABULAR = "[5 x 5 grid](occupancy.md#results), 10⁷ transitions, decayed steps"

CLAIMS = (
    *(
        Claim(
            "DecisionNCE",
            f"-T's rewards follow language and progress better than {title}'s (section 5.2)",
            f"{_FOLLOWS}, {_EQUAL}",
            "rewards_equal_metaworld",
            partial(_less, "equal_metaworld", "decisionnce_t", row, "margin"),
            partial(_learned, "equal_metaworld", "decisionnce_t", row),
            unit="number",
        )
        for title, row in (("CLIP", "clip"), ("R3M", "r3m"), ("VIP", "vip"), ("LIV", "liv"))
    ),
    Claim(
        "DecisionNCE",
        "-T's rewards follow language and progress better than CLIP's (section 5.2)",
        f"{_FOLLOWS}, {_ARM}",
        "rewards_equal_widowx",
        partial(_less, "equal_widowx", "decisionnce_t", "clip", "margin"),
        partial(_learned, "equal_widowx", "decisionnce_t", "clip"),
        unit="number",
    ),
    Claim(
        "DecisionNCE",
        "-T's rewards are better than -P's (section 5.3)",
        f"{_FOLLOWS}, {_EQUAL}",
        "rewards_equal_metaworld",
        partial(_less, "equal_metaworld", "decisionnce_t", "decisionnce_p", "margin"),
        partial(_learned, "equal_metaworld", "decisionnce_t", "decisionnce_p"),
        unit="number",
    ),
    Claim(
        "DecisionNCE",
        "random segments teach more than whole videos (section 3.2)",
        "-T, short segments (a fifth of a video) identified among all instructions, "
        "[segments](clip_methods.md#segments-and-negatives)",
        "rewards_segments",
        partial(_less, "segments", "decisionnce_t", "decisionnce_t, whole", "accuracy_short"),
        partial(_learned, "segments", "decisionnce_t", "decisionnce_t, whole"),
    ),
    Claim(
        "DecisionNCE",
        "policies on -T's representations succeed more often than on CLIP's, where it begins (section 5.1): by .11 "
        "on switching on the light and hammering (AcTOL's Tables 8 and 11)",
        f"{_CLONED}, -T with a CLIP term minus ImageNet's model, from which it begins here",
        "lcbc",
        lambda: cloned("lcbc", "decisionnce_t") - cloned("lcbc", "imagenet"),
        partial(comparable, "lcbc", "imagenet"),
        effect=0.11,
    ),
    Claim(
        "DecisionNCE",
        "planning with its rewards succeeds more often: .122 with -T against .016 with CLIP (Table 3)",
        "share of the joint's way, two tasks in the [kitchen](planning.md), -T minus a random encoder",
        "planning",
        lambda: planned("planning", "decisionnce_t") - planned("planning", "random"),
        partial(solves, "planning"),
        unit="number",
    ),
    Claim(
        "AcTOL",
        "loses less than DecisionNCE where clips go on into other actions (section 4.1)",
        f"how far {_FOLLOWS} falls with [clips padded by 60 %](clip_methods.md#padded-clips): -T's fall minus AcTOL's",
        "rewards_padding",
        partial(_padding_costs_less, "margin"),
        partial(_learned, "padding", "actol", "decisionnce_t"),
        unit="number",
    ),
    *(
        Claim(
            "AcTOL",
            "the Brownian bridge makes embeddings smoother (section 4.2)",
            f"by how much the bridge lowers the ratio of the largest step between embeddings to the mean step; {where}",
            f"rewards_{study}",
            partial(_less, study, without, row, "jump_ratio"),
            partial(_learned, study, without, row),
            unit="number",
        )
        for study, without, row, where in (
            ("equal_metaworld", "actol without bridge", "actol", f"{_DIRECTED}, {_EQUAL}"),
            ("equal_widowx", "actol without bridge", "actol", f"{_DIRECTED}, {_ARM}"),
            ("padding", "actol without bridge", "actol", "even form from [CLIP's heads](clip_methods.md#padded-clips)"),
            (
                "noise",
                "no bridge",
                "log variance, 1",
                "the same trained on [broken frames](clip_methods.md#broken-frames)",
            ),
        )
    ),
    Claim(
        "AcTOL",
        "its rewards are better than DecisionNCE's (section 5.4)",
        f"{_FOLLOWS}, AcTOL minus -T from [the same grounded start](clip_methods.md#padded-clips)",
        "rewards_padding",
        partial(_less, "padding", "actol", "decisionnce_t", "margin"),
        partial(_learned, "padding", "actol", "decisionnce_t"),
        unit="number",
    ),
    *(
        Claim(
            "AcTOL",
            "its rewards peak where the first of two actions ends and then fall, DecisionNCE's do not (section 5.4)",
            f"share of pairs of videos where this holds and the second instruction's reward rises, AcTOL minus -T; "
            f"{_DIRECTED}, {where}",
            f"rewards_{study}",
            partial(_two_actions, study, "actol", "decisionnce_t"),
            partial(_learned, study, "actol", "decisionnce_t"),
        )
        for study, where in (("equal_metaworld", _EQUAL), ("equal_widowx", _ARM))
    ),
    Claim(
        "AcTOL",
        "policies on its representations succeed more often than on DecisionNCE's (section 5.3): by .15 on switching "
        "on the light and hammering (Tables 8 and 11)",
        f"{_CLONED}, our directed form minus -T with a CLIP term",
        "lcbc",
        lambda: cloned("lcbc", "actol") - cloned("lcbc", "decisionnce_t"),
        partial(comparable, "lcbc", "decisionnce_t"),
        effect=0.15,
    ),
    Claim(
        "Premier-TACO",
        "fine-tuned, it is above learning from scratch: .758 against .436 (Table 2)",
        "success after five demonstrations of four unseen Meta-World tasks, [few-shot policies](fewshot.md)",
        "fewshot_finetuned",
        partial(_fewshot, "fewshot_finetuned", "premier_taco/finetuned", "scratch"),
        partial(_tellable, "fewshot_finetuned"),
        0.322,
    ),
    Claim(
        "Premier-TACO",
        "it is above TACO: .758 against .475 (Table 2)",
        "the same four tasks, [TACO's loss over time alone](fewshot.md), both fine-tuned",
        "fewshot_finetuned",
        partial(_fewshot, "fewshot_finetuned", "premier_taco/finetuned", "taco/finetuned"),
        partial(_tellable, "fewshot_finetuned"),
        0.283,
    ),
    *(
        Claim(
            "Premier-TACO",
            f"it is above learning from scratch {figure}",
            f"success after five demonstrations of two {tasks}, [{title}](fewshot.md#{title.replace(' ', '-')})",
            f"fewshot_{name}",
            partial(_fewshot, f"fewshot_{name}", "premier_taco/finetuned", "scratch"),
            partial(_tellable, f"fewshot_{name}"),
        )
        for name, title, tasks, figure in (
            ("embodiment", "other arms", "unseen arms", "on bodies that pretraining did not see (Fig. 6)"),
            ("camera", "an unseen camera", "unseen tasks", "under a camera that pretraining did not see (Fig. 6)"),
            ("random", "nearly random data", "unseen tasks", "after pretraining on random data (Fig. 7)"),
        )
    ),
    Claim(
        "Premier-TACO",
        "an image model that it fine-tunes is above one that cloning fine-tunes (Fig. 8)",
        "success after five demonstrations of two unseen tasks, [an ImageNet model](fewshot.md#an-imagenet-model)",
        "fewshot_imagenet",
        partial(_fewshot, "fewshot_imagenet", "premier_taco/finetuned", IMAGE_MODEL),
        _image_model,
    ),
    Claim(
        "ICon",
        "its policies succeed more often than Diff-C's: by .057, mean of eight tasks (Tables 1 and 2)",
        "success on robosuite's CloseDrawer and Lift, [ICon and its baselines](icon.md), where Diff-C is in .3 to .9 "
        "(the paper's own on tasks of these names: .00 and -.04)",
        "icon_lift",
        partial(more, "icon_close_drawer", "icon_lift"),
        partial(in_band, "icon_close_drawer", "icon_lift"),
        0.057,
    ),
    Claim(
        "ICon",
        "it helps the transformer policy, Diff-T, too: by .047, mean of five tasks (Table 1)",
        "success on CloseDrawer, [other policies](icon.md#other-policies-and-parts-of-icon)",
        "icon_methods",
        partial(more, "icon_methods", row="ICon-Diff-T", baseline="Diff-T"),
        partial(in_band, "icon_methods", baseline="Diff-T"),
        0.047,
    ),
    *(
        Claim(
            "ICon",
            f"{part} (Fig. 5)",
            f"success on CloseDrawer, [{change}](icon.md#other-policies-and-parts-of-icon); "
            "the two were trained on different processors",
            "icon_methods",
            partial(more, "icon_close_drawer", "icon_methods", baseline=f"ICon-Diff-C-{name}"),
            partial(in_band, "icon_methods"),
        )
        for name, part, change in (
            ("random-keys", "keys by farthest points matter", "with them and with random keys"),
            ("last-layer", "the loss at all layers matters", "at all layers and at the last alone"),
        )
    ),
    Claim(
        "ICon",
        "its policies transfer better to other robots: by .023, mean of four (Table 3)",
        "Lift, Panda to Kinova3 and IIWA, [five demonstrations](icon.md#other-robots); Diff-C trained on these alone "
        "succeeds about as often (the paper's own on these two robots: .027 and -.020)",
        "icon_transfer",
        partial(more, "icon_transfer", start="transferred"),
        partial(in_band, "icon_transfer", start="transferred"),
        0.023,
    ),
    Claim(
        "ICon",
        "succeeds more often on RLBench's five tasks (Table 1)",
        "RLBench",
        reason="its simulator, CoppeliaSim, cannot be had here",
    ),
    *(
        Claim(
            "TD InfoNCE",
            "needs 1,500 times less data than Monte Carlo InfoNCE (Fig. 3)",
            f"{_TABULAR}; {tail}",
            "occupancy",
            partial(_less_data, f"mc_infonce_{rule}", data),
            _known_model,
            log(1500),
            unit="ratio",
        )
        for rule, data, tail in (
            ("renormalise", "episodes", "futures past an episode's end are drawn again"),
            ("clip", "episodes", "futures past an episode's end are its last state"),
            ("reject", "episodes", "transitions whose future lies past the end are drawn again"),
            ("renormalise", "trajectory", "one uncut trajectory (below half of the paper's, on the logarithmic scale)"),
        )
    ),
    Claim(
        "TD InfoNCE",
        "needs 130 times less data than C-learning (Fig. 3)",
        _TABULAR,
        "occupancy",
        partial(_less_data, "c_learning"),
        _known_model,
        log(130),
        unit="ratio",
    ),
    *(
        Claim(
            "TD InfoNCE",
            "needs 20 times less data than the successor representation (Fig. 3)",
            _TABULAR.replace("decayed", steps),
            "occupancy",
            partial(_less_data, "sr", steps=steps),
            _known_model,
            log(20),
            unit="ratio",
        )
        for steps in ("decayed", "constant")
    ),
    *(
        Claim(
            "TD InfoNCE",
            "joins trajectories where Monte Carlo does not (Fig. 4)",
            f"success of table policies on two kinds of [staircases](stitching.md#stitching), {rule}",
            "stitching",
            partial(_stitched, key),
            _untrained_fails,
            1.0,
        )
        for key, rule in RULES.items()
    ),
    *(
        Claim(
            "TD InfoNCE",
            "takes the shortcut that one trajectory in twenty shows, where Monte Carlo does not (Fig. 5)",
            f"share of runs on four [branching layouts](stitching.md#shortcuts), {rule}",
            "stitching",
            partial(_shortcuts, key),
            _untrained_fails,
            1.0,
        )
        for key, rule in RULES.items()
    ),
    *(
        Claim(
            "TD InfoNCE",
            "reaches goals after fewer steps than contrastive RL online (Fig. 2 and 6)",
            f"mean success over training on [FetchReach](goal_reaching.md#fetchreach-with-actors-alike), {both}",
            "goal_reaching_fetch_reach_matched",
            partial(_sooner, *rows),
            partial(_reaches, rows[1]),
        )
        for both, rows in _ACTORS.items()
    ),
    *(
        Claim(
            "TD InfoNCE",
            "is above contrastive RL offline: by .073, mean of six AntMaze settings (Table 1)",
            f"success between parts of [{maze}](goal_reaching.md#stitching-in-a-maze-offline), {both}",
            f"goal_reaching_{study}",
            partial(_joins, study, *rows),
            partial(_joinable, study, *rows),
            0.073,
        )
        for maze, study in (("Medium", "stitch"), ("Large", "stitch_large"))
        for both, rows in _ACTORS.items()
    ),
    Claim(
        "TD InfoNCE",
        "loses less than QRL where observations are corrupted (Fig. 2b)",
        "[FetchReach](goal_reaching.md#fetchreach-with-corrupted-observations), a tenth of the observations corrupted; "
        "QRL without its entropy bonus",
        "goal_reaching_fetch_reach_corrupted",
        _loses_less,
        _both_reach,
    ),
    Claim(
        "TD InfoNCE",
        "is the only method that solves image-based pick and place and slide (Fig. 6)",
        "Fetch tasks from images",
        reason="days of a graphics card for each agent",
    ),
)
"""The claims, paper by paper."""
