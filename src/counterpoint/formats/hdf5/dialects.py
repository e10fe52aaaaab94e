"""The dialects of HDF5 files: which program wrote a file, and what its rows therefore mean.

A dialect is recognised by at least two facts about the file's content; its name does not count. Files of two dialects
may look alike and still differ in the step to which an image belongs. A file is therefore refused if two facts do not
identify its dialect, unless the user names the dialect.

Sources: robomimic's documentation of its data sets; LIBERO's `scripts/create_dataset.py`; OpenVLA's
`regenerate_libero_dataset.py`; robocasa's and MimicGen's data sets, which have robomimic's layout; IsaacLab's
`HDF5DatasetFileHandler` and its recorders; `record_episodes.py` of ALOHA, ACT and Mobile ALOHA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from counterpoint.errors import BadInputError, require_known

CONTROL_HZ = 20.0
"""Actions per second if `env_args` does not record them; robomimic and LIBERO always use this rate."""
_ALOHA_HZ = 50.0  # DT = 0.02 in the constants of ALOHA
ROBOMIMIC_STATE = ("eef_pos", "eef_quat", "gripper_qpos")
"""Proprioception of each robot in turn (`robot0_eef_pos`, ...): end effector position, quaternion, gripper joints."""
LIBERO_STATE = ("gripper_states", "joint_states")
"""Proprioception: two gripper joints and seven joint angles, the observations of LIBERO's own policies."""
_LIBERO_CAMERAS = ("agentview_rgb", "eye_in_hand_rgb")
_ROBOT = re.compile(r"(robot\d+)_")

Form = tuple[str, tuple[int, ...]]
"""dtype and shape of an array; the dtype "bytes" stands for bytes of varying length."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The parts of a file that show which program wrote it.

    Attributes:
        top: Names at the top of the file.
        attributes: Names of the attributes of `data`, or of the file if the file is one demonstration.
        args: The attribute `env_args`.
        parts: Names in the first demonstration -> True for groups.
        demo_attributes: Names of the attributes of the first demonstration.
        observed: dtype and shape of each observation that is an array.
        images: dtype and shape of each array in `observations/images`; empty for files with a group `data`.
    """

    top: frozenset[str]
    attributes: frozenset[str]
    args: Mapping[str, Any]
    parts: Mapping[str, bool]
    demo_attributes: frozenset[str]
    observed: Mapping[str, Form]
    images: Mapping[str, Form]


def is_image(form: Form, channels: int = 3) -> bool:
    """Return whether an array holds images uint8 [T, H, W, channels], or channel-first [T, 3, H, W]."""
    dtype, shape = form
    return dtype == "uint8" and len(shape) == 4 and (shape[-1] == channels or (channels == 3 and shape[1] == 3))


def is_grey(form: Form) -> bool:
    """Return whether an array may hold images of one channel, uint8 [T, H, W] or [T, H, W, 1]."""
    dtype, shape = form
    return dtype == "uint8" and (len(shape) == 3 or (len(shape) == 4 and shape[-1] == 1))


def is_scaled(form: Form) -> bool:
    """Return whether an array may hold images as floats in [0, 1], [T, H, W, 3] or channel-first [T, 3, H, W]."""
    dtype, shape = form
    return dtype.startswith("float") and is_image(("uint8", shape))


def is_packed(form: Form) -> bool:
    """Return whether an array may hold one compressed image per row: uint8 [T, bytes], or `bytes` [T]."""
    return (form[0], len(form[1])) in (("uint8", 2), ("bytes", 1))


def is_either(form: Form) -> bool:
    """Return whether an array may hold images, compressed or not."""
    return is_packed(form) or is_image(form)


def _environment(outline: Outline) -> str:
    return str(outline.args.get("env_name", ""))


def _mobile_base(outline: Outline) -> bool:
    views = {"robot0_agentview_left_image", "robot0_agentview_right_image"}
    return bool(views & set(outline.observed)) or any(key.startswith("robot0_base_") for key in outline.observed)


def _without_images(outline: Outline) -> bool:
    forms = outline.observed.values()
    return "data" in outline.top and bool(forms) and not any(len(form[1]) == 4 or is_grey(form) for form in forms)


