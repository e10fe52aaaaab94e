"""Recipes of kind `clips`: a dual encoder learns from clips with instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from accelerate.utils import set_seed
from pydantic import Field, model_validator
from torch import nn

from counterpoint.config import free
from counterpoint.data.cache import prepared
from counterpoint.data.draws import cross_folds, hold_out
from counterpoint.data.episode import visible
from counterpoint.data.resize import Fit
from counterpoint.data.segments import Alteration, AlteredStore, Segments, by_segments, counterfactuals
from counterpoint.data.spec import BoundSpec
from counterpoint.data.statistics import Statistics
from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.data.store_views import CamerasApart, OneCameraStore, SubsetStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.features import features_of
from counterpoint.errors import require
from counterpoint.objectives import ClipObjective, objective_class, objective_names
from counterpoint.objectives.base import Objective
from counterpoint.parameter_types import Listed
from counterpoint.rewards.calibration import calibrate
from counterpoint.rewards.instructions import instructions_in_words
from counterpoint.rewards.labeller import error_in_words
from counterpoint.rewards.model import RewardModel
from counterpoint.training.offline import Opened, PretrainingRecipe, SplitsConfig
from counterpoint.training.plan import Given
from counterpoint.training.run import Run

LONG = 30.0
"""Minutes on two cores; if the trainings of all judges would take longer, only the first part has a judge."""
HEAD_STEPS = 40.0 * 60
"""Updates of a frozen backbone's heads per minute on two cores, at a batch size of 32."""


class DataConfig(SplitsConfig):
    """The episodes, their cameras and frame size.

    Attributes:
        size: Side of the frames in the training store (the cache of decoded frames), in pixels. A frozen backbone reads
            frames at their recorded size, and reads each frame only once, whatever `decode` is.
        fit: `square` squeezes the whole frame into a square; `shorter` keeps the aspect ratio and resizes the shorter
            side to `size`.
        cameras: Cameras to train on. The view of each camera is a separate sample, and rewards are averaged over
            cameras. `all` takes every camera; the default is the data's first camera.
        min_length: Minimum number of steps; shorter episodes are left out.
        holdout: Share of each instruction's episodes that is held out for validation, if the data have no validation
            split.
        folds: Number of parts for cross-fitting, if the data have no validation split and nothing is held out. Each
            part is scored by a judge: a model that learns from all other parts. The saved model learns from all parts.
            0 trains no judges.
        fold: Train only the judge of this part; parts are numbered from 0.
        holdout_seed: Random seed for choosing the held-out episodes, or for dividing the data into parts.
        augmented_rows: For a frozen backbone: number of augmented copies of each frame whose features are stored, in
            addition to the features of the unchanged frame.
        state: True to read the robot's state (proprioception, `observation.state`) together with each image.
        segments: `episode` draws clips from whole episodes. `task` draws clips from the parts of an episode that are
            labelled with separate tasks, and takes these tasks as instructions.
        altered: Training clips and texts that the reward learns to score low: `rewound` adds a copy of each episode
            that goes back from a late step, with the instruction "undo: ..."; `clipped` adds a copy that ends early,
            "begin to ..."; `failed` gives failed episodes the instruction "fail to ..."; `counterfactual` adds
            instructions with opposite words, such as close for open, as negatives.
    """

    size: int = Field(64, ge=16)
    fit: Fit = "square"
    cameras: Listed[tuple[str, ...]] = ()
    min_length: int = Field(2, ge=1)
    holdout: float = Field(0.0, ge=0, lt=1)
    folds: int = Field(0, ge=0)
    fold: int | None = Field(None, ge=0)
    holdout_seed: int = Field(0, ge=0)
    augmented_rows: int = Field(0, ge=0)
    state: bool = False
    segments: Segments = "episode"
    altered: Listed[tuple[Alteration, ...]] = ()

    def views(self, store: EpisodeStore) -> tuple[str, ...]:
        """Return the names of the chosen cameras."""
        return camera_names(store.cameras if self.cameras == ("all",) else self.cameras or None, store)


