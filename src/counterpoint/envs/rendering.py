"""Fast off-screen rendering of MuJoCo scenes where a CPU has to draw them.

Three things are paid for and not seen in a small picture, so they are left out:

- Multisampling, shadows and reflections, which take most of the time.
- Triangles far smaller than a pixel. Meta-World's arm alone has 65,000; at 112 pixels a third of them gives a
  picture from corner2 in which one pixel in four hundred changes noticeably, in half the time.
- The rasteriser's threads: for small pictures they cost more than they save.

Pixels differ from those of the simulator's own renderer, so `render_settings` belong with the data.
"""

from __future__ import annotations

import atexit
import copy
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["FastRenderer", "View", "choose_backend", "import_mujoco", "render_settings", "simplify_meshes"]

_CELL = 0.5  # metres times pixels: at 112 pixels 4.5 mm, half a pixel one metre before a lens of 60 degrees


@dataclass(frozen=True)
class View:
    """A camera that no model holds.

    Attributes:
        lookat: The point in the middle of the picture, in metres.
        distance: From that point, in metres.
        azimuth: Direction of looking about the vertical, in degrees: 0 along x, 90 along y.
        elevation: Of that direction above the horizon, in degrees: -90 straight down.
    """

    lookat: tuple[float, float, float]
    distance: float
    azimuth: float
    elevation: float


def choose_backend() -> None:
    """Choose how MuJoCo draws where nobody has: EGL on Linux without a display. Before mujoco is imported.

    Raises:
        BadInputError: When mujoco was imported before, and has chosen what needs a display.
    """
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa then draws in the calling thread
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not sys.platform.startswith("linux") or display or os.environ.get("MUJOCO_GL"):
        return
    if "mujoco" in sys.modules:
        raise BadInputError(
            "MUJOCO_GL",
            "not set when mujoco was imported, and no display",
            "a backend that needs no display",
            "set MUJOCO_GL=egl, or call counterpoint.envs.rendering.choose_backend() first",
        )
    os.environ["MUJOCO_GL"] = "egl"


def import_mujoco() -> Any:
    """The module `mujoco`, with a drawing backend that needs no display where there is none.

    Raises:
        MissingExtraError: When it is not installed.
        BadInputError: When it has no drawing backend that works here.
    """
    choose_backend()
    # The first optimiser of a process imports Triton, whose LLVM crashes where that of Mesa, which draws, is already.
    if find_spec("triton") is not None:
        import_module("triton")
    try:
        import mujoco
    except ModuleNotFoundError:
        raise MissingExtraError("mujoco", "sim") from None
    except (ImportError, RuntimeError, AttributeError) as error:
        raise _no_backend(error) from error
    return mujoco


class FastRenderer:
    """Draws a MuJoCo model into square pictures. Its graphics context belongs to the process that made it.

    Args:
        model: The `mujoco.MjModel` to draw; it is left as it is.
        data: Its `mujoco.MjData`.
        size: Height and width, in pixels.
        hidden: Groups of geoms that are not drawn, beside those that MuJoCo hides.

    Raises:
        BadInputError: When no graphics context can be had.
    """

    def __init__(self, model: Any, data: Any, size: int, *, hidden: Sequence[int] = ()) -> None:
        mujoco = import_mujoco()
        self.size = size
        self._model, self._data = model, data
        lean = simplify_meshes(model, _CELL / size)
        lean.vis.quality.offsamples = 0
        lean.vis.global_.offwidth = lean.vis.global_.offheight = size
        try:
            self._renderer = mujoco.Renderer(lean, size, size)
        except (ImportError, RuntimeError, AttributeError, mujoco.FatalError) as error:
            raise _no_backend(error) from error
        # Freed with this object, and in any case before the graphics library's own end.
        self._free = weakref.finalize(self, self._renderer.close)
        atexit.register(self._free)
        self._scene = self._renderer.scene
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = False
        self._option = mujoco.MjvOption()
        self._option.geomgroup[list(hidden)] = 0
        self._geoms = copy.copy(self._option)  # sites hide geoms in a segmentation even where they are transparent
        self._geoms.sitegroup[:] = 0
        self._view = mujoco.MjvCamera()
        self._fixed, self._free_moving = mujoco.mjtCamera.mjCAMERA_FIXED, mujoco.mjtCamera.mjCAMERA_FREE
        self._update, self._everything = mujoco.mjv_updateScene, mujoco.mjtCatBit.mjCAT_ALL.value
        self._geom = int(mujoco.mjtObj.mjOBJ_GEOM)

    def draw(self, camera: str | View, data: Any = None) -> Array:
        """The scene as it stands, from a camera of the model or any view: uint8 [size, size, 3].

        Args:
            camera: A camera of the model by name, or a view.
            data: Another `mujoco.MjData` of the same model, to draw the scene as it stands there.
        """
        self._place(camera, data, self._option)
        picture: Array = self._renderer.render()
        return picture

    def segment(self, camera: str | View, data: Any = None) -> Array:
        """Which geom each pixel of `draw` shows: int32 [size, size], -1 where none.

        Args:
            camera: A camera of the model by name, or a view.
            data: Another `mujoco.MjData` of the same model.
        """
        self._place(camera, data, self._geoms)
        self._renderer.enable_segmentation_rendering()
        try:
            seen: Array = self._renderer.render()  # [size, size, 2]: number and kind of an object
        finally:
            self._renderer.disable_segmentation_rendering()
        return np.where(seen[..., 1] == self._geom, seen[..., 0], -1)

    def _place(self, camera: str | View, data: Any, option: Any) -> None:
        """Bring the scene to where it stands, as the camera sees it."""
        self._point(camera)
        # Geometry comes from the whole model, where a task may change it; meshes from the lean one.
        self._update(self._model, data or self._data, option, None, self._view, self._everything, self._scene)

    def _point(self, camera: str | View) -> None:
        if isinstance(camera, View):
            self._view.type = self._free_moving
            self._view.lookat[:] = camera.lookat
            self._view.distance = camera.distance
            self._view.azimuth, self._view.elevation = camera.azimuth, camera.elevation
        else:
            self._view.type = self._fixed
            self._view.fixedcamid = self._model.camera(camera).id

    @property
    def device(self) -> str:
        """What draws: a graphics card, or `llvmpipe` for Mesa's software."""
        from OpenGL import GL

        name: str = GL.glGetString(GL.GL_RENDERER).decode()
        return name

    def close(self) -> None:
        """Free the graphics context."""
        self._free()