SIGNS: dict[str, Callable[[Outline], bool]] = {
    "env_args with env_kwargs": lambda o: "env_name" in o.args and "env_kwargs" in o.args,
    "observations of robot0": lambda o: any(_ROBOT.match(key) for key in o.observed),
    "images named NAME_image": lambda o: any(
        key.endswith("_image") and is_image(form) for key, form in o.observed.items()
    ),
    "observations without images": _without_images,
    "the attribute ep_meta of demonstrations": lambda o: "ep_meta" in o.demo_attributes,
    "a mobile base or robocasa's cameras": _mobile_base,
    "images named agentview_rgb or eye_in_hand_rgb": lambda o: not o.observed.keys().isdisjoint(_LIBERO_CAMERAS),
    "the state of LIBERO": lambda o: not o.observed.keys().isdisjoint(LIBERO_STATE),
    "the attribute problem_info": lambda o: "problem_info" in o.attributes,
    "the attribute bddl_file_name": lambda o: "bddl_file_name" in o.attributes,
    "an environment named Libero_...": lambda o: _environment(o).startswith("Libero_"),
    "data without attributes": lambda o: "data" in o.top and not o.attributes,
    "demonstrations without attributes": lambda o: "data" in o.top and bool(o.parts) and not o.demo_attributes,
    "an environment named Isaac-...": lambda o: _environment(o).startswith("Isaac-"),
    "states in a group": lambda o: o.parts.get("states") is True,
    "a group initial_state": lambda o: o.parts.get("initial_state") is True,
    "the attribute success of demonstrations": lambda o: "success" in o.demo_attributes,
    "action at the top of the file": lambda o: o.parts.get("action") is False,
    "observations/qpos": lambda o: "qpos" in o.observed and "observations" in o.top,
    "images as compressed rows": lambda o: any(map(is_packed, o.images.values())),
}
"""Each fact that may identify a dialect, in words -> a function that returns whether a file shows the fact."""
_ISAAC = ("an environment named Isaac-...", "states in a group", "a group initial_state")
_LIBERO = "images named agentview_rgb or eye_in_hand_rgb"
_ALOHA = ("action at the top of the file", "observations/qpos")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The meaning of a file's parts.

    Attributes:
        name: The name for `--dialect`.
        title: The dialect in words.
        needs: Facts that every file of this dialect shows.
        also: Facts that such a file may show. It must show at least two facts of `needs` and `also` together.
        against: Facts that such a file never shows.
        within: A more general dialect that also fits such a file.
        lead: Rows by which an action precedes the image of its row: 1 if the recorder acted first, else 0.
        bottom_first: True if images have their bottom row first, unless `macros_image_convention` is "opencv".
        top: True if the file is one demonstration; otherwise the demonstrations are the groups of `data`.
        actions: Name of the actions in a demonstration.
        obs: Group of the observations in a demonstration.
        images: Group of the images in a demonstration.
        packed: "rgb" or "bgr": images are JPEG or PNG, in this order of colours; empty if they are arrays.
        state: Keys of proprioception, in the order in which they are joined.
        each_robot: True if the keys of `state` begin with the name of a robot.
        success: The record of success: `rewards` that reach 1, the demonstration's `attribute`, or `nothing`.
        words: The source of the instruction if the file holds none: the name of the environment, the file or the
            folder.
        fps: Steps per second if the file does not record them.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    within: str = ""
    lead: int = 0
    bottom_first: bool = False
    top: bool = False
    actions: str = "actions"
    obs: str = "obs"
    images: str = "obs"
    packed: Literal["", "rgb", "bgr"] = ""
    state: tuple[str, ...] = ROBOMIMIC_STATE
    each_robot: bool = True
    success: Literal["rewards", "attribute", "nothing"] = "rewards"
    words: Literal["environment", "file", "folder"] = "environment"
    fps: float = CONTROL_HZ

    def recognises(self, shown: Iterable[str]) -> bool:
        """Return whether a file that shows these facts is of this dialect."""
        facts = set(shown)
        enough = len(facts.intersection(self.needs + self.also)) >= 2
        return enough and facts.issuperset(self.needs) and facts.isdisjoint(self.against)

    def state_keys(self, observed: Iterable[str]) -> tuple[str, ...]:
        """Return the keys of the proprioception, in order, that are among the names of the observations."""
        names = list(observed)
        robots = sorted({found[1] for found in map(_ROBOT.match, names) if found})
        keys = [f"{robot}_{part}" for robot in robots for part in self.state] if self.each_robot else self.state
        return tuple(key for key in keys if key in names)

    @property
    def facts(self) -> dict[str, str]:
        """The dialect's consequences, for `counterpoint data info`."""
        late = "the file's image t was taken after its action t; it is paired with action t + 1"
        rows = "bottom row first in the file, turned upright" if self.bottom_first else "top row first"
        colours = {"rgb": ", JPEG in its own colours", "bgr": ", JPEG with red and blue exchanged, put right"}
        return {
            "observation and action": late if self.lead else "image t was taken before action t; not shifted",
            "images": rows + colours.get(self.packed, ""),
        }


