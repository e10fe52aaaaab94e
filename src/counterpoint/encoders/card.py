"""The card of a saved model, README.md: what the model is, how to use it, how it was trained, and its results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypedDict

from huggingface_hub import ModelCardData
from torch import Tensor

from counterpoint.files import read_object, write_atomically

README = "README.md"
ANY_ID, NO_RESULTS = "path/or/hub-id", "None stated."
"""Placeholders in a card for a model's address, and for results that have not been measured."""


class Card(TypedDict, total=False):
    """The parts of a model card that the model cannot provide.

    Attributes:
        title: First heading.
        start: The weights that training started from.
        method: Markdown about the training, with the recipe and the paper.
        data: Markdown about the training data.
        results: Markdown about measurements, with the command that made them.
        license: Identifier of the weights' licence.
    """

    title: str
    start: str
    method: str
    data: str
    results: str
    license: str


@dataclass(frozen=True)
class Description:
    """The part of a model card that a model provides.

    Attributes:
        usage: Example code that uses a variable `model`.
        facts: Rows of a table: values by name.
        sections: Markdown by heading.
    """

    usage: str
    facts: Mapping[str, object]
    sections: Mapping[str, str]


class Describable(Protocol):
    """A model that can describe itself for a card: a `SavedModel`."""

    kind: ClassVar[str]

    def describe(self) -> Description:
        """Return the part of the card that the model provides."""


def model_card(model: Describable, weights: Mapping[str, Tensor], card: Card) -> str:
    """Return the card of a model with these weights, as the text of a README.md."""
    own, kind = model.describe(), model.kind.replace("_", " ")
    tags = ["counterpoint", "robotics", "representation-learning", "contrastive-learning"]
    data = ModelCardData(library_name="counterpoint", license=card.get("license"), pipeline_tag="robotics", tags=tags)
    facts = {
        "Kind": kind,
        **own.facts,
        "Weights in `model.safetensors`": f"{sum(value.numel() for value in weights.values()):,} numbers",
    }
    facts |= {"Started from": card["start"]} if "start" in card else {}
    sections = {
        **own.sections,
        "Method": card.get("method", "Not stated."),
        "Training data": card.get("data", "Not stated."),
        "Results": card.get("results", NO_RESULTS),
    }
    usage = f'import counterpoint\n\nmodel = counterpoint.load("{ANY_ID}")\n{own.usage}'
    parts = [f"---\n{data.to_yaml()}\n---", f"# {card.get('title') or f'Counterpoint {kind}'}"]
    parts += ["Written by [Counterpoint](https://counterpoint.readthedocs.io).", f"```python\n{usage}\n```"]
    parts.append("\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]))
    parts += [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    return "\n\n".join(parts) + "\n"


def write_results(run: Path) -> None:
    """Write the numbers of a run's report and evaluation into the card of its model, if it has one."""
    readme = run / "model" / README
    if readme.is_file():
        write_atomically(readme, with_results(readme.read_text(encoding="utf-8"), run))


def with_results(card: str, run: Path) -> str:
    """Return a card with a run's numbers under "Results", unless that section has text that someone else wrote."""
    ours = rf"## Results\n\n(?:{re.escape(NO_RESULTS)}|By `counterpoint [^#]*)(?=\n\n## |\n*\Z)"
    return re.sub(ours, lambda _: f"## Results\n\n{_results(run)}", card, count=1).rstrip() + "\n"


def _results(run: Path) -> str:
    """Return the numbers in a run's result files as Markdown.

    The files are `report.json` (its `results`), and `evaluation.json` or, without it, training's own `result.json`.
    """
    rows, commands = [], []
    evaluated = ("evaluation", "evaluate") if (run / "evaluation.json").is_file() else ("result", "train")
    for name, command in (("report", "report"), evaluated):
        file = run / f"{name}.json"
        if file.is_file():
            found = read_object(file, "a result", "measure again")
            lines = [line for key, value in found.get("results", found).items() for line in _estimates(key, value)]
            commands += [f"`counterpoint {command}`"] if lines else []
            rows += lines
    head = ["| | value | 95 % interval | n |", "|---|---|---|---|"]
    return "\n".join([f"By {' and '.join(commands)}.", "", *head, *rows]) if rows else NO_RESULTS


def _estimates(name: str, value: Any) -> list[str]:
    """Return one table row for every estimate in a tree of JSON values."""
    if not isinstance(value, dict):
        return []
    if {"value", "low", "high", "n"} <= value.keys():
        numbers = ["" if value[key] is None else f"{value[key]:.3f}" for key in ("value", "low", "high")]
        return [f"| {name} | {numbers[0]} | {numbers[1]} to {numbers[2]} | {value['n']} |"]
    return [line for key, part in value.items() for line in _estimates(key, part)]