class ClipsRecipe(PretrainingRecipe):
    """A dual encoder that learns from clips with instructions.

    Attributes:
        encoder: The encoder's architecture.
        data: The episodes.
        extra_instructions: File of instructions, one per line, that no episode carries out. They serve as negatives if
            the data have only one instruction.
        compile: True to compile the image tower with `torch.compile`, for GPUs; the first step waits for the
            compilation.
    """

    kind: Literal["clips"] = "clips"
    encoder: EncoderConfig = EncoderConfig()
    data: DataConfig = DataConfig()
    extra_instructions: str | None = None
    compile: bool = free(False)
    base: ClassVar = ClipObjective

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.optimizer.encoder_lr is not None:
            raise ValueError("optimizer.encoder_lr is for an encoder beneath heads; here the encoder is all: set lr")
        if self.compile and self.memory.recompute:
            raise ValueError("compile and memory.recompute exclude each other: leave one out")
        return self

    @property
    def _reads_words(self) -> bool:
        kind: Any = objective_class(self.objective.name, ClipObjective)
        return bool(kind.language and kind.needs_instructions)

    def open(self, given: Given) -> Opened:
        """Open the data set and build the encoder."""
        train, held_out = open_clips(given.one(), self.data, given.validation, language=self._reads_words)
        cameras = self.data.views(train)
        set_seed(self.train.seed)
        statistics = _state_statistics(train, held_out) if self.data.state else None
        encoder = self.encoder.model_copy(update={"state": statistics})
        objective = build_objective(self.model_copy(update={"encoder": encoder}))
        _check_altered(self, objective, train)
        objective.extra_texts = extra_texts(self, objective, train)
        if self.compile:
            objective.encoder.image.compile()
        frozen = objective.encoder.config.freeze_image
        augments = frozen and self.objective.augment
        hint = "set objective.augment = false, and data.augmented_rows to train on changed images too"
        require(not augments, "objective.augment", "true, with a frozen backbone", "false", hint)
        views = self.data.augmented_rows + 1

        def prepare(store: EpisodeStore) -> EpisodeStore:
            if not frozen:
                return _prepared(store, self.data)
            rows = views if store is train else 1
            changes = self.objective.model_copy(update={"augment": True}).augmentation
            options: Any = {"rows": rows, "transforms": changes, "root": self.data.cache, "device": given.device}
            return features_of(objective.encoder, _apart(store, cameras), **options)

        def build(store: EpisodeStore) -> tuple[Objective, EpisodeStore, BoundSpec]:
            store = altered_clips(self, store)
            spec = objective.sampling().on_features(views) if frozen else objective.sampling()
            return objective, store, spec.bind(store, store.cameras[:1])

        def facts(store: EpisodeStore, bound: BoundSpec) -> Mapping[str, Any]:
            own = self.data.holdout or self.data.fold is not None
            if own and isinstance(held_out, SubsetStore) and given.validation is None:
                return {"held_out": list(held_out.indices)}
            if self.data.folds and held_out is None and isinstance(train, SubsetStore):
                judged = self._with_judge(_folds(train.whole, train.indices, self.data))
                return {"judged": judged} if judged else {}
            return {}

        def words() -> str:
            if self.data.fold is not None:
                return ""  # a judge's instructions are the model's, which says this of them
            own = dict.fromkeys(info.instruction for info in train.episodes if info.instruction.strip())
            texts = [*own, *objective.extra_texts] if objective.language else []
            return instructions_in_words(objective.encoder, texts)

        return Opened(train, held_out, prepare, build, facts=facts, embeds=frozen, words=words)

    def _parts(self, given: Given) -> Sequence[Sequence[int]]:
        """Return, for each judge, the numbers of the episodes that it scores; empty without cross-fitting."""
        if given.validation is not None or not self.data.folds or self.data.fold is not None or self.data.holdout:
            return ()
        return parts_of(given.one(), self.data, language=self._reads_words)

    def judges(self, given: Given) -> Sequence[Self]:
        """Return the recipes of the judges, one for each part of the data."""
        parts = self._parts(given)
        judged = self._with_judge(parts)
        if len(judged) < len(parts):
            print(
                f"Only {len(judged[0])} of {sum(map(len, parts))} videos are judged by a model that has not seen them: "
                f"{len(parts)} judges would take {self._judging(len(parts))}",
                flush=True,
            )
        data = [self.data.model_copy(update={"fold": number}) for number in range(len(judged))]
        return [self.model_copy(update={"data": one}) for one in data]

    def _judging(self, judges: int) -> str:
        """Return how long the trainings of so many judges take, for a message; "" if at most `LONG` minutes."""
        if not self.encoder.freeze_image:
            return "several trainings of the whole backbone"
        minutes = judges * (self.train.steps or 0) * self.train.batch_size / 32 / HEAD_STEPS
        return f"about {minutes:.0f} minutes on two cores" if minutes > LONG else ""

    def _with_judge(self, parts: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Return the parts that get a judge: all of them, or one if the judges' trainings would take too long."""
        return parts[:1] if parts and self._judging(len(parts)) else parts

    def finish(
        self, modules: Mapping[str, nn.Module], train: EpisodeStore, validation: EpisodeStore | None, run: Run
    ) -> None:
        """Calibrate the reward, so that the saved encoder can report progress, and print the error of this progress."""
        encoder = modules["encoder"]
        if isinstance(encoder, DualEncoder):  # an encoder of the user's own is not calibrated
            model = RewardModel(encoder, language_reward=modules.get("language_reward"))
            judges = [
                (RewardModel.from_pretrained(run.judge(number), device=str(encoder.mean.device)), part)
                for number, part in enumerate(run.settings.get("judged", ()))
            ]
            by_stage = self.data.segments == "task"
            found = calibrate(model, train, validation, judges=judges, by_stage=by_stage, seed=self.train.seed)
            encoder.config = encoder.config.model_copy(update={"calibration": found})
            if found and self.data.fold is None:  # a judge's error is not that of the model
                print(error_in_words(found), flush=True)


def build_objective(recipe: ClipsRecipe) -> ClipObjective:
    """Return the objective with its encoder; the weights are random, or come from `initialize_from`."""
    start = recipe.initialize_from
    encoder = DualEncoder.from_pretrained(start) if start else DualEncoder(recipe.encoder)
    own, wanted = (len(config.state.mean) if config.state else 0 for config in (encoder.config, recipe.encoder))
    found, expected = (f"an encoder that reads a state of {width} numbers" for width in (own, wanted))
    require(own == wanted, str(start), found, expected, "set data.state as that encoder was trained")
    kind: Any = objective_class(recipe.objective.name, ClipObjective)
    objective: ClipObjective = kind(encoder, recipe.objective)
    return objective


def _state_statistics(train: EpisodeStore, held_out: EpisodeStore | None) -> Statistics:
    """Return the statistics of the state in training episodes; raise an error unless all states have the same width."""
    expected, hint = "one state (observation.state) in all", "read images alone: data.state = false"
    for store in (train, held_out) if held_out else (train,):
        states = map(store.state, range(len(store.episodes)))
        widths = {0 if state is None else state.shape[1] for state in states}
        found = "episodes without a state" if 0 in widths else f"states of {sorted(widths)} numbers"
        require(len(widths) == 1 and 0 not in widths, "data.state", found, expected, hint)
    return Statistics.of(train.column("state"))


def _check_altered(recipe: ClipsRecipe, objective: ClipObjective, store: EpisodeStore) -> None:
    """Raise an error if `data.altered` would change nothing, or nothing would score the altered clips low."""
    kinds, name, hint = recipe.data.altered, recipe.objective.name, "leave it out of data.altered"
    found, expected = f"{list(kinds)} with {name}, which contrasts no instructions", "an objective that contrasts them"
    require((objective.language and objective.contrasts) or not kinds, "data.altered", found, expected, hint)
    failures = any(info.success is False for info in store.episodes)
    found, expected = "no training episode that is marked as failed", "some, for 'failed'"
    require(failures or "failed" not in kinds, "data.altered", found, expected, hint)


def altered_clips(recipe: ClipsRecipe, store: EpisodeStore) -> EpisodeStore:
    """Return the training clips with the copies that `data.altered` names."""
    kinds = recipe.data.altered
    least, seed = recipe.data.min_length, recipe.train.seed
    return AlteredStore(store, kinds, least=least, seed=seed) if set(kinds) - {"counterfactual"} else store


def extra_texts(recipe: ClipsRecipe, objective: ClipObjective, store: EpisodeStore) -> tuple[str, ...]:
    """Return the instructions that no clip carries out, from the file of the recipe and by `counterfactual`.

    Raises:
        BadInputError: If there are none although the recipe asks for some, the objective does not use them, or a
            language objective has only one instruction in all.
    """
    own = dict.fromkeys(info.instruction for info in store.episodes)
    name, path, kinds, texts = recipe.objective.name, recipe.extra_instructions, recipe.data.altered, tuple[str, ...]()
    if path is not None:
        file, hint = Path(path), "write one instruction a line"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        texts = tuple(dict.fromkeys(text for text in map(visible, lines) if text and text not in own))
        require(texts, file, "no further instruction", "a file of instructions", hint)
    if "counterfactual" in kinds:
        texts += (more := counterfactuals(own))
        found, hint = f"no word with an opposite in {list(own)[:3]}", "write a file for --extra-instructions"
        require(more, "data.altered", found, "such as open, left or on", hint)
    if texts:
        works = [known for known in objective_names(ClipObjective) if objective_class(known, ClipObjective).takes_extra]
        where = "--extra-instructions" if path else "data.altered"
        found = f"objective {name!r}, which has no use for them"
        require(objective.takes_extra, where, found, f"one of {', '.join(works)}", "leave it out")
        return texts
    alone = objective.language and objective.contrasts and len(own) == 1 and not kinds
    found = f"one instruction, {next(iter(own), '')!r}, which {name} has nothing to contrast with"
    hint = "learn progress without language: actol-videos, vip-videos or tcn-videos"
    hint += ", or give --extra-instructions FILE" if objective.takes_extra else ""
    several = any(info.segments for info in store.episodes)
    hint += ", or take each task of an episode for itself: --data.segments=task" if several else ""
    require(not alone, "--data", found, "two instructions or more", hint)
    return ()


def open_clips(
    data: str | Path | EpisodeStore,
    config: DataConfig,
    validation: EpisodeStore | None = None,
    *,
    language: bool = False,
) -> tuple[EpisodeStore, EpisodeStore | None]:
    """Return the training episodes and, if there are any, the validation episodes; nothing is decoded yet.

    Args:
        data: The data set.
        config: The settings that choose the clips.
        validation: Validation episodes, if `data` is a store.
        language: True to leave out episodes without an instruction.
    """
    train, held_out = (data, validation) if isinstance(data, EpisodeStore) else config.open(data)
    train, held_out = by_segments(train, config.segments), held_out and by_segments(held_out, config.segments)
    where = data if isinstance(data, str | Path) else "data"
    kept = _usable(train, config, where, language=language)
    if held_out is None and config.fold is not None:
        parts = _folds(train, kept, config) if config.folds else ()
        expected = f"0 to {len(parts) - 1}" if parts else "none: the data are not divided into parts"
        require(config.fold < len(parts), "data.fold", config.fold, expected, "set data.folds, or leave data.fold out")
        out, left = parts[config.fold], set(kept).difference(parts[config.fold])
        kept, held_out = [e for e in kept if e in left], SubsetStore(train, out)
    elif held_out is None and config.holdout:
        split = hold_out([train.episodes[e].instruction for e in kept], config.holdout, config.holdout_seed)
        kept, chosen = ([kept[e] for e in part] for part in split)
        held_out = SubsetStore(train, chosen) if chosen else None
    elif held_out is not None:
        held_out = _subset(held_out, _usable(held_out, config, where, language=language))
    # The judges' parts hold episode numbers of the whole store, which the subset keeps as its attribute `whole`.
    return SubsetStore(train, kept) if config.folds else _subset(train, kept), held_out


def parts_of(data: str | Path | EpisodeStore, config: DataConfig, *, language: bool) -> tuple[tuple[int, ...], ...]:
    """Return the episode numbers of each part for cross-fitting; empty if the data have a validation split."""
    train, held_out = (data, None) if isinstance(data, EpisodeStore) else config.open(data)
    if held_out is not None:
        return ()
    train = by_segments(train, config.segments)
    return _folds(train, _usable(train, config, "data", language=language, said=False), config)


def _folds(store: EpisodeStore, numbers: Sequence[int], config: DataConfig) -> tuple[tuple[int, ...], ...]:
    tasks = [store.episodes[e].instruction for e in numbers]
    parts = cross_folds(tasks, [store.recording(e) for e in numbers], config.folds, config.holdout_seed)
    return tuple(tuple(numbers[at] for at in part) for part in parts) if len(parts) > 1 else ()


def prepared_clips(data: str | Path, config: DataConfig) -> tuple[EpisodeStore, EpisodeStore | None]:
    """Return the training and validation episodes, decoded at training size."""
    train, held_out = open_clips(data, config)
    return _prepared(train, config), held_out and _prepared(held_out, config)


def _usable(
    store: EpisodeStore, config: DataConfig, where: str | Path, *, language: bool, said: bool = True
) -> list[int]:
    """Return the numbers of the episodes that are long enough and, with `language`, have an instruction.

    If `said`, print how many episodes are left out.
    """
    long = [e for e, info in enumerate(store.episodes) if info.length >= config.min_length]
    found = f"no episode of {config.min_length} frames or more"
    require(long, where, found, "at least one", "lower data.min_length")
    kept = [e for e in long if store.episodes[e].instruction.strip()] if language else long
    hint = "name the episodes' tasks, or learn progress without language: actol-videos, vip-videos or tcn-videos"
    require(kept, where, "no episode with an instruction", "some", hint)
    if said and len(kept) < len(long):
        print(f"Left out {len(long) - len(kept)} of {len(long)} episodes: they have no instruction", flush=True)
    several = sum(bool(store.episodes[e].segments) for e in kept) if language else 0
    if said and several:
        way = "--data.segments=task takes each task for itself"
        print(f"{several} of {len(kept)} episodes have several tasks and are taken whole; {way}", flush=True)
    return kept


def _subset(store: EpisodeStore, kept: list[int]) -> EpisodeStore:
    return store if len(kept) == len(store.episodes) else SubsetStore(store, kept)


def _apart(store: EpisodeStore, cameras: tuple[str, ...]) -> EpisodeStore:
    """Return the store with each camera's view as a separate episode; a subset stays a subset of a whole store."""
    if isinstance(store, SubsetStore):
        whole, count = _apart(store.whole, cameras), len(store.whole.episodes)
        firsts = range(0, len(whole.episodes), count)  # the first episode of each camera
        return SubsetStore(whole, [first + episode for first in firsts for episode in store.indices])
    if cameras == store.cameras[:1]:
        return store
    return OneCameraStore(store, cameras[0]) if len(cameras) == 1 else CamerasApart(store, cameras)


def _prepared(store: EpisodeStore, config: DataConfig) -> EpisodeStore:
    """Return the store with its frames at training size."""
    cameras = config.views(store)
    apart = _apart(store, cameras)
    if isinstance(apart, SubsetStore):  # all parts of a store share one training store
        return SubsetStore(_prepared(apart.whole, config.model_copy(update={"cameras": ()})), apart.indices)
    options: Any = {"size": config.size, "fit": config.fit, "decode": config.decode, "root": config.cache}
    return prepared(apart, cameras=apart.cameras[:1], **options)