_ROBOMIMIC = ("env_args with env_kwargs", "observations of robot0", "images named NAME_image")
_ONE_FILE: dict[str, Any] = {
    "needs": _ALOHA,
    "top": True,
    "actions": "action",
    "obs": "observations",
    "images": "observations/images",
    "state": ("qpos",),
    "each_robot": False,
    "success": "nothing",
    "words": "folder",
    "fps": _ALOHA_HZ,
}
_PACKED = _ONE_FILE | {"needs": (*_ALOHA, "images as compressed rows")}

DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "robomimic",
            "robomimic or MimicGen",
            also=_ROBOMIMIC,
            against=(*_ISAAC, _LIBERO, "observations without images"),
        ),
        Dialect(
            "robomimic_low_dim",
            "robomimic or MimicGen without images",
            needs=("observations without images",),
            also=_ROBOMIMIC[:2],
            against=(*_ISAAC, "the state of LIBERO"),
        ),
        Dialect(
            "robocasa",
            "robocasa",
            needs=("the attribute ep_meta of demonstrations", "a mobile base or robocasa's cameras"),
            also=_ROBOMIMIC,
            against=(*_ISAAC, "the state of LIBERO"),
            within="robomimic",
        ),
        Dialect(
            "libero",
            "LIBERO's release",
            needs=(_LIBERO,),
            also=("the attribute problem_info", "the attribute bddl_file_name", "an environment named Libero_..."),
            lead=1,
            bottom_first=True,
            state=LIBERO_STATE,
            each_robot=False,
            words="file",
        ),
        Dialect(
            "libero_regenerated",
            "LIBERO regenerated by OpenVLA's script, without actions that do nothing",
            needs=(_LIBERO, "data without attributes", "demonstrations without attributes"),
            bottom_first=True,
            state=LIBERO_STATE,
            each_robot=False,
            words="file",
        ),
        Dialect(
            "isaaclab",
            "IsaacLab's recorder",
            also=(*_ISAAC, "the attribute success of demonstrations"),
            state=("joint_pos", "eef_pos", "eef_quat", "gripper_pos"),
            each_robot=False,
            success="attribute",
        ),
        Dialect("aloha", "ALOHA or ACT", against=("images as compressed rows",), **_ONE_FILE),
        Dialect("aloha_jpeg", "ALOHA or ACT with JPEG in its own colours", packed="rgb", **_PACKED),
        Dialect("aloha_jpeg_bgr", "ALOHA or ACT with JPEG whose red and blue are exchanged", packed="bgr", **_PACKED),
    )
}
"""Name -> dialect. ALOHA's recorders differ in the order of colours in their JPEG images, which no file records."""


def dialect_of(path: Path, outline: Outline, name: str | None) -> tuple[Dialect, tuple[str, ...]]:
    """Return a file's dialect, and the facts that identified it; no facts if the user named the dialect.

    Raises:
        BadInputError: When the name is unknown, or the facts do not identify exactly one dialect.
    """
    if name is not None:
        require_known(name, DIALECTS, "--dialect")
        return DIALECTS[name], ()
    shown = [words for words, holds in SIGNS.items() if holds(outline)]
    fits = [dialect for dialect in DIALECTS.values() if dialect.recognises(shown)]
    inner = {dialect.within for dialect in fits}
    fits = [dialect for dialect in fits if dialect.name not in inner]
    if len(fits) == 1:
        return fits[0], tuple(words for words in shown if words in fits[0].needs + fits[0].also)
    choices = [dialect.name for dialect in fits]
    expected = "two or more facts that tell one dialect" + f", not {' and '.join(choices)}" * bool(fits)
    listed = " or ".join(f"--dialect {choice}" for choice in choices or _possible(outline, shown))
    found = "; ".join(shown) or "no fact that tells a dialect"
    raise BadInputError(path, found, expected, f"name the dialect: {listed} (dialect= in Python)")


def _possible(outline: Outline, shown: Iterable[str]) -> list[str]:
    """Return the dialects that a file's facts allow, most matches first; without any match, all of its layout."""
    facts, top = set(shown), "data" not in outline.top
    alike = [dialect for dialect in DIALECTS.values() if dialect.top == top and facts.isdisjoint(dialect.against)]
    counts = {dialect.name: len(facts.intersection(dialect.needs + dialect.also)) for dialect in alike}
    told = sorted((name for name in counts if counts[name]), key=lambda name: -counts[name])
    return told or list(counts)
