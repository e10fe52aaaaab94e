"""Defects that the tests must notice: one operator, index, key or unit each, over all rooms of the package."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).parents[2] / "src"


class Defect(NamedTuple):
    """One change of one line.

    Attributes:
        file: The file below `src/counterpoint`.
        sound: Text that stands there once.
        wrong: Text in its place.
        tests: Tests of the default run that should fail, a file or a folder below `tests`.
    """

    file: str
    sound: str
    wrong: str
    tests: str

    def __str__(self) -> str:
        return f"{self.file}: {self.sound.strip()} -> {self.wrong.strip()}"

    def plant(self, src: Path) -> None:
        """Write the defect into a copy of `src`.

        Raises:
            ValueError: When the sound text does not stand there exactly once.
        """
        path = src / "counterpoint" / self.file
        text = path.read_text() if path.exists() else ""
        if text.count(self.sound) != 1:
            raise ValueError(f"{self.file} holds {self.sound!r} {text.count(self.sound)} times, not once")
        path.write_text(text.replace(self.sound, self.wrong))


DEFECTS = (
    # data
    Defect("data/resize.py", "resize(target[::-1], _BICUBIC)", "resize(target, _BICUBIC)", "data/test_resize.py"),
    Defect("data/transitions.py", "Draw(episode, at + 1)", "Draw(episode, at)", "data/test_transitions.py"),
    Defect("data/transitions.py", "/ rate, remaining - 1)", "/ rate, remaining)", "data/test_transitions.py"),
    Defect("data/augment.py", "rng.integers(2 * self.pad + 1,", "rng.integers(2 * self.pad,", "data/test_augment.py"),
    Defect("data/augment.py", "frames.float() / 255, crop", "frames.float() / 256, crop", "data/test_augment.py"),
    Defect("data/statistics.py", "wide.std(0)", "wide.var(0)", "data/test_statistics.py"),
    Defect("data/episode.py", "(np.diff(times) > 0)", "(np.diff(times) >= 0)", "data/test_episode.py"),
    # formats
    Defect(
        "formats/ogbench.py",
        'np.flatnonzero(arrays["terminals"]) + 1',
        'np.flatnonzero(arrays["terminals"])',
        "formats/test_ogbench.py",
    ),
    Defect(
        "formats/drq.py",
        "self._array(episode, _ARRAYS[name])[1:]",
        "self._array(episode, _ARRAYS[name])[:-1]",
        "formats/test_drq.py",
    ),
    Defect("formats/zarr_replay.py", "times - times[0])", "times)", "formats/test_zarr_replay.py"),
    Defect("formats/rlds/reader.py", "return record.reward >= 1", "return record.reward > 1", "formats/rlds"),
    Defect("formats/rlbench/poses.py", "_CENTRE) / _REACH", "_CENTRE) * _REACH", "formats/rlbench"),
    Defect("formats/mcap.py", '"bgr8": [2, 1, 0], "rgba8"', '"bgr8": [0, 1, 2], "rgba8"', "formats/test_mcap.py"),
    Defect("formats/mcap.py", "float((len(times) - 1) * _SECOND", "float(len(times) * _SECOND", "formats/test_mcap.py"),
    Defect(
        "formats/droid.py",
        "one.sorted_as != one.recorded_as",
        "one.sorted_as == one.recorded_as",
        "formats/test_droid.py",
    ),
    Defect("formats/bridge.py", "im_{found.first + step}.jpg", "im_{step}.jpg", "formats/test_bridge.py"),
    Defect("formats/hdf5/reader.py", "demo.length - layout.dialect.lead", "demo.length", "formats/hdf5"),
    Defect(
        "formats/boundary.py", "ExifTags.Base.Orientation, 1", "ExifTags.Base.ImageWidth, 1", "formats/test_boundary.py"
    ),
    Defect(
        "cli/data/alignment.py",
        "action[1 + lag : count + 1 + lag]",
        "action[1 : count + 1]",
        "cli/data/test_alignment.py",
    ),
    Defect(
        "data/draws.py", "dealt[fold] += parts[recording]", "dealt[fold] += parts[recording][:1]", "data/test_draws.py"
    ),
    # objectives
    Defect(
        "objectives/decisionnce.py",
        "(unit(frames[:, -1]) - unit(frames[:, 0]))",
        "(unit(frames[:, -1]) + unit(frames[:, 0]))",
        "objectives/test_decisionnce.py",
    ),
    Defect("objectives/vip.py", "(1 - discount) * -first.mean()", "discount * -first.mean()", "objectives/test_vip.py"),
    Defect(
        "objectives/liv.py",
        "similarity(state, goal) / (1 - discount)",
        "similarity(state, goal) * (1 - discount)",
        "objectives/test_liv.py",
    ),
    Defect(
        "objectives/premier_taco.py",
        "near = (wrong + math.log(weight))",
        "near = (wrong - math.log(weight))",
        "objectives/test_premier_taco.py",
    ),
    Defect(
        "objectives/icon.py",
        "(2 * inside > height * width)",
        "(2 * inside >= height * width)",
        "objectives/test_icon_loss.py",
    ),
    Defect(
        "objectives/icon.py",
        "(gamma * torch.arange(layers",
        "(-gamma * torch.arange(layers",
        "objectives/test_icon_loss.py",
    ),
    Defect("objectives/actol.py", "(position + 1 - first)", "(position - first)", "objectives/test_actol_ordering.py"),
    Defect(
        "objectives/base.py",
        "share).sum() / (2 * len(logits))",
        "share).sum() / len(logits)",
        "objectives/test_base.py",
    ),
    Defect("objectives/base.py", "for order in (1, 2))", "for order in (2, 1))", "objectives/test_vip.py"),
    # encoders
    Defect("encoders/dual.py", "images.div_(255) if", "images.div_(256) if", "encoders/test_dual.py"),
    Defect("encoders/dual.py", "round((side - size) / 2)", "round(side - size)", "encoders/test_dual.py"),
    Defect("encoders/tokens.py", "prefix = first + second + int(", "prefix = first + int(", "encoders/test_tokens.py"),
    Defect(
        "encoders/observation.py",
        "functional.normalize(self.dual.encode_image(frames), dim=-1)",
        "self.dual.encode_image(frames)",
        "encoders/test_observation.py",
    ),
    # policies and planning
    Defect("policies/chunking.py", "np.exp(-self.decay *", "np.exp(self.decay *", "policies/test_chunking.py"),
    Defect("policies/normalizer.py", "(high - low) / 2))", "(high - low)))", "policies/test_normalizer.py"),
    Defect("planning/shooting.py", "np.argsort(-self._scores", "np.argsort(self._scores", "planning"),
    # environments
    Defect("envs/goal/mazes.py", "height / 2 - cell[0] - 0.5", "height / 2 - cell[0] + 0.5", "envs/goal/test_mazes.py"),
    Defect("envs/goal/mazes.py", "- self.damping * speed", "+ self.damping * speed", "envs/goal/test_mazes.py"),
    Defect("envs/goal/tasks.py", "success_distance = 0.45", "success_distance = 0.5", "envs/goal/test_env.py"),
    # agents
    Defect("agents/iql.py", "else advantage) < 0", "else advantage) > 0", "agents/test_iql.py"),
    Defect(
        "agents/td3_bc.py",
        "(step + 1) % self.config.policy_delay",
        "step % self.config.policy_delay",
        "agents/test_td3_bc.py",
    ),
    Defect("agents/td3_bc.py", "(~terminated).float()", "terminated.float()", "agents/test_td3_bc.py"),
    # rewards
    Defect("rewards/calibration.py", "    fit = min(", "    fit = max(", "rewards/test_calibration.py"),
    Defect("encoders/calibration.py", "(1 - kept) * memory", "(1 - kept) / memory", "rewards/test_calibration.py"),
    Defect("evaluation/comparison.py", "best = max(scene", "best = min(scene", "evaluation/test_comparison.py"),
    Defect("envs/kitchen/experts.py", "self._from(1) > self._away", "self._from(1) < self._away", "envs/kitchen"),
    Defect("envs/kitchen/env.py", "self._expert.leave()", "self._expert.reset()", "envs/kitchen"),
    Defect("envs/kitchen/env.py", "success = last and", "success =", "envs/kitchen"),
    Defect("envs/kitchen/env.py", "HELD + LEAVE * self._leaves", "HELD", "envs/kitchen"),
    Defect(
        "rewards/calibration.py",
        "self.steps / self.steps[-1]",
        "self.steps / len(self.steps)",
        "rewards/test_calibration.py",
    ),
    # evaluation
    Defect("evaluation/metrics.py", "> others.max(axis=1)", ">= others.max(axis=1)", "evaluation/test_metrics.py"),
    Defect("evaluation/statistics.py", "checked.std(ddof=1)", "checked.std(ddof=0)", "evaluation/test_statistics.py"),
    Defect(
        "evaluation/rollout.py", "self.solved_after = self.steps", "self.solved_after = self.steps + 1", "evaluation"
    ),
    # training
    Defect(
        "training/loop.py",
        "self.clock // every > self.rested // every",
        "self.clock // every >= self.rested // every",
        "training/test_loop.py",
    ),
    Defect("training/learner.py", 'group["lr"] = rate * share', 'group["lr"] = rate', "training/test_learner.py"),
    Defect("training/distributed.py", "flat /= world_size()", "flat /= 1", "distributed"),
    # the package itself
    Defect("errors.py", "if not ok:", "if ok:", "test_errors.py"),
)
"""The list; a line that moves or changes takes its defect along."""
