"""Fast off-screen rendering of MuJoCo scenes on a CPU.

To save time, effects that are hardly visible in small images are left out: multisampling, shadows and reflections, and
triangles far smaller than a pixel. (Meta-World's arm has 65,000 triangles. At 112 pixels, a third of them takes half
the time to render, and one pixel in four hundred changes noticeably.) Rendering uses no additional threads. Pixels
differ from those of the simulator's own renderer.
"""

from __future__ import annotations

import atexit
import copy
import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError, MissingExtraError, import_extra, require

# Size of the smallest mesh detail, in metres times pixels: 4.5 mm at 112 pixels, which is half a pixel at a distance of
# one metre and 60 degrees field of view.
_CELL = 0.5


@dataclass(frozen=True)
class View:
    """A camera pose that is not part of a model.

    Attributes:
        lookat: The point in the middle of the image, in metres.
        distance: Distance of the camera from that point, in metres.
        azimuth: Horizontal viewing direction, in degrees: 0 along x, 90 along y.
        elevation: Viewing direction above the horizon, in degrees: -90 straight down.
    """

    lookat: tuple[float, float, float]
    distance: float
    azimuth: float
    elevation: float


def choose_backend() -> None:
    """Choose EGL on Linux without a display, unless a backend is already chosen. Call this before importing mujoco.

    Raises:
        BadInputError: If a backend that needs a display is chosen, or mujoco was already imported with such a backend.
    """
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa then renders in the calling thread
    if not sys.platform.startswith("linux") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    chosen, expected = os.environ.get("MUJOCO_GL"), "a backend that needs no display"
    require(chosen not in ("glfw", "glx"), "MUJOCO_GL", f"{chosen}, and no display", expected, "set MUJOCO_GL=egl")
    if not chosen:
        found, hint = "not set when mujoco was imported, and no display", "set MUJOCO_GL=egl before"
        require("mujoco" not in sys.modules, "MUJOCO_GL", found, expected, hint)
        os.environ["MUJOCO_GL"] = "egl"
    _name_glfw_library()


def _name_glfw_library() -> None:
    """Set the path of glfw's library, if glfw's package contains a library that loads.

    gymnasium imports glfw. Without the path, glfw starts a process that looks for the library; if a worker is killed
    meanwhile, this process prints a traceback.
    """
    if "PYGLFW_LIBRARY" in os.environ:
        return
    found = find_spec("glfw")
    if found is not None and found.origin is not None:
        library = Path(found.origin).with_name("x11") / "libglfw.so"
        with suppress(OSError):  # missing, or built for another system
            ctypes.CDLL(str(library))
            os.environ["PYGLFW_LIBRARY"] = str(library)


def import_mujoco() -> Any:
    """Import `mujoco`; if there is no display, choose a rendering backend that needs none.

    Raises:
        MissingExtraError: If mujoco is not installed.
        BadInputError: If no rendering backend works on this machine.
    """
    choose_backend()
    # The first optimiser of a process imports Triton, whose LLVM crashes if Mesa's LLVM is loaded first.
    if find_spec("triton") is not None:
        import_module("triton")
    try:
        import mujoco
    except ModuleNotFoundError:
        raise MissingExtraError("mujoco", "sim") from None
    except (ImportError, RuntimeError, AttributeError) as error:
        raise _no_backend(error) from error
    return mujoco