def render_settings(size: int) -> dict[str, Any]:
    """How a `FastRenderer` of that size draws: to be kept with its pictures."""
    return {
        "size": size,
        "offsamples": 0,
        "shadows": False,
        "reflections": False,
        "mesh_cell_m": _CELL / size,
        "backend": os.environ.get("MUJOCO_GL", ""),
    }


def simplify_meshes(model: Any, cell: float) -> Any:
    """A copy of a model, for drawing only, whose meshes have lost the detail finer than `cell`.

    Vertices in one cube of a grid become one, at their mean; triangles that lose a corner, or come to lie on
    one another facing the same way, go (vertex clustering: Rossignac and Borrel 1993).

    Args:
        model: A `mujoco.MjModel`.
        cell: Edge of the cubes, in metres.
    """
    lean = copy.copy(model)
    for mesh in range(lean.nmesh):
        first, vertices = int(lean.mesh_vertadr[mesh]), int(lean.mesh_vertnum[mesh])
        positions = lean.mesh_vert[first : first + vertices]
        cubes = np.floor(positions / cell).astype(np.int64)
        cluster, count = _number_rows(cubes)
        members = np.bincount(cluster, minlength=count)
        for axis in range(3):
            positions[:count, axis] = np.bincount(cluster, positions[:, axis], minlength=count) / members

        start, faces = int(lean.mesh_faceadr[mesh]), int(lean.mesh_facenum[mesh])
        rows = slice(start, start + faces)
        corners = cluster[lean.mesh_face[rows]]
        kept = _distinct_triangles(corners)
        lean.mesh_facenum[mesh] = len(kept)
        lean.mesh_face[start : start + len(kept)] = corners[kept]
        for attribute in (lean.mesh_facenormal, lean.mesh_facetexcoord):
            attribute[start : start + len(kept)] = attribute[rows][kept]
    return lean


def _number_rows(rows: Array) -> tuple[Array, int]:
    """For each integer row [N, 3] the number of its value among the distinct ones, and how many there are."""
    rows = rows - rows.min(axis=0)
    spans = rows.max(axis=0) + 1
    keys = (rows[:, 0] * spans[1] + rows[:, 1]) * spans[2] + rows[:, 2]
    distinct, numbers = np.unique(keys, return_inverse=True)
    return numbers.reshape(-1), len(distinct)


def _distinct_triangles(corners: Array) -> Array:
    """Which of the triangles [N, 3] still have an area, each orientation once; in their order."""
    a, b, c = corners.T
    whole = np.flatnonzero((a != b) & (b != c) & (a != c))
    if not len(whole):
        return whole[:0]
    # Turned so that the lowest corner leads, equal triangles that face the same way are equal rows.
    lead = corners[whole].argmin(axis=1)
    turned = np.stack([corners[whole, (lead + k) % 3] for k in range(3)], axis=1)
    numbers, _ = _number_rows(turned)
    _, firsts = np.unique(numbers, return_index=True)
    return whole[np.sort(firsts)]


def _no_backend(error: Exception) -> BadInputError:
    backend = os.environ.get("MUJOCO_GL") or "unset"
    return BadInputError(
        f"MUJOCO_GL={backend}",
        f"no graphics context ({error})",
        "a working OpenGL library; Mesa's software renderer is enough",
        "on Linux without a display set MUJOCO_GL=egl before mujoco is imported and install libegl1 and "
        "libgl1-mesa-dri; where EGL is not to be had, MUJOCO_GL=osmesa with libosmesa6",
    )
