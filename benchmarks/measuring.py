"""Parts that the benchmarks share: timing in turns, result files, and the code that each result measures."""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from counterpoint.provenance import provenance

Run = Callable[[], object]

ROOT = Path(__file__).parents[1]
CODE: dict[str, tuple[str, ...]] = {
    "losses": (
        "objectives/actol.py",
        "objectives/decisionnce.py",
        "objectives/icon.py",
        "objectives/base.py:symmetric_infonce",
    ),
    "sampling": ("data/sampler.py", "data/draws.py", "data/store.py:EpisodeStore", "data/replay.py"),
    "sampling_noise": ("data/sampler.py", "data/draws.py", "data/store.py:EpisodeStore", "data/replay.py"),
    "streaming": ("data/resize.py", "formats/epic.py", "data/sampler.py"),
    "collection": ("envs/rendering.py", "envs/metaworld/env.py", "envs/metaworld/collect.py"),
    "agent_update": (
        "agents/td_infonce.py",
        "agents/contrastive.py",
        "agents/networks.py:product",
        "agents/networks.py:_onednn",
        "agents/networks.py:_gradients",
        "objectives/td_infonce.py",
    ),
    "agent_ogbench": (
        "agents/networks.py:product",
        "agents/networks.py:_onednn",
        "agents/networks.py:_gradients",
        "agents/networks.py:gelu",
        "agents/ogbench/base.py",
        "agents/ogbench/gcivl.py",
        "agents/ogbench/gciql.py",
        "agents/ogbench/qrl.py",
        "agents/ogbench/hiql.py",
    ),
    "agent_collection": ("envs/vector.py", "envs/goal/tasks.py"),
    "premier_taco_update": (
        "objectives/premier_taco.py",
        "training/learner.py:ObjectiveLearner._step",
        "training/learner.py:ObjectiveLearner._clip",
    ),
    "training": (
        "training/learner.py:ObjectiveLearner._step",
        "training/learner.py:ObjectiveLearner._clip",
        "data/sampler.py",
        "encoders/dual.py:preprocess",
    ),
    "memory": (
        "training/learner.py:ObjectiveLearner._step",
        "training/learner.py:ObjectiveLearner._clip",
        "training/memory.py",
    ),
    "policy_latency": ("policies/diffusion.py", "policies/networks.py", "policies/encoded.py"),
    "policy_latency_small": ("policies/diffusion.py", "policies/networks.py", "policies/encoded.py"),
    "planning": ("planning/shooting.py", "envs/kitchen/dynamics.py"),
    "labelling_convnet": ("rewards/labeller.py:Labeller", "data/store.py:frame_batches", "encoders/dual.py:preprocess"),
    "labelling_efficientnet": ("rewards/labeller.py:Labeller", "data/store.py:frame_batches", "encoders/pooled.py"),
    "corpora_convnet": ("blocks.py", "encoders/embed.py:Embedder", "encoders/dual.py:preprocess"),
    "corpora_efficientnet": ("blocks.py", "encoders/embed.py:Embedder", "encoders/pooled.py"),
    "first_number": ("training/train.py", "encoders/features.py", "encoders/pooled.py", "rewards/curves.py:score_clip"),
    "growth": ("formats/lerobot/reader.py", "evaluation/rank.py", "rewards/labeller.py:Labeller", "data/build.py"),
    "gym_reward": ("rewards/gym.py", "encoders/dual.py:preprocess", "encoders/pooled.py"),
    "trips": ("agents/td_infonce.py", "rewards/model.py:RewardModel", "objectives/decisionnce.py"),
}
"""The files, or a function, class or method in a file, on which the numbers of a result depend the most."""


def code_of(name: str) -> dict[str, str]:
    """Return a digest of each part of the code that a result measures; comments and docstrings do not count.

    A result on a graphics card (`NAME_gpu`) measures the code of `NAME`.
    """
    return {part: _digest(part) for part in CODE.get(name.removesuffix("_gpu"), ())}


def _digest(part: str) -> str:
    path, _, wanted = part.partition(":")
    tree = ast.parse((ROOT / "src" / "counterpoint" / path).read_text(encoding="utf-8"))
    found: Any = tree
    for name in filter(None, wanted.split(".")):
        found = next(node for node in found.body if getattr(node, "name", "") == name)
    for node in ast.walk(found):
        body = getattr(node, "body", None)
        if isinstance(body, list):  # a docstring or another text alone is no code
            node.body = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(found).encode()).hexdigest()[:16]


def processor_ms(run: Run) -> float:
    """Return the processor milliseconds of a call, which are valid on a busy machine too."""
    started = time.process_time()
    run()
    return 1e3 * (time.process_time() - started)


def in_turns(rounds: int, runs: dict[str, Any], clock: Callable[[Run], Any] = processor_ms) -> dict[str, list[Any]]:
    """Return each candidate's time in every round, by name; candidates take turns, and a first round is not counted."""
    spent: dict[str, list[Any]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            reading = clock(run)
            if number:
                spent[name].append(reading)
    return spent


def medians(rounds: int, **runs: Run) -> dict[str, float]:
    """Return the median processor milliseconds of each candidate; candidates take turns."""
    return {name: median(times) for name, times in in_turns(rounds, runs).items()}


def parser(rounds: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--out", type=Path, help="the result file; in benchmarks/results by default")
    return made


def write(name: str, found: dict[str, Any], out: Path | None = None) -> None:
    """Write and print a result with its command and provenance."""
    path = out or Path(__file__).parent / "results" / f"{name}.json"
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"command": command, **found, "code": code_of(name), "provenance": provenance()}
    path.write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(found, indent=1))
