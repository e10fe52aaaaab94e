"""Score videos by models of others, in this process or, as a program, in a Python of their own.

    PATH/python foreign.py SOURCE --device cuda --memory 8

This file imports nothing else of this library, so that it runs in any environment with NumPy. There, the libraries of a
model, its hangs and its crashes cost that process alone (`counterpoint.rewards.isolated`). The program reads requests
from standard input and writes answers to standard output. A message is its length (eight bytes) and an .npz archive.
The first answer has `progress`, `reads_state`, `stages` and `files`, every other one the arrays of `Scores`; if they
fail, they have `error`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import os
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Scores = Mapping[str, Array]
"""`progress` [T], and where a model has them `success` [T], `stage` [T] and `known` [T], where it gave a value."""

PREFIXES, TOGETHER = 16, 8
"""Number of frames at which a LeRobot model scores a video, and of beginnings of a video in one batch."""
WHOLE = 64 << 20
"""Files of at most this many bytes are known by their content, larger ones by their size and time of change."""


Scorer = Callable[..., Any]
"""A function of frames uint8 [T, H, W, 3] and an instruction that returns [T] numbers, or `Scores`.

If its attribute `reads_state` is true, it also takes `state`, the robot's state [T, S]. Its attribute `stages` lists
the names of the stages that it numbers; without it, they are the stages of the scored episode, in order.
"""


class LeRobotScorer:
    """A reward model of LeRobot, of version 0.6 (`compute_reward`) or with `predict_progress`.

    A model of videos scores the first t frames for up to `PREFIXES` values of t, as LeRobot's own scripts do:
    `config.max_frames` of them, evenly spread, since such a model would keep only the newest. Beginnings of equal
    length are one batch, [B, n, 3, H, W]. A classifier (`config.num_classes`) scores all frames as one batch, [T, 3, H,
    W]. SARM (`observation_delta_indices`) scores the frames around t and reads their number. Pixels are
    floats in [0, 1].

    Args:
        model: The model; `config.image_key`, `config.task_key` and `config.state_key` name its inputs.
        prepare: The model's preprocessor.

    Attributes:
        progress: True if values are progress in [0, 1].
        reads_state: True if the model reads the robot's state.
        stages: Names of the stages that the model numbers.
    """

    def __init__(self, model: Any, prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> None:
        self.model, self.prepare = model, prepare or (lambda batch: batch)
        self.config: Any = getattr(model, "config", None)
        self.typed = hasattr(model, "predict_progress")
        self.around = hasattr(model, "calculate_rewards") and self._setting("observation_delta_indices", None)
        self.progress = self.typed or bool(self.around) or self._setting("reward_output", None) == "progress"
        keys = [key for key in self._setting("input_features", None) or {} if "image" in key]
        self.image = self._setting("image_key", None) or (keys or ["observation.images.top"])[0]
        self.task, self.state = self._setting("task_key", "task"), self._setting("state_key", "observation.state")
        self.reads_state = bool(self.around) or self.state in (self._setting("input_features", None) or {})
        self.stages = tuple(self._setting("sparse_subtask_names", None) or ())

    def __call__(self, frames: NDArray[np.uint8], text: str, state: Array | None = None) -> Scores:
        """Return the scores of a video; `known` at the scored frames.

        Args:
            frames: Frames [T, H, W, 3].
            text: The instruction.
            state: The robot's state [T, S], for a model that reads it.
        """
        import torch

        pixels = torch.from_numpy(np.ascontiguousarray(frames)).movedim(-1, 1).float() / 255
        states = None if state is None else torch.from_numpy(np.asarray(state, np.float32))
        with torch.no_grad():
            if hasattr(self.config, "num_classes"):
                return {"progress": self._computed(pixels, states, text)}
            if self.around:
                return self._windows(pixels, states, text)
            return self._whole(pixels, states, text) if self.typed else self._beginnings(pixels, states, text)

    def _whole(self, pixels: Any, states: Any, text: str) -> Scores:
        """Ask once for the progress of all frames, or of as many as the model reads."""
        at = _spread(len(pixels), self._setting("max_frames", None) or len(pixels))
        found = self.model.predict_progress(
            self._batch(pixels[at][None], None if states is None else states[at][None], text)
        )
        scores = {"progress": _placed(found.progress[0], at, len(pixels)), "known": np.isin(np.arange(len(pixels)), at)}
        success, stages = getattr(found, "success_probability", None), getattr(found, "stage_probabilities", None)
        if success is not None:
            reached = _placed(success[0], at, len(pixels)) >= self._setting("success_threshold", 0.5)
            scores["success"] = reached
        if stages is not None:
            scores["stage"] = _nearest(np.asarray(stages[0].argmax(-1).cpu()), at, len(pixels))
        valid = getattr(found, "valid_mask", None)
        if valid is not None:
            scores["known"][at] &= np.asarray(valid[0].cpu(), bool)
        return scores

    def _beginnings(self, pixels: Any, states: Any, text: str) -> Scores:
        """Score beginnings of growing length."""
        import torch

        most = self._setting("max_frames", None) or PREFIXES
        groups: dict[int, list[int]] = {}
        for length in (_spread(len(pixels), PREFIXES) + 1).tolist():
            groups.setdefault(min(length, most), []).append(length)
        values, known = np.zeros(len(pixels)), np.zeros(len(pixels), bool)
        for count, lengths in groups.items():
            chosen = [_spread(length, count) for length in lengths]
            for start in range(0, len(lengths), TOGETHER):
                some = chosen[start : start + TOGETHER]
                videos = torch.stack([pixels[at] for at in some])
                beside = None if states is None else torch.stack([states[at] for at in some])
                last = np.array(lengths[start : start + TOGETHER]) - 1
                values[last], known[last] = self._computed(videos, beside, text), True
        return {"progress": values, "known": known}

    def _windows(self, pixels: Any, states: Any, text: str) -> Scores:
        """Score frames from the frames around them, as SARM's own script does.

        `compute_reward` of SARM reads another frame of the window than its script, whose files this equals.
        """
        deltas, centre = np.array(self.config.observation_delta_indices), self.config.n_obs_steps // 2
        values, known, stages = np.zeros(len(pixels)), np.zeros(len(pixels), bool), []
        for step in _spread(len(pixels), PREFIXES).tolist():
            at = np.clip(step + deltas, 0, len(pixels) - 1)
            sample = {self.image: pixels[at], self.task: text, "index": step, "episode_index": 0}
            found = self.prepare(sample | ({} if states is None else {self.state: states[at]}))
            rewards, chances = self.model.calculate_rewards(
                text_embeddings=found["text_features"],
                video_embeddings=found["video_features"],
                state_features=found.get("state_features"),
                lengths=found.get("lengths"),
                return_all_frames=True,
                return_stages=True,
                head_mode="sparse",
            )
            values[step], known[step] = float(np.asarray(rewards)[0, centre]), True
            stages.append(int(np.asarray(chances)[0, centre].argmax()))
        return {
            "progress": values,
            "known": known,
            "stage": _nearest(np.array(stages), np.flatnonzero(known), len(known)),
        }

    def _computed(self, pixels: Any, states: Any, text: str) -> Array:
        import torch

        found = self.model.compute_reward(self._batch(pixels, states, text))
        return np.asarray(torch.as_tensor(found).double().reshape(-1).cpu())

    def _batch(self, pixels: Any, states: Any, text: str) -> dict[str, Any]:
        beside = {} if states is None else {self.state: states}
        return self.prepare({self.image: pixels, self.task: [text] * len(pixels), **beside})

    def _setting(self, name: str, default: Any) -> Any:
        return getattr(self.config, name, default)


def _spread(length: int, count: int) -> Array:
    """Return at most `count` different numbers below `length`, evenly spread, both ends included."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(np.int64))


