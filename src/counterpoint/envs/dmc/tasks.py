"""The tasks of the DeepMind Control Suite that Premier-TACO uses, by the names people give them.

Premier-TACO pretrains on six tasks (section 4; its Appendix C counts episodes of "Humanoid Stand and Dog Walk", which
are not among them) and adapts to ten others (Table 1; it lists Humanoid Walk, a pretraining task, as unseen too).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoint.config import suggestion
from counterpoint.errors import require

PRETRAINING = ("acrobot-swingup", "finger-turn_hard", "hopper-stand", "walker-run", "humanoid-walk", "dog-stand")
"""DMC-6, the pretraining tasks (Premier-TACO section 4)."""
EVALUATION = (
    "finger-spin",
    "hopper-hop",
    "walker-walk",
    "humanoid-walk",
    "dog-trot",
    "cup-catch",
    "reacher-hard",
    "cheetah-run",
    "quadruped-walk",
    "quadruped-run",
)
"""The ten tasks of Premier-TACO's Table 1."""
HARD_DOMAINS = ("humanoid", "dog")
"""Where the paper takes 100 demonstrations in place of 20."""

INSTRUCTIONS = {
    "acrobot-swingup": "swing the two-link pendulum up and balance it",
    "finger-turn_hard": "turn the spinner with the finger until its tip is on the small target",
    "finger-spin": "spin the body with the finger",
    "hopper-stand": "stand upright on one leg",
    "hopper-hop": "hop forward on one leg",
    "walker-stand": "stand upright on two legs",
    "walker-walk": "walk forward on two legs",
    "walker-run": "run forward on two legs",
    "humanoid-stand": "stand up and keep standing",
    "humanoid-walk": "stand up and walk",
    "dog-stand": "stand as a dog",
    "dog-walk": "walk as a dog",
    "dog-trot": "trot as a dog",
    "cup-catch": "swing the ball up and catch it in the cup",
    "reacher-hard": "reach the small target with the tip of the arm",
    "cheetah-run": "run forward as a cheetah",
    "quadruped-walk": "walk forward on four legs",
    "quadruped-run": "run forward on four legs",
}
"""Name -> the task in words."""


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """A task of the suite.

    Attributes:
        name: Our name, such as `cup-catch`.
        instruction: The task in words.
    """

    name: str
    instruction: str

    @property
    def domain(self) -> str:
        """The suite's domain, such as `ball_in_cup`."""
        domain = self.name.partition("-")[0]
        return "ball_in_cup" if domain == "cup" else domain

    @property
    def task(self) -> str:
        """The suite's task, such as `catch`."""
        return self.name.partition("-")[2]

    @property
    def camera(self) -> int:
        """Number of the usual camera, as in DrQ-v2's `dmc.py`; the dog's too."""
        return 2 if self.domain == "quadruped" else 0


TASKS = {name: SuiteTask(name, instruction) for name, instruction in INSTRUCTIONS.items()}
"""Name -> task."""


def resolve_dmc_tasks(names: Sequence[str]) -> tuple[str, ...]:
    """Return task names written out, each once.

    Args:
        names: Task names, `pretraining` (DMC-6) or `evaluation` (Table 1). The suite's spelling (`ball_in_cup-catch`)
            and underscores or spaces for hyphens (`walker_walk`, `Finger Turn Hard`) work too.

    Raises:
        BadInputError: When a name is unknown.
    """
    groups = {"pretraining": PRETRAINING, "evaluation": EVALUATION}
    require(names, "tasks", "none", "at least one task", "name some")
    return tuple(dict.fromkeys(task for name in names for task in groups.get(name) or (_resolve(name),)))


def _resolve(name: str) -> str:
    spellings = {_spelling(known): known for known in TASKS}
    spellings |= {_spelling(f"{task.domain}-{task.task}"): task.name for task in TASKS.values()}
    hint = suggestion(name, list(TASKS)) or "choose one of these"
    expected = f"one of {', '.join(TASKS)}, pretraining or evaluation"
    require(_spelling(name) in spellings, f"task {name!r}", "no such task of dm_control", expected, hint)
    return spellings[_spelling(name)]


def _spelling(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
