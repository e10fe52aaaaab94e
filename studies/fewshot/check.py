"""Checks of a few-shot study's tasks and cameras that need no simulator."""

from __future__ import annotations

import re
from pathlib import Path

from counterpoint.data.store import Cameras
from counterpoint.envs.dmc.env import resolve_dmc_tasks
from counterpoint.envs.metaworld.env import resolve_tasks
from counterpoint.envs.robosuite.env import resolve_robosuite, robosuite_name
from counterpoint.errors import BadInputError, require
from studies.fewshot.config import FewshotConfig, FewshotData
from studies.fewshot.libero import LIBERO_10

LIBERO_TASKS = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_90": 90, "libero_10": 10}
"""Suite -> number of its tasks."""


def check_data(config: FewshotConfig) -> None:
    """Raise `BadInputError` for the first task, camera or kind of recording that a suite does not have."""
    data, tasks = config.data, [known_task(config.data.suite, task) for task in config.data.unseen_tasks]
    twice = [name for name, known in zip(data.unseen_tasks, tasks, strict=True) if tasks.count(known) > 1]
    require(not twice, "data.unseen_tasks", " and ".join(twice), "every task once", "leave one out")
    found, expected = f"{data.repeat} on {data.suite}", "1: only Meta-World has a choice"
    require(data.repeat == 1 or data.suite == "metaworld", "data.repeat", found, expected, "leave it out")
    if config.used_pretrainings and data.pretraining_path is None:
        _check_recorded(data, "pretraining", data.camera)
        for task in data.pretraining_tasks:
            if not (data.suite == "metaworld" and task in ("default", "all")):
                known_task(data.suite, task)
        ok = data.behaviour != "random" or data.suite != "metaworld"
        hint = "raise data.noise, or use dm_control (Figure 7)"
        require(ok, "data.behaviour", "random on Meta-World", "expert", hint)
    if data.demonstrations_path is None:
        _check_recorded(data, "demonstrations", data.seen_camera)
    for camera in (data.camera, data.seen_camera):
        _check_cameras(data.suite, cameras_of(camera))


def known_task(suite: str, task: str) -> str:
    """Return a task's canonical name, so that two names of one task become equal.

    Raises:
        BadInputError: If the suite has no task of this name, or several.
    """
    known: tuple[str, ...] = (task,)
    expected = "a task's own name, which folders have"
    if suite == "metaworld":
        known = resolve_tasks([task])
    elif suite == "dmc":
        known = resolve_dmc_tasks([task])
        require(len(known) != 1 or known == (task,), "data", f"task {task!r}", expected, f"say {known[0]}")
    elif suite == "robosuite":
        known = (robosuite_name(*resolve_robosuite(task)).partition("/")[2],)
    elif suite == "libero":
        known = (_libero_task(task),)
    elif "/" in task or task.endswith((".hdf5", ".h5")):
        found = f"task {task!r}, which is no file"
        expected = "an environment of robosuite, or one of robomimic's HDF5 files"
        require(Path(task).expanduser().is_file(), "data", found, expected, "check the path")
    require(len(known) == 1, "data", f"{task!r}, which is several tasks", expected, "name them one by one")
    return known[0]


def cameras_of(camera: Cameras) -> tuple[str, ...]:
    """Return the names of one, several or no cameras."""
    return (camera,) if isinstance(camera, str) else tuple(camera or ())


def _libero_task(task: str) -> str:
    suite, _, which = task.partition("/")
    if suite in LIBERO_TASKS and which:
        if suite == "libero_10" and which in (names := [one.name for one in LIBERO_10]):
            return f"{suite}/{names.index(which)}"
        if which.isdecimal() and int(which) < LIBERO_TASKS[suite]:
            return f"{suite}/{int(which)}"
        if re.fullmatch(r"[A-Za-z]\w*", which) and suite != "libero_10":
            return task  # only LIBERO knows the names of its other suites
    hint = f"suites are {', '.join(LIBERO_TASKS)}; numbers begin with 0"
    raise BadInputError("data", f"task {task!r}", "SUITE/NUMBER or SUITE/NAME, such as libero_10/0", hint)


def _check_recorded(data: FewshotData, what: str, camera: Cameras) -> None:
    found = f"{data.suite}, whose demonstrations are people's"
    expected = "data.demonstrations_path (and data.pretraining_path, to pretrain)"
    recorded = data.suite not in ("libero", "robomimic")
    require(recorded, "data", found, expected, "download the data and name their folders")
    ok, found = data.suite != "dmc" or len(cameras_of(camera)) < 2, ", ".join(cameras_of(camera))
    require(ok, f"camera of {what}", found, "one camera: dm_control's data are recorded from one", "name one")


def _check_cameras(suite: str, cameras: tuple[str, ...]) -> None:
    require(len(set(cameras)) == len(cameras), "data.camera", ", ".join(cameras), "each camera once", "leave one out")
    if suite == "metaworld" and cameras:
        from counterpoint.envs.base import choose_cameras
        from counterpoint.envs.metaworld.env import CAMERAS

        choose_cameras(cameras, (), CAMERAS)
