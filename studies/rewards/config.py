"""The configuration of a study of rewards under instructions that fit, do not fit, or say it otherwise."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from counterpoint.config import FrozenConfig
from studies.rewards.clips import Changes


class Row(FrozenConfig):
    """A line of the tables: a method.

    Attributes:
        recipe: The recipe whose encoder and objective it trains.
        overrides: Changes to the recipe.
        trained: False leaves the weights as they start.
        start: The row whose weights it continues from; random ones by default.
        pick: How the frames of a training clip are drawn; as the objective has it by default.
        clips: Changes to its training clips.
    """

    recipe: str
    overrides: dict[str, Any] = Field(default={})
    trained: bool = True
    start: str | None = None
    pick: Literal["own", "any frame", "a tenth", "half", "whole"] = "own"
    clips: Changes = Changes()


class Videos(FrozenConfig):
    """Videos that no row trains on: another camera, another robot.

    Attributes:
        data: The data set; by default the study's own.
        split: Its split; all episodes by default.
        camera: The view; the first by default.
        clips: Changes to its clips.
    """

    data: str = ""
    split: str | None = None
    camera: str | None = None
    clips: Changes = Changes()


class RewardsConfig(FrozenConfig):
    """Methods, videos, and instructions with a known relation to them.

    Attributes:
        data: Videos that are trained on in part and measured for the rest. Where the data have the splits `train` and
            `test`, these are the parts.
        folds: Number of parts otherwise: every instruction's episodes are dealt out in turn, and each part is measured
            by encoders that were trained on the others.
        camera: The view of `data`; the first by default.
        rows: Methods by name.
        overrides: Changes to the recipe of every row, such as the number of steps, that a row may change again.
        others: Further videos by name. Their own instructions are the candidates for them.
        relations: Relation -> instruction of the video -> instructions that stand in that relation to it. All other
            instructions of the data are mismatched.
        opposite: The relation whose pairs also make clips of two actions.
        joined: Greatest number of clips of two actions.
        reworded: Measure rewards under other words too.
        gate: Training videos of each instruction that are measured too, to see that a method has learned them.
        seeds: Random seeds of weights and batches.
        processes: Trials at a time.
    """

    data: str
    folds: PositiveInt = 2
    camera: str | None = None
    rows: dict[str, Row] = Field(min_length=1)
    overrides: dict[str, Any] = Field(default={})
    others: dict[str, Videos] = Field(default={})
    relations: dict[str, dict[str, tuple[str, ...]]] = Field(default={})
    opposite: str = "contradictory"
    joined: int = Field(2000, ge=0)
    reworded: bool = True
    gate: int = Field(0, ge=0)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    processes: PositiveInt = 1

    @model_validator(mode="after")
    def _relations_are_new(self) -> RewardsConfig:
        taken = {"matched", "mismatched"} & self.relations.keys()
        if taken:
            raise ValueError(f"{', '.join(sorted(taken))} follow from the data; name other relations")
        return self

    @model_validator(mode="after")
    def _starts_are_rows(self) -> RewardsConfig:
        for name, row in self.rows.items():
            if row.start is not None and (row.start not in self.rows or self.rows[row.start].start is not None):
                raise ValueError(f"{name} starts from {row.start!r}, which is no row with weights of its own")
        return self
