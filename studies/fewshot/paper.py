"""The experiments of the Premier-TACO paper as few-shot benchmarks, at its sizes, to be made smaller.

Tasks are the paper's where its text names them (Tables 1, 2 and 4).
"""

from __future__ import annotations

from typing import Any

from counterpoint.encoders.observation import ObservationConfig
from counterpoint.envs.dmc.tasks import EVALUATION, PRETRAINING
from counterpoint.training.fit import TrainConfig
from studies.fewshot.config import Evaluations, FewshotConfig, FewshotData, Pretraining, Row

__all__ = [
    "BASELINES",
    "HARD",
    "PREMIER",
    "RANDOM",
    "SCRATCH",
    "SEEN",
    "all_negatives",
    "batch_size",
    "dmc",
    "libero",
    "metaworld",
    "pretrained_encoder",
    "random_data",
    "rows_of",
    "training",
    "unseen_camera",
    "unseen_embodiment",
    "window",
]

SEEN = (
    "drawer-close", "drawer-open", "door-open", "window-open", "window-close",
    "button-press-topdown", "faucet-open", "handle-pull", "push", "pick-place",
)  # fmt: skip
"""Ten tasks of Meta-World with the robot, table and kinds of objects of the unseen ones; the paper shows its ten in a
picture only (Figure 4)."""

HARD = (
    "bin-picking", "disassemble", "hand-insert", "peg-insert-side",
    "pick-out-of-hole", "pick-place-wall", "shelf-place", "stick-pull",
)  # fmt: skip
"""The unseen tasks of Table 2."""

PREMIER = Pretraining(objective={"name": "premier_taco"})
BASELINES = {
    name: Pretraining(objective={"name": name})
    for name in ("taco", "curl", "atc", "spr", "inverse_dynamics", "multitask_cloning", "td3_bc", "smart")
}
SCRATCH = Row(name="scratch", frozen=False)
RANDOM = Row(name="random/frozen")


def rows_of(*names: str, frozen: bool = True) -> tuple[Row, ...]:
    """A row for each pretraining."""
    kind = "frozen" if frozen else "finetuned"
    return tuple(Row(name=f"{name}/{kind}", pretraining=name, frozen=frozen) for name in names)