@contextmanager
def undisturbed() -> Iterator[None]:
    """Pause the garbage collector: if it frees another renderer, this thread loses its graphics context."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def import_robotics() -> Any:
    """Import `gymnasium_robotics`, without the message about Adroit that its first import prints.

    Raises:
        MissingExtraError: If gymnasium_robotics is not installed.
    """
    with suppress(ImportError, KeyError):
        from farama_notifications import notifications

        notes = notifications["gymnasium_robotics"].items()
        notifications["gymnasium_robotics"] = {key: note for key, note in notes if not note.startswith("Adroit")}
    return import_extra("gymnasium_robotics", "sim")


class FastRenderer:
    """Renders a MuJoCo model into square images; works only in the process that created it.

    Args:
        model: The `mujoco.MjModel`; it is not changed.
        data: The model's `mujoco.MjData`.
        size: Height and width, in pixels.
        hidden: Groups of geoms that are not rendered, in addition to those that MuJoCo hides.

    Raises:
        BadInputError: If no OpenGL context can be created.
    """

    def __init__(self, model: Any, data: Any, size: int, *, hidden: Sequence[int] = ()) -> None:
        self._mujoco = mujoco = import_mujoco()
        self._model, self._data = model, data
        lean = simplify_meshes(model, _CELL / size)
        lean.vis.quality.offsamples = 0
        lean.vis.global_.offwidth = lean.vis.global_.offheight = size
        try:
            with undisturbed():
                self._renderer = mujoco.Renderer(lean, size, size)
        except (ImportError, RuntimeError, AttributeError, mujoco.FatalError) as error:
            raise _no_backend(error) from error
        # Freed with this object, and in any case before the graphics library shuts down.
        self.close = weakref.finalize(self, self._renderer.close)
        atexit.register(self.close)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = False
        self._option = mujoco.MjvOption()
        self._option.geomgroup[list(hidden)] = 0
        self._geoms = copy.copy(self._option)  # in a segmentation, sites hide geoms even if the sites are transparent
        self._geoms.sitegroup[:] = 0
        self._view = mujoco.MjvCamera()

    def render(self, camera: str | View, data: Any = None) -> Array:
        """Render the current scene: uint8 [size, size, 3].

        Args:
            camera: The name of a camera of the model, or a view.
            data: Another `mujoco.MjData` of the same model to render instead.
        """
        self._update(camera, data, self._option)
        with undisturbed():
            return np.asarray(self._renderer.render())

    def segment(self, camera: str | View, data: Any = None) -> Array:
        """Return the id of the geom at each pixel of `render`: int32 [size, size], -1 for pixels without a geom."""
        self._update(camera, data, self._geoms)
        self._renderer.enable_segmentation_rendering()
        try:
            with undisturbed():
                seen = self._renderer.render()  # [size, size, 2]: id and kind of an object
        finally:
            self._renderer.disable_segmentation_rendering()
        return np.where(seen[..., 1] == int(self._mujoco.mjtObj.mjOBJ_GEOM), seen[..., 0], -1)

    @property
    def device(self) -> str:
        """The name of the graphics card, or `llvmpipe` for Mesa's software renderer."""
        from OpenGL import GL

        with undisturbed():
            self._renderer._gl_context.make_current()
            return str(GL.glGetString(GL.GL_RENDERER).decode())

    def _update(self, camera: str | View, data: Any, option: Any) -> None:
        mujoco, view = self._mujoco, self._view
        if isinstance(camera, View):
            view.type = mujoco.mjtCamera.mjCAMERA_FREE
            view.lookat[:], view.distance = camera.lookat, camera.distance
            view.azimuth, view.elevation = camera.azimuth, camera.elevation
        else:
            view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, self._model.camera(camera).id
        # Geometry comes from the full model, which a task may change; meshes come from the simplified model.
        every, scene = mujoco.mjtCatBit.mjCAT_ALL.value, self._renderer.scene
        mujoco.mjv_updateScene(self._model, data or self._data, option, None, view, every, scene)


def render_settings(size: int) -> dict[str, Any]:
    """Return the settings of a `FastRenderer` of this size, to be stored with its images."""
    return {
        "size": size,
        "offsamples": 0,
        "shadows": False,
        "reflections": False,
        "mesh_cell_m": _CELL / size,
        "backend": os.environ.get("MUJOCO_GL", ""),
    }


def simplify_meshes(model: Any, cell: float) -> Any:
    """Return a copy of a `mujoco.MjModel`, only for rendering, whose meshes have no detail finer than `cell` metres.

    Vertices in the same cube of a grid are replaced by their mean. Triangles that lose a corner, or coincide with
    another triangle of the same orientation, are removed (vertex clustering: Rossignac and Borrel 1993).
    """
    lean = copy.copy(model)
    for mesh in range(lean.nmesh):
        first, vertices = int(lean.mesh_vertadr[mesh]), int(lean.mesh_vertnum[mesh])
        positions = lean.mesh_vert[first : first + vertices]
        cells = np.floor(positions / cell).astype(np.int64)
        _, cluster, members = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
        cluster = cluster.reshape(-1)
        for axis in range(3):
            positions[: len(members), axis] = np.bincount(cluster, positions[:, axis]) / members

        start = int(lean.mesh_faceadr[mesh])
        rows = slice(start, start + int(lean.mesh_facenum[mesh]))
        corners = cluster[lean.mesh_face[rows]]
        kept = _distinct_triangles(corners)
        lean.mesh_facenum[mesh] = len(kept)
        lean.mesh_face[start : start + len(kept)] = corners[kept]
        for attribute in (lean.mesh_facenormal, lean.mesh_facetexcoord):
            attribute[start : start + len(kept)] = attribute[rows][kept]
    return lean


def _distinct_triangles(corners: Array) -> Array:
    """Return the indices of triangles [N, 3] that still have an area, without duplicates of the same orientation."""
    a, b, c = corners.T
    whole = np.flatnonzero((a != b) & (b != c) & (a != c))
    if not len(whole):
        return whole
    # Rows are rotated so that the lowest corner comes first; equal triangles of equal orientation are then equal rows.
    lead = corners[whole].argmin(axis=1)
    turned = np.stack([corners[whole, (lead + k) % 3] for k in range(3)], axis=1)
    _, firsts = np.unique(turned, axis=0, return_index=True)
    return whole[np.sort(firsts)]


def _no_backend(error: Exception) -> BadInputError:
    where, found = f"MUJOCO_GL={os.environ.get('MUJOCO_GL') or 'unset'}", f"no graphics context ({error})"
    hint = "set MUJOCO_GL=egl and install libegl1 and libgl1-mesa-dri, or MUJOCO_GL=osmesa and libosmesa6"
    return BadInputError(where, found, "a working OpenGL library; Mesa's software is enough", hint)
