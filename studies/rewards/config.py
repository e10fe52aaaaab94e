"""The configuration of a study of rewards under instructions that fit, do not fit, or are worded differently."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from counterpoint.config import FrozenConfig


class Row(FrozenConfig):
    """A line of the tables: a method.

    Attributes:
        recipe: The recipe, with the encoder and the objective.
        overrides: Changes to the recipe.
        settings: The recipe's settings, those that a search chose for this method, or its authors' with the number of
            steps that the search chose.
        method: The method's name in the search; by default the row's.
        trained: False to keep the initial weights.
        start: The row with whose weights training starts; random weights by default.
        pick: The way to draw the frames of a training clip; by default the objective's own way.
        padding: Number of frames of the next episode at the end of a training clip, as a share of the clip's frames.
        failures: True to train on the failed episodes too.
    """

    recipe: str
    overrides: dict[str, Any] = Field(default={})
    settings: Literal["recipe", "searched", "authors"] = "recipe"
    method: str = ""
    trained: bool = True
    start: str | None = None
    pick: Literal["own", "a tenth", "half", "whole"] = "own"
    padding: float = Field(0.0, ge=0)
    failures: bool = False


class Videos(FrozenConfig):
    """Videos on which no row is trained, such as those of another camera or another robot.

    Attributes:
        data: The data set; by default the study's.
        split: The split of the data set; all episodes by default.
        camera: The camera; the first by default.
    """

    data: str = ""
    split: str | None = None
    camera: str | None = None


class RewardsConfig(FrozenConfig):
    """Methods, videos, and instructions with a known relation to them.

    Attributes:
        data: Videos, one part of which is used for training and the rest for measurements. If the data have the splits
            `train` and `test`, these are the parts.
        folds: Number of parts of data without these splits: every instruction's episodes are distributed in turn, and
            each part is measured by encoders that were trained on the others.
        camera: The camera of `data`; the first by default.
        per_task: Number of training videos of each instruction, of data with these splits; all by default.
        rows: Methods by name.
        searches: Result files of `studies.tune` from which rows take their settings.
        overrides: Changes to the recipe of every row, such as the number of steps; a row's own changes take precedence.
        others: Further videos by name; the candidates for each are its own instructions.
        relations: By relation and instruction of the video, the instructions that have this relation to it. All other
            instructions of the data are mismatched.
        opposite: The relation of instructions that undo each other.
        pairs: Recorded clips in which one task follows another, each part with the instruction of a training video;
            without it, clips of two actions are not measured.
        failures: By name, data with the splits `train` and `test` that hold failed episodes of the same tasks: the test
            videos, all of which succeed, are told apart from the failures of `test`.
        reworded: True to measure rewards under other words too.
        gate: Number of training videos of each instruction that are measured too, to check that a method learned them.
        seeds: Random seeds of weights and batches.
        processes: Number of trials that run in parallel.
    """

    data: str
    folds: PositiveInt = 2
    camera: str | None = None
    per_task: PositiveInt | None = None
    rows: dict[str, Row] = Field(min_length=1)
    searches: tuple[str, ...] = ()
    overrides: dict[str, Any] = Field(default={})
    others: dict[str, Videos] = Field(default={})
    relations: dict[str, dict[str, tuple[str, ...]]] = Field(default={})
    opposite: str = "contradictory"
    pairs: str = ""
    failures: dict[str, str] = Field(default={})
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
