"""Meta-World's 50 tasks in words.

Left, right, forward and back are the arm's own, as in Meta-World's task names: the arm reaches forward over
the table.
"""

from __future__ import annotations

from collections.abc import Iterable

from counterpoint.config import suggestion
from counterpoint.errors import BadInputError, require

INSTRUCTIONS = {
    "assembly-v3": "put the ring on the peg",
    "basketball-v3": "put the ball in the basket",
    "bin-picking-v3": "move the block from one bin to the other",
    "box-close-v3": "put the lid on the box",
    "button-press-topdown-v3": "press the button from above",
    "button-press-topdown-wall-v3": "press the button behind the wall from above",
    "button-press-v3": "press the button",
    "button-press-wall-v3": "reach around the wall and press the button",
    "coffee-button-v3": "start the coffee machine",
    "coffee-pull-v3": "take the mug away from the coffee machine",
    "coffee-push-v3": "put the mug under the coffee machine",
    "dial-turn-v3": "turn the dial",
    "disassemble-v3": "take the ring off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door",
    "drawer-close-v3": "close the drawer",
    "drawer-open-v3": "open the drawer",
    "faucet-close-v3": "turn off the faucet",
    "faucet-open-v3": "turn on the faucet",
    "hammer-v3": "hammer in the nail",
    "hand-insert-v3": "put the gripper into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up",
    "peg-insert-side-v3": "insert the peg into the hole in the side of the box",
    "peg-unplug-side-v3": "unplug the peg",
    "pick-out-of-hole-v3": "take the puck out of the hole",
    "pick-place-v3": "pick up the puck and hold it at the goal",
    "pick-place-wall-v3": "pick up the puck and carry it over the wall to the goal",
    "plate-slide-back-side-v3": "slide the plate sideways out of the net",
    "plate-slide-back-v3": "slide the plate back out of the net",
    "plate-slide-side-v3": "slide the plate sideways into the net",
    "plate-slide-v3": "slide the plate into the net",
    "push-back-v3": "pull the puck back to the goal",
    "push-v3": "push the puck to the goal",
    "push-wall-v3": "push the puck around the wall to the goal",
    "reach-v3": "move the gripper to the goal",
    "reach-wall-v3": "move the gripper over the wall to the goal",
    "shelf-place-v3": "place the block on the shelf",
    "soccer-v3": "kick the ball into the goal",
    "stick-pull-v3": "pull the thermos with the stick",
    "stick-push-v3": "push the thermos with the stick",
    "sweep-into-v3": "sweep the block into the hole",
    "sweep-v3": "sweep the block off the table",
    "window-close-v3": "close the window",
    "window-open-v3": "open the window",
}

DEFAULT_TASKS = (
    "assembly-v3",
    "basketball-v3",
    "button-press-topdown-v3",
    "coffee-push-v3",
    "dial-turn-v3",
    "door-close-v3",
    "drawer-open-v3",
    "faucet-open-v3",
    "hammer-v3",
    "handle-press-side-v3",
    "lever-pull-v3",
    "plate-slide-v3",
    "shelf-place-v3",
    "stick-push-v3",
    "window-open-v3",
)
"""Fifteen scenes that look different, which the scripted experts solve in about 30 to 110 steps."""

_NAMED = {"default": DEFAULT_TASKS, "all": tuple(INSTRUCTIONS)}


def resolve_tasks(names: Iterable[str]) -> tuple[str, ...]:
    """Return full task names, each once; `default` and `all` are expanded, `-v3` may be omitted.

    Raises:
        BadInputError: When a name is unknown or there is none.
    """
    tasks: dict[str, None] = {}
    for name in names:
        full = name if name in _NAMED or name.endswith("-v3") else f"{name}-v3"
        if full not in _NAMED and full not in INSTRUCTIONS:
            hint = suggestion(full, list(INSTRUCTIONS)) or f"one of {', '.join(INSTRUCTIONS)}"
            raise BadInputError("tasks", f"{name!r}", "default, all, or Meta-World v3 tasks", hint)
        tasks.update(dict.fromkeys(_NAMED.get(full, (full,))))
    require(tasks, "tasks", "none", "at least one", "name a task, or say default")
    return tuple(tasks)