def _placed(values: Any, at: Array, length: int) -> Array:
    """Return values [n] at the frames `at` as [length], interpolated."""
    return np.asarray(np.interp(np.arange(length), at, np.asarray(values.double().cpu()).reshape(-1)))


def _nearest(values: Array, at: Array, length: int) -> Array:
    """Return values [n] at the frames `at` as [length]; every frame has the value of the nearest of them."""
    middles = (at[1:] + at[:-1]) / 2
    return np.asarray(values[np.searchsorted(middles, np.arange(length))])


def as_scores(found: Any) -> dict[str, Array]:
    """Return a scorer's result as arrays by name; `None` is left out."""
    named = found if isinstance(found, Mapping) else {"progress": found}
    return {name: np.asarray(value, np.float64) for name, value in named.items() if value is not None}


def open_scorer(source: str, device: str = "cpu") -> tuple[Scorer, str]:
    """Open `module:name` or the folder of a LeRobot reward model; return it with a digest of its files.

    The digest of `module:name` is the name's, and of the module and what it imports from the module's folder.
    """
    module, colon, name = source.partition(":")
    if not colon:
        return _lerobot(source, device), digest_of_files(path for path in Path(source).rglob("*") if path.is_file())
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    home = importlib.import_module(module)
    thing = getattr(home, name)
    folder = Path(home.__file__ or ".").resolve().parent
    files = {Path(file).resolve() for one in list(sys.modules.values()) if (file := getattr(one, "__file__", None))}
    digest = f"{name} of {digest_of_files(file for file in files if folder in file.parents and file.is_file())}"
    if hasattr(thing, "compute_reward"):
        return LeRobotScorer(thing), digest
    if not callable(thing):
        raise TypeError(f"{source} is a {type(thing).__name__}, not a function (frames, instruction) -> [T]")
    return thing, digest


