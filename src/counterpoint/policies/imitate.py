"""From demonstrations to a diffusion policy, with ICon, Crossway Diffusion or any objective on transitions beside it.

`imitation_config.py` has the settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from counterpoint.data.cameras import Cameras, camera_names
from counterpoint.data.joint import JointLoader
from counterpoint.data.masks import mask_camera, masked_cameras
from counterpoint.data.nstep_loader import NStepLoader
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.objectives import STEP_OBJECTIVES, objective_config
from counterpoint.policies.auxiliary import AuxiliaryTerm, CrosswayTerm, IConTerm, ObjectiveTerm
from counterpoint.policies.crossway import CrosswayDecoder
from counterpoint.policies.demonstrations import Demonstrations
from counterpoint.policies.diffusion import DiffusionHead
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.imitation import Imitation
from counterpoint.policies.imitation_config import ImitationConfig
from counterpoint.provenance import provenance
from counterpoint.training.checkpoint import write_atomically
from counterpoint.training.learner import ObjectiveLearner
from counterpoint.training.precision import accelerator_of
from counterpoint.training.run_folder import FREE, claim_run
from counterpoint.training.trainer import BatchSource, train

__all__ = ["build_imitation", "imitate"]


def imitate(
    config: ImitationConfig,
    store: EpisodeStore,
    *,
    run: Path,
    camera: Cameras = None,
    validation: EpisodeStore | None = None,
    start_from: DiffusionPolicy | None = None,
    on_checkpoint: Callable[[int, DiffusionPolicy], None] | None = None,
    recorded: tuple[int, int] | None = None,
    about: dict[str, Any] | None = None,
) -> DiffusionPolicy:
    """Train a diffusion policy on demonstrations; the same call again continues an interrupted run.

    Args:
        config: What to train, and how.
        store: Demonstrations, their pictures of `config.frame` pixels; with masks for ICon.
        run: The run's folder.
        camera: The encoder's cameras in order; the store's first ones by default.
        validation: Episodes to score now and then.
        start_from: A policy to fine-tune. Its normalisation stays: its weights have learned with it.
        on_checkpoint: Told the steps done and the averaged policy of that moment, every `train.eval_every` steps and
            after the last.
        recorded: Height and width the pictures were recorded at, where `store` holds them resized; an evaluation draws
            and resizes alike.
        about: What else tells this run from others, kept in its `config.json`.

    Returns:
        The averaged policy after the last step, ready to act, as it is saved in `run/policy`.

    Raises:
        BadInputError: Demonstrations without actions, proprioception or masks that are asked for, of another size,
            or with actions outside [-1, 1]; a run of other settings; a loss that stops being finite.
    """
    accelerator = accelerator_of(config.train.precision)
    cameras = camera_names(camera, store.cameras, config.encoder.cameras)
    settings = config.model_dump(mode="json")
    identity: dict[str, Any] = {"fingerprint": store.fingerprint, "cameras": list(cameras)} | (about or {})
    claim_run(run, settings | identity, {"train": FREE})
    set_seed(config.train.seed)
    objective = build_imitation(config, store, cameras, start_from, recorded)
    source, scored = _sources(objective, store, validation, config, cameras, accelerator)
    total = config.train.total_steps(source.epoch_size)
    learner = ObjectiveLearner(objective, config.optimizer, total_steps=total, accelerator=accelerator)
    if accelerator.is_main_process:
        record = settings | identity | {"provenance": provenance()}
        write_atomically(run / "config.json", json.dumps(record, indent=1))

    def evaluation(done: int) -> dict[str, float]:
        if on_checkpoint is not None:
            # What an evaluation draws shall not change what is learned after it.
            devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            with torch.random.fork_rng(devices=devices):
                on_checkpoint(done, _policy(learner))
        return {}

    train(
        learner,
        source,
        scored,
        config.train,
        run=run,
        accelerator=accelerator,
        settings=settings,
        evaluation=evaluation,
    )
    if accelerator.is_main_process:
        _policy(learner).save_pretrained(run / "policy")
    accelerator.wait_for_everyone()
    # Read back: on the learner's own hang the hooks of auxiliary terms.
    return DiffusionPolicy.from_pretrained(run / "policy", map_location=str(accelerator.device))


def build_imitation(
    config: ImitationConfig,
    store: EpisodeStore,
    cameras: tuple[str, ...],
    start_from: DiffusionPolicy | None = None,
    recorded: tuple[int, int] | None = None,
) -> Imitation:
    """The policy, normalised by the demonstrations, and its auxiliary terms.

    Args:
        config: Which.
        store: Demonstrations: training episodes alone.
        cameras: The encoder's, in order.
        start_from: A policy to take weights and normalisation from.
        recorded: Height and width the pictures were recorded at; by default the store's.

    Raises:
        BadInputError: When demonstrations, masks or the policy to start from do not fit.
    """
    demonstrations = Demonstrations.of(store, recorded or (config.frame, config.frame))
    height, width = store.frames(0, np.zeros(1, np.int64), cameras[0]).shape[1:3]
    if (height, width) != (config.frame, config.frame):
        raise BadInputError(
            "frames",
            found=f"{height} x {width}",
            expected=f"{config.frame} x {config.frame}, the configuration's frame",
            mend="open the data through `counterpoint.data.cache.cached(store, size=...)`, or set frame",
        )
    if config.icon is not None and not set(masked_cameras(store.cameras)) & set(cameras):
        raise BadInputError(
            "masks",
            found=f"cameras {list(store.cameras)}",
            expected=f"a mask of one of {list(cameras)} at least, such as {mask_camera(cameras[0])!r}",
            mend="record masks with the data, make them with `counterpoint data masks`, or leave icon out",
        )
    if config.use_state and demonstrations.state is None:
        raise BadInputError(
            "demonstrations",
            found="no state",
            expected="proprioception, which use_state asks for",
            mend="set use_state = false, or use demonstrations with it",
        )
    policy = _fresh_policy(config, demonstrations, cameras)
    if start_from is not None:
        _take_weights(policy, start_from)
    terms: dict[str, AuxiliaryTerm] = {}
    if config.icon is not None:
        masked = tuple(mask_camera(camera) in store.cameras for camera in cameras)
        terms["icon"] = IConTerm(policy.encoder, masked, config.icon)
    if config.crossway is not None:
        decoder = CrosswayDecoder(
            config.diffusion.down_dims[-1],
            len(cameras),
            config.encoder.size,
            policy.state_dim if config.use_state else 0,
            config.crossway,
        )
        terms["crossway"] = CrosswayTerm(decoder, config.crossway.weight)
    if config.auxiliary is not None:
        name, settings = objective_config(config.auxiliary.objective, "auxiliary", STEP_OBJECTIVES)
        entry = STEP_OBJECTIVES[name]
        dims = (demonstrations.action_dim,) if entry.actions else ()
        objective = entry.objective(policy.encoder, *dims, settings)
        crop = config.encoder.size if config.frame > config.encoder.size else 0
        terms[name] = ObjectiveTerm(objective, config.auxiliary.weight, crop=crop)
    return Imitation(policy, terms)


def _fresh_policy(
    config: ImitationConfig, demonstrations: Demonstrations, cameras: tuple[str, ...]
) -> DiffusionPolicy:
    encoder = ObservationEncoder(config.encoder)
    state_dim = demonstrations.state_dim if config.use_state else 0
    head = DiffusionHead(demonstrations.action_dim, encoder.embed_dim + state_dim, config.diffusion)
    head.normalise_by(demonstrations.actions)
    return DiffusionPolicy(
        encoder,
        head,
        state_dim=demonstrations.state_dim,
        use_state=config.use_state,
        frame=config.frame,
        cameras=cameras,
        demonstrations=demonstrations,
    )


def _take_weights(policy: DiffusionPolicy, start: DiffusionPolicy) -> None:
    mine, theirs = policy.state_dict(), start.state_dict()
    differ = [key for key in mine if key not in theirs or theirs[key].shape != mine[key].shape]
    if differ or len(mine) != len(theirs):
        raise BadInputError(
            "start_from",
            found=f"a policy whose {(differ or list(theirs))[0]} has another shape",
            expected="a policy of the same networks, cameras, action and state dimensions",
            mend="configure encoder and diffusion as in the policy's config.json",
        )
    policy.load_state_dict(theirs)


def _sources(
    objective: Imitation,
    store: EpisodeStore,
    validation: EpisodeStore | None,
    config: ImitationConfig,
    cameras: tuple[str, ...],
    accelerator: Accelerator,
) -> tuple[BatchSource, BatchSource | None]:
    """Batches of training and of validation, which scores the policy alone and needs nothing that terms ask for."""
    common = {
        "batch_size": config.train.batch_size,
        "camera": cameras,
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "workers": config.train.workers,
    }
    spec = objective.sampling()
    main = NStepLoader(store, spec, seed=config.train.seed, **common)
    # Another seed: the same anchors twice in a batch would make it poorer.
    others = {
        name: NStepLoader(store, own, seed=config.train.seed + 1, **common)
        for name, own in objective.own_samplings().items()
    }
    plain = replace(spec, masks=False)
    scored = None if validation is None else NStepLoader(validation, plain, seed=config.train.seed, **common)
    return (JointLoader(main, others) if others else main), scored


def _policy(learner: ObjectiveLearner) -> DiffusionPolicy:
    policy = learner.exports()["policy"]
    assert isinstance(policy, DiffusionPolicy)
    return policy
