"""The adapter against a made-up LIBERO: the real one needs an environment of its own and its meshes."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.envs.libero import CAMERAS, LiberoEnv, read_init_states
from counterpoint.envs.make import make_env
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import open_dataset
from studies.fewshot.libero import LIBERO_10
from tests.envs.played import act, images
from tests.envs.robosuite_made import MadeLiberoEnv, make_libero
from tests.formats.hdf5.made import write_libero


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[MadeLiberoEnv]:
    return make_libero(monkeypatch, tmp_path / "libero")


def test_tasks_by_number_and_by_name(tmp_path: Path, made: list[MadeLiberoEnv]) -> None:
    task = make_env("libero/libero_10/2")
    assert isinstance(task, LiberoEnv)
    assert (task.name, task.instruction) == ("libero/libero_10/2", "turn on the stove and put the moka pot on it")
    assert (task.action_dim, task.state_dim, task.horizon) == (7, 9, 600)
    assert make_env(f"libero/libero_10/{LIBERO_10[5].name}").name == "libero/libero_10/5"
    told = made[0].arguments
    assert told["bddl_file_name"].endswith(f"bddl_files/libero_10/{LIBERO_10[2].name}.bddl")
    assert told["use_camera_obs"] is False
    data = open_dataset(write_libero(tmp_path / f"{LIBERO_10[2].name}_demo.hdf5")[0])
    assert data.episodes[0].instruction == task.instruction


def test_seeds_choose_initial_states(made: list[MadeLiberoEnv]) -> None:
    task = make_env("libero/libero_10/2")
    np.random.seed(7)
    before = np.random.get_state()[1].copy()  # type: ignore[index]
    for seed, state in ((0, 200.0), (3, 203.0), (5, 200.0)):  # five initial states
        task.reset(seed=seed)
        assert made[0].place.tolist() == [state] * 4
        assert made[0].steps == 5  # objects have come to rest
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]


def test_images_state_and_success(tmp_path: Path, made: list[MadeLiberoEnv]) -> None:
    task = make_env("libero/libero_10/0", cameras="robot0_eye_in_hand", size=16)
    task.reset(seed=0)
    image = task.render()
    assert image.shape == (16, 16, 3)
    assert image[-1, 0].tolist() == [255, 0, 0]
    assert (image[:-1] == 2).all()
    assert task.state().tolist() == [7.0] * 2 + [6.0] * 7  # gripper, then joints, as in the data
    state = open_dataset(write_libero(tmp_path / "stove_demo.hdf5")[0]).state(0)
    assert state is not None
    assert state.shape[1] == task.state_dim
    outcomes = [act(task, np.full(7, 2.0, np.float32)) for _ in range(3)]
    assert [(o.reward, o.success) for o in outcomes] == [(0, False), (0, False), (1, True)]
    assert made[0].actions[-1].tolist() == [1.0] * 7
    task.close()
    assert made[0].closed


def test_both_cameras_by_either_name(made: list[MadeLiberoEnv]) -> None:
    wrist, outer = (make_env("libero/libero_10/0", cameras=name, size=16) for name in CAMERAS[::-1])
    for names in (CAMERAS, ("agentview_rgb", "eye_in_hand_rgb")):
        both = make_env("libero/libero_10/0", cameras=names, size=16)
        for one in (both, outer, wrist):
            one.reset(seed=0)
        np.testing.assert_array_equal(images(both), np.stack([outer.render(), wrist.render()]))
    with pytest.raises(BadInputError, match="camera: found 'side'"):
        make_env("libero/libero_10/0", cameras=("agentview", "side"))


@pytest.mark.parametrize(
    ("name", "camera", "told"),
    [
        ("libero_11/0", None, "suite 'libero_11'; expected one of libero_10, libero_90"),
        ("libero_10", None, "task ''; expected 0 to 9, or one of LIVING_ROOM"),
        ("libero_10/10", None, "task '10'"),
        ("libero_10/fly", None, "task 'fly'"),
        ("libero_10/0", "side", "camera: found 'side'; expected one of agentview"),
    ],
)
def test_what_cannot_be_made(made: list[MadeLiberoEnv], name: str, camera: str | None, told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        make_env(f"libero/{name}", cameras=camera)


def test_without_libero_and_without_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libero", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[libero\]'"):
        make_env("libero/libero_10/0")

    def asks(name: str) -> Any:
        raise EOFError(name)  # nobody answers its question

    monkeypatch.setattr("counterpoint.envs.libero.import_module", asks)
    with pytest.raises(BadInputError, match="echo n"):
        make_env("libero/libero_10/0")


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("harm",)


def test_initial_states_are_numbers_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "states"
    states = np.arange(12.0).reshape(3, 4)
    torch.save(states, path)
    np.testing.assert_array_equal(read_init_states(path), states)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:  # as numpy 1, with which LIBERO's were written, named its module
        for name, part in parts.items():
            archive.writestr(name, part.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert b"cnumpy.core.multiarray" in path.read_bytes()
    np.testing.assert_array_equal(read_init_states(path), states)
    for content, told in (([_Harm()], "no array"), ({"a": 1}, "no array"), (np.zeros(3), r"found \(3,\)")):
        torch.save(content, path)
        with pytest.raises(BadInputError, match=told):
            read_init_states(path)
    with pytest.raises(BadInputError, match="no file"):
        read_init_states(tmp_path / "nowhere")
    assert "harm" not in capsys.readouterr().out