def training(steps: int, batch: int, **more: Any) -> TrainConfig:
    """Of a pretraining, with one validation, at its end, and four checkpoints."""
    own = {"trackers": (), "eval_every": steps, "save_every": max(1, steps // 4), "log_every": max(1, steps // 50)}
    return TrainConfig.model_validate(own | {"steps": steps, "batch_size": batch} | more)


def metaworld(**changes: Any) -> FewshotConfig:
    """Table 2 at the paper's sizes, where those are stated: every baseline, four seeds. Days of a large GPU."""
    names = ("premier_taco", *BASELINES)
    small = {"inverse_dynamics", "td3_bc"}  # Appendix C: a batch of 1024
    settings: dict[str, Any] = {
        "title": "few-shot benchmark, Meta-World as in Table 2",
        "data": FewshotData(
            pretraining_tasks=SEEN, unseen_tasks=HARD, episodes=1000, validation_episodes=10, workers=16
        ),
        "train": training(100_000, 4096),
        "pretrainings": {
            name: Pretraining(objective={"name": name}, train={"batch_size": 1024} if name in small else {})
            for name in names
        },
        "rows": (*rows_of(*names, frozen=False), *rows_of("premier_taco"), SCRATCH, RANDOM),
        "clone": {"steps": 100_000, "batch_size": 128, "lr": 1e-4},
        "evaluation": Evaluations(),
        "seeds": 4,
        "reference": "premier_taco/finetuned",
        "processes": 8,
        "pretraining_processes": 1,
    }
    return FewshotConfig(**settings | changes)


def dmc(**changes: Any) -> FewshotConfig:
    """Table 1."""
    data = FewshotData(
        suite="dmc", pretraining_tasks=PRETRAINING, unseen_tasks=EVALUATION,
        episodes=200, steps=500, demonstrations=20,
        more_demonstrations={"humanoid-walk": 100, "dog-trot": 100}, workers=16,
    )  # fmt: skip
    settings = {"title": "few-shot benchmark, dm_control as in Table 1", "data": data}
    return metaworld(**settings | {"evaluation": Evaluations(episodes=20)} | changes)


def batch_size() -> FewshotConfig:
    """Figure 9, left."""
    sizes = (64, 128, 256, 512, 1024, 2048, 4096)
    pretrainings = {
        f"{name}_{size}": Pretraining(objective={"name": name}, train={"batch_size": size})
        for name in ("premier_taco", "taco")
        for size in sizes
    }
    return metaworld(
        title="batch size (Figure 9, left)",
        pretrainings=pretrainings,
        rows=rows_of(*pretrainings, frozen=False),
        reference="premier_taco_512/finetuned",
    )


def window() -> FewshotConfig:
    """Figure 9, right."""
    pretrainings = {
        f"window_{steps}": Pretraining(objective={"name": "premier_taco", "window": steps}) for steps in (1, 3, 5, 7, 9)
    }
    return metaworld(
        title="window size (Figure 9, right)",
        pretrainings=pretrainings,
        rows=rows_of(*pretrainings, frozen=False),
        reference="window_5/finetuned",
    )


def all_negatives() -> FewshotConfig:
    """Table 5."""
    pretrainings = {"one": PREMIER, "all": Pretraining(objective={"name": "premier_taco", "every": True})}
    return metaworld(
        title="one negative or all of the window (Table 5)",
        pretrainings=pretrainings,
        rows=rows_of(*pretrainings, frozen=False),
        reference="one/finetuned",
    )


def random_data() -> FewshotConfig:
    """Figure 7: beside the preset `dmc`, whose data are exploratory."""
    config = dmc(
        title="random pretraining data (Figure 7)",
        pretrainings={"premier_taco": PREMIER},
        rows=(*rows_of("premier_taco", frozen=False), SCRATCH),
    )
    return config.model_copy(update={"data": config.data.model_copy(update={"behaviour": "random"})})


def unseen_embodiment() -> FewshotConfig:
    """Figure 6, left: bodies that no pretraining task has."""
    config = dmc(
        title="unseen embodiments (Figure 6, left)",
        pretrainings={"premier_taco": PREMIER},
        rows=(*rows_of("premier_taco", frozen=False), SCRATCH),
    )
    unseen = ("cup-catch", "cheetah-run", "quadruped-walk", "reacher-hard")
    own = {"unseen_tasks": unseen, "more_demonstrations": {}}
    return config.model_copy(update={"data": config.data.model_copy(update=own)})


def unseen_camera() -> FewshotConfig:
    """Figure 6, right: demonstrations and rollouts from a camera that pretraining never saw."""
    config = metaworld(
        title="an unseen camera (Figure 6, right)",
        pretrainings={"premier_taco": PREMIER},
        rows=(*rows_of("premier_taco", frozen=False), SCRATCH),
    )
    own = {"camera": "corner2", "demonstration_camera": "corner", "unseen_tasks": HARD[:4]}
    return config.model_copy(update={"data": config.data.model_copy(update=own)})


def pretrained_encoder() -> FewshotConfig:
    """Figures 8, 10 and 11: R3M as it is, adapted by the objective, and adapted by cloning on the same tasks.

    `encoder.checkpoint` names the file its authors released. Encoders stay frozen while policies are cloned
    (Appendix C).
    """
    pretrainings = {
        "r3m_premier_taco": Pretraining(objective={"name": "premier_taco"}),
        "r3m_in_domain": Pretraining(objective={"name": "multitask_cloning"}),
    }
    return metaworld(
        title="fine-tuning a pretrained encoder (Figures 8, 10, 11)",
        encoder=ObservationConfig(kind="pretrained", model="r3m", checkpoint="r3m_50.pt", size=224, stack=1),
        train=training(20_000, 256, precision="bf16"),
        pretrainings=pretrainings,
        rows=(*rows_of(*pretrainings), Row(name="r3m/frozen")),
        reference="r3m_premier_taco/frozen",
    )


def libero() -> FewshotConfig:
    """Table 4: LIBERO-90 to the first eight tasks of LIBERO-10. Needs LIBERO's data; `data.*_path` name them.

    Appendix C: an encoder for the outer and one for the wrist camera, both modulated by the instruction, and a decoder
    over ten observations, "the architecture follows ResNet-T" of LIBERO: so the encoder is LIBERO's, cut as there.
    """
    names = ("premier_taco", "taco", "curl", "atc", "spr", "inverse_dynamics", "multitask_cloning")
    small = {"inverse_dynamics", "multitask_cloning"}  # Appendix C: a batch of 1024
    return metaworld(
        title="LIBERO-90 to LIBERO-10 (Table 4)",
        data=FewshotData(
            suite="libero",
            pretraining_path="libero_90",
            demonstrations_path="libero_10",
            unseen_tasks=tuple(f"libero_10/{number}" for number in range(8)),
            steps=600,
            camera=("agentview_rgb", "eye_in_hand_rgb"),
        ),
        encoder=ObservationConfig(kind="libero", size=128, stack=1, cameras=2),
        pretrainings={
            name: Pretraining(objective={"name": name}, train={"batch_size": 1024} if name in small else {})
            for name in names
        },
        rows=(*rows_of(*names, frozen=False), SCRATCH),
        clone={"steps": 100_000, "batch_size": 64, "lr": 1e-4, "cloning": {"history": 10, "language": True}},
    )
