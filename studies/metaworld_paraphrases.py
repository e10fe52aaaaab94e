"""Other ways to say Meta-World's default tasks, which only evaluation sees."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PARAPHRASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "assembly-v3": (
            "slip the ring over the peg",
            "fit the round nut onto the post",
            "set the loop down around the stick",
        ),
        "basketball-v3": ("drop the ball through the hoop", "score a basket", "dunk the basketball"),
        "button-press-topdown-v3": (
            "push the button down",
            "come from above and hit the button",
            "press down on the red button",
        ),
        "coffee-push-v3": (
            "slide the cup to the coffee maker",
            "move the coffee cup below the spout",
            "bring the mug to the espresso machine",
        ),
        "dial-turn-v3": ("rotate the knob", "twist the dial round", "give the round knob a turn"),
        "door-close-v3": ("shut the door", "push the door until it is closed", "swing the door shut"),
        "drawer-open-v3": ("pull the drawer out", "slide the drawer open", "get the drawer open by its handle"),
        "faucet-open-v3": ("open the tap", "turn the faucet handle to let the water run", "switch the tap on"),
        "hammer-v3": (
            "hit the nail with the hammer",
            "pick up the hammer and drive the nail into the wall",
            "pound the nail into the wood",
        ),
        "handle-press-side-v3": (
            "push the handle downwards",
            "lower the handle",
            "from the side, push down on the lever",
        ),
        "lever-pull-v3": ("lift the lever", "raise the lever arm", "flip the lever upwards"),
        "plate-slide-v3": (
            "push the dish into the goal",
            "shove the disc under the net",
            "move the plate forward into the cage",
        ),
        "shelf-place-v3": (
            "put the cube on the rack",
            "lift the blue block and set it on the shelf board",
            "store the block in the bookcase",
        ),
        "stick-push-v3": (
            "use the stick to shove the bottle away",
            "take the stick and move the flask with it",
            "nudge the thermos along using the blue rod",
        ),
        "window-open-v3": ("slide the window open", "push the window to the side", "let some air in by the window"),
    }
)


def please(instruction: str) -> str:
    """Return `Please {action} for me.`, the first conversational style of AcTOL, section 5.6."""
    return f"Please {instruction} for me."


def help_me(instruction: str) -> str:
    """Return `Help me {action}.`, the second conversational style of AcTOL, section 5.6."""
    return f"Help me {instruction}."
