from __future__ import annotations

import gc
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from counterpoint.envs.rendering import FastRenderer, choose_backend, import_mujoco, simplify_meshes
from counterpoint.errors import BadInputError

PROGRAM = """
from counterpoint.envs.metaworld.env import MetaWorldEnv

task = MetaWorldEnv("handle-press", size=16)
task.reset(seed=0)
task.render()
import torch

weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.Adam([weight])
(weight + 1).backward()
optimizer.step()
task.render()
"""


IMPORTS = """
import sys

from counterpoint.envs.rendering import choose_backend

started = []
sys.addaudithook(lambda event, values: started.append(values[1]) if event == "subprocess.Popen" else None)
choose_backend()
import glfw

assert glfw.get_version()[0] == 3
assert not started or sys.platform != "linux", started
"""


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize(
    "program",
    [pytest.param(PROGRAM, marks=pytest.mark.slow), IMPORTS],
    ids=["a process that drew trains", "glfw starts no process"],
)
def test_in_a_process_of_its_own(program: str) -> None:
    unset = ("DISPLAY", "WAYLAND_DISPLAY", "PYGLFW_LIBRARY")
    headless = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, env=headless, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def ball() -> Any:
    """A model with one red mesh of about 1,000 triangles: the hull of points on a sphere."""
    turn, height = np.arange(500) * 2.4, np.linspace(-1, 1, 500)
    ring = np.sqrt(1 - height**2)
    points = np.stack([ring * np.cos(turn), ring * np.sin(turn), height], axis=1)
    vertices = " ".join(f"{number:.5f}" for number in points.ravel())
    return import_mujoco().MjModel.from_xml_string(f"""
        <mujoco>
          <asset><mesh name="ball" vertex="{vertices}"/></asset>
          <worldbody>
            <light pos="0 -5 0" dir="0 1 0"/>
            <camera name="front" pos="0 -4 0" xyaxes="1 0 0 0 0 1"/>
            <geom type="mesh" mesh="ball" rgba="1 0 0 1"/>
          </worldbody>
        </mujoco>""")


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_simplified_meshes_lose_only_what_is_finer_than_the_cell() -> None:
    model = ball()
    faces, vertices = int(model.mesh_facenum[0]), model.mesh_vert.copy()
    same, coarse, gone = (simplify_meshes(model, cell) for cell in (1e-4, 0.3, 100.0))
    assert same.mesh_facenum[0] == faces
    np.testing.assert_allclose(np.unique(same.mesh_vert, axis=0), np.unique(vertices, axis=0), atol=1e-6)
    assert 20 < coarse.mesh_facenum[0] < faces / 2
    used = coarse.mesh_face[: coarse.mesh_facenum[0]]
    radius = np.linalg.norm(coarse.mesh_vert[np.unique(used)], axis=1)
    assert np.abs(radius - np.linalg.norm(vertices, axis=1).mean()).max() < 0.3
    assert gone.mesh_facenum[0] <= 12  # one corner in each of eight cubes
    assert model.mesh_facenum[0] == faces
    np.testing.assert_array_equal(model.mesh_vert, vertices)


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_the_renderer_draws_any_model() -> None:
    mujoco = import_mujoco()
    model = ball()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = FastRenderer(model, data, 32)
    image = renderer.render("front")
    renderer.close()
    renderer.close()
    assert image[16, 16, 0] > 50
    assert image[16, 16, 0] > 2 * image[16, 16, 1]
    assert image[0, 0].max() == 0


@pytest.mark.parametrize(
    ("platform", "display", "given", "expected"),
    [
        ("linux", None, None, "egl"),
        ("linux", None, "osmesa", "osmesa"),
        ("linux", ":0", None, None),
        ("darwin", None, None, None),
    ],
)
def test_the_backend_is_chosen_only_on_linux_without_a_display(
    monkeypatch: pytest.MonkeyPatch, platform: str, display: str | None, given: str | None, expected: str | None
) -> None:
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    pretend_machine(monkeypatch, platform, display, given)
    choose_backend()
    assert os.environ.get("MUJOCO_GL") == expected


def test_a_backend_cannot_be_chosen_any_more_when_mujoco_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", ModuleType("mujoco"))
    pretend_machine(monkeypatch, "linux", None, None)
    with pytest.raises(BadInputError, match="set MUJOCO_GL=egl"):
        choose_backend()


@pytest.mark.parametrize("backend", ["glfw", "glx"])
def test_a_backend_that_needs_a_display_is_refused_without_one(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    pretend_machine(monkeypatch, "linux", None, backend)
    with pytest.raises(BadInputError, match=f"found {backend}, and no display"):
        choose_backend()


def pretend_machine(monkeypatch: pytest.MonkeyPatch, platform: str, display: str | None, backend: str | None) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in (("DISPLAY", display), ("WAYLAND_DISPLAY", None), ("MUJOCO_GL", backend)):
        monkeypatch.setenv(name, "")  # so that what is set here is undone
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_a_broken_graphics_library_is_told_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    mujoco = import_mujoco()

    def broken(*_: object) -> None:
        raise ImportError("Cannot initialize a EGL device display")

    monkeypatch.setattr(mujoco, "Renderer", broken)
    model = ball()
    with pytest.raises(BadInputError, match=r"MUJOCO_GL.*Cannot initialize.*libegl1"):
        FastRenderer(model, mujoco.MjData(model), 32)


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_the_device_is_named_after_another_renderer_was_freed() -> None:
    model = ball()
    data = import_mujoco().MjData(model)
    first, second = FastRenderer(model, data, 16), FastRenderer(model, data, 16)
    first.render("front")
    second.close()
    assert first.device
    assert first.render("front").shape == (16, 16, 3)


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_the_collector_frees_no_other_renderer_while_one_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ball()
    renderer = FastRenderer(model, import_mujoco().MjData(model), 16)
    running: list[bool] = []
    draw = renderer._renderer.render

    def watched() -> Any:
        running.append(gc.isenabled())
        return draw()

    monkeypatch.setattr(renderer._renderer, "render", watched)
    renderer.render("front")
    renderer.segment("front")
    assert running == [False, False]
    assert gc.isenabled()