def digest_of_files(files: Any) -> str:
    """Return one digest of files, in order of their paths."""
    digest = hashlib.sha256()
    for path in sorted(files):
        about = path.stat()
        digest.update(f"{path.name}\0{about.st_size}\0".encode())
        digest.update(path.read_bytes() if about.st_size <= WHOLE else str(about.st_mtime_ns).encode())
    return digest.hexdigest()


def _lerobot(source: str, device: str) -> LeRobotScorer:
    with suppress(ImportError):
        importlib.import_module("counterpoint.rewards.lerobot_plugin")  # registers our own type
    configs, factory = map(importlib.import_module, ("lerobot.configs.rewards", "lerobot.rewards.factory"))
    config = configs.RewardModelConfig.from_pretrained(source)
    config.device, config.pretrained_path = device, source
    model = factory.make_reward_model(config)
    prepare, _ = factory.make_reward_pre_post_processors(config)
    return LeRobotScorer(model, prepare)


def send(stream: BinaryIO, arrays: Mapping[str, Any]) -> None:
    """Write one message."""
    buffer = io.BytesIO()
    named: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    np.savez(buffer, **named)
    content = buffer.getvalue()
    stream.write(struct.pack(">Q", len(content)) + content)
    stream.flush()


def received(stream: BinaryIO) -> dict[str, Array] | None:
    """Read one message; `None` at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (length,) = struct.unpack(">Q", head)
    with np.load(io.BytesIO(stream.read(length)), allow_pickle=False) as arrays:
        return dict(arrays)


def serve(requests: BinaryIO, answers: BinaryIO, source: str, device: str) -> None:
    """Open a model and answer requests until the stream ends."""
    try:
        scorer, files = open_scorer(source, device)
    except Exception as error:
        send(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    about = {name: getattr(scorer, name, False) for name in ("progress", "reads_state")}
    send(answers, about | {"files": files, "stages": np.array(getattr(scorer, "stages", ()), str)})
    while (request := received(requests)) is not None:
        try:
            beside = {"state": request["state"]} if "state" in request else {}
            send(answers, as_scores(scorer(request["frames"], str(request["text"]), **beside)))
        except Exception as error:
            send(answers, {"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Run the program; what a model prints goes to standard error, since standard output carries the answers."""
    own = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != own]  # its files are no modules
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", type=float, default=0, help="limit in GB")
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if given.memory:
        import resource

        limit = int(given.memory * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    serve(sys.stdin.buffer, answers, given.source, given.device)


if __name__ == "__main__":
    main()
