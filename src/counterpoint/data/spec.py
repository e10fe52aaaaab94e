"""The contents of a batch as plain data: the samples, the tensors to read for each, and the random numbers to draw."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from counterpoint.data.anchors import Anchors, NearNegatives
from counterpoint.data.augment import Crop, Row, Shift, Transform
from counterpoint.data.draws import Clips, Pick
from counterpoint.data.store import Cameras, EpisodeStore, camera_names
from counterpoint.data.store_views import Task, task_table
from counterpoint.data.transitions import GoalMix, Tail, Transitions
from counterpoint.errors import require

Item = TypeVar("Item")
Index = Clips | Anchors | Transitions
"""A rule that chooses the samples of a batch."""


@dataclass(frozen=True)
class Read:
    """One tensor of the batch.

    Attributes:
        source: `frames`, `masks` (the robot in each image), or a vector that the store has.
        at: Name of the index's draw, which gives the steps to read.
        stack: S, the number of frames per observation. The tensor is [..., C S, H, W, 3]: the S frames of the first
            camera, then those of the next, for C cameras. Before the episode's start, its first frame is repeated. 0
            reads single frames, without the axis C S.
    """

    source: str
    at: str
    stack: int = 0


TRANSITION_READS = {
    "observation": Read("observation", "transition"),
    "action": Read("action", "transition"),
    "next_observation": Read("observation", "next"),
    "next_goal": Read("goal", "next"),
    "goal": Read("command", "transition"),
    "future_goal": Read("goal", "future"),
    "random_goal": Read("goal", "random"),
    "reward": Read("reward", "transition"),
    "terminated": Read("terminated", "transition"),
}
"""The reads of a replay buffer, by batch key; a batch with `future_goal` also holds its `future_offset`."""

GOAL_READS = {
    "value_goal": Read("goal", "value"),
    "actor_goal": Read("goal", "actor"),
    "target": Read("observation", "actor.target"),
    "target_goal": Read("goal", "actor.target"),
    "subgoal": Read("goal", "subgoal"),
}
"""The reads of a replay buffer whose goals are mixtures; a batch with `value_goal` also holds `value.reached`."""

SEQUENCE_READS = {f"sequence_{source}": Read(source, "sequence") for source in ("observation", "action", "return")}


@dataclass(frozen=True)
class Spec:
    """The contents of a batch.

    Attributes:
        index: The rule that chooses samples: `Clips`, `Anchors` or `Transitions`.
        reads: The tensor to read for each key of the batch.
        transforms: The random numbers to draw for each key of the batch: for augmentations of `frames`, or noise.
        beside: Specs of auxiliary objectives by name; their keys become `name.key`. Each spec has its own seed, so that
            adding one does not change the draws of the others.
    """

    index: Index
    reads: Mapping[str, Read]
    transforms: Mapping[str, Transform] = field(default_factory=dict)
    beside: Mapping[str, Spec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, read in self.reads.items():
            known = read.at in self.index.draws
            require(known, f"read {key!r}", f"draw {read.at!r}", f"one of {self.index.draws}", "name one of them")

    @classmethod
    def clips(
        cls, pick: Pick, *, per_instruction: bool = False, transforms: Mapping[str, Transform] | None = None
    ) -> Spec:
        """Return the spec of clips whose picked steps are read as `frames`."""
        return cls(Clips(pick, per_instruction), {"frames": Read("frames", "clip")}, transforms or {})

    @classmethod
    def steps(
        cls,
        offsets: tuple[int, ...],
        actions: int,
        near: NearNegatives | None = None,
        *,
        stack: int = 3,
        shift: int = 0,
        shift_together: bool = False,
        crop: int = 0,
        first_action: int = 0,
        past_end: int = 0,
        masks: bool = False,
        rewards: bool = False,
        state: bool = False,
    ) -> Spec:
        """Return the spec of anchors with observations and actions around them.

        Args:
            offsets: Observations at t + offset; see `Anchors`, also for `near`, `actions`, `first_action` and
                `past_end`.
            actions: K, the number of actions.
            near: Negatives around the last observation, appended to `frames`.
            stack: S, frames per observation.
            shift: Maximum random shift of each view, in pixels; 0 for none.
            shift_together: Shift all views of a sample by the same amount.
            crop: Side of a random window cut out of each image, in pixels; 0 for none.
            first_action: Shift of the actions: they begin at a_{t+first_action}.
            past_end: Number of steps that actions may reach past the episode's end.
            masks: Read the robot's mask of each view's newest image.
            rewards: Read r_t ... r_{t+K-1}.
            state: Read the proprioception at each offset.
        """
        good, found = stack > 0 and min(shift, crop) >= 0, f"stack = {stack}, shift = {shift}, crop = {crop}"
        require(good, "sampling", found, "at least one frame a stack, no negative numbers", "correct the settings")
        good, found = not (rewards and first_action), f"rewards with actions that begin at t {first_action:+d}"
        require(good, "sampling", found, "rewards r_t beside actions a_t", "read rewards in a spec of their own")
        places = {"masks": "views", "actions": "actions", "rewards": "actions", "state": "offsets"}
        wanted = {"masks": masks, "actions": actions, "rewards": rewards, "state": state}
        reads = {name: Read(name, at) for name, at in places.items() if wanted[name]}
        transforms: dict[str, Transform] = {"shift": Shift(shift, shift_together)} if shift else {}
        transforms |= {"crop": Crop(crop)} if crop else {}
        index = Anchors(offsets, near, actions, first_action, past_end)
        return cls(index, {"frames": Read("frames", "views", stack)} | reads, transforms)

    @classmethod
    def transitions(
        cls,
        keys: Collection[str],
        *,
        discount: float = 0.99,
        tail: Tail = "renormalise",
        sequence: int = 0,
        goals: Mapping[str, GoalMix] | None = None,
        subgoal: int = 1,
    ) -> Spec:
        """Return the spec of transitions from a replay buffer, with some keys of `TRANSITION_READS` and `GOAL_READS`.

        With `sequence` = K, the K steps that end at each transition are read too: `sequence_observation`,
        `sequence_action`, `sequence_return` (undiscounted sum of the data's rewards from that step to the end),
        `sequence_step` and `sequence_valid`, all [B, K, ...]. `goals` and `subgoal`: see `Transitions`.
        """
        known = TRANSITION_READS | GOAL_READS
        unknown, expected = sorted(set(keys) - set(known)), f"some of {list(known)}"
        require(not unknown, "transitions", f"the keys {unknown}", expected, "name some of these")
        reads = {key: read for key, read in known.items() if key in keys}
        index = Transitions(discount, tail, sequence, goals or {}, subgoal)
        return cls(index, reads | (SEQUENCE_READS if sequence else {}))

    @property
    def shift(self) -> int:
        """Maximum random shift of each view, in pixels; 0 for none."""
        return getattr(self.transforms.get("shift"), "pad", 0)

    @property
    def crop(self) -> int:
        """Side of the random windows cut out of images, in pixels; 0 for none."""
        return getattr(self.transforms.get("crop"), "size", 0)

    def with_crop(self, size: int) -> Spec:
        """Return a copy that cuts random windows of this side out of images; 0 cuts none."""
        return replace(self, transforms=_without(self.transforms, "crop") | ({"crop": Crop(size)} if size else {}))

    def with_transform(self, key: str, transform: Transform) -> Spec:
        """Return a copy in which `transform` is added or replaced under `key`."""
        return replace(self, transforms={**self.transforms, key: transform})

    def with_index(self, **changes: Any) -> Spec:
        """Return a copy in which settings of the index are changed."""
        return replace(self, index=replace(self.index, **changes))

    def with_read(self, key: str, read: Read | None) -> Spec:
        """Return a copy in which `read` is added or replaced under `key`; `None` removes it."""
        return replace(self, reads=_without(self.reads, key) | ({key: read} if read else {}))

    def on_features(self, rows: int) -> Spec:
        """Return a copy that reads `features` instead of `frames`; one of `rows` feature rows is drawn per sample."""
        read = self.reads["frames"]
        kept = {key: draw for key, draw in self.transforms.items() if not key.startswith("frames.")}
        kept |= {"features.row": Row(rows)} if rows > 1 else {}
        spec = replace(self.with_read("frames", None), transforms=kept)
        return spec.with_read("features", replace(read, source="features"))

    def bind(
        self,
        store: EpisodeStore,
        cameras: Cameras = None,
        *,
        action_dim: int | None = None,
        tasks: Mapping[Task, int] | None = None,
    ) -> BoundSpec:
        """Return the spec with the cameras, action width and task numbers of the training data, for use on any data.

        Args:
            store: Training episodes.
            cameras: Cameras of `frames`; the store's first by default.
            action_dim: A, the number of action dimensions, if larger than in the data; the additional dimensions are
                zero and masked.
            tasks: Tasks that already have a number; further tasks are numbered after them.

        Raises:
            BadInputError: When a camera is unknown, or actions are missing.
        """
        names = camera_names(cameras, store) if "frames" in self.reads else ()
        if "actions" in self.reads:
            action_dim = store.column("actions").shape[1] if action_dim is None else action_dim
        numbers = {} if isinstance(self.index, Transitions) else task_table(store, tasks)
        return BoundSpec(self, names, action_dim, numbers)


def _without(items: Mapping[str, Item], key: str) -> dict[str, Item]:
    return {name: item for name, item in items.items() if name != key}


@dataclass(frozen=True)
class BoundSpec:
    """A spec, together with the facts that follow from the training data.

    Attributes:
        spec: The spec.
        cameras: Cameras whose images `frames` holds, in order.
        action_dim: A, the number of action dimensions; `None` if no actions are read.
        tasks: The number of each task.
    """

    spec: Spec
    cameras: tuple[str, ...]
    action_dim: int | None
    tasks: Mapping[Task, int]
