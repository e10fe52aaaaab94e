"""`CameraEnv`, the base class of simulated control tasks with camera observations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces

from counterpoint.data.episode import Array
from counterpoint.data.resize import resize
from counterpoint.data.store import Cameras
from counterpoint.envs.rendering import FastRenderer, render_settings
from counterpoint.errors import BadInputError, require, require_known

Scene = Literal["own", "shared"]
"""`own` gives each task its suite's scene; `shared` puts all tasks into one scene, which leaves open which follows."""


class Options(TypedDict, total=False):
    """The options that environments of all suites accept.

    Attributes:
        cameras: Names of cameras, in this order; by default the suite's usual cameras; `()` means no camera.
            `render()` shows the first camera.
        size: Height and width of the images, in pixels; by default the suite's `usual_size`.
        render: Size at which the simulator renders; images are then resized to `size`, as training images are. By
            default images are rendered at `size`. Small images rendered directly are jagged, unlike resized ones.
        steps: Number of steps per episode; by default the suite's number.
    """

    cameras: Cameras
    size: int
    render: int | None
    steps: int | None


class CameraEnv(gymnasium.Env[dict[str, Any], Any]):
    """A control task with one camera or several, proprioception and an instruction.

    An observation maps every camera to its image, uint8 [size, size, 3] (RGB, upright), and `"state"` to
    proprioception, float32 [P]. In some suites it also maps `"environment_state"` to values that a robot cannot sense,
    such as poses of objects, float32 [E]. An action is float [A] in [-1, 1]. An episode depends only on its seed and
    its actions. Episodes are truncated at `horizon`; success does not end them.

    A suite's class implements `_begin`, `_advance`, `_images` and `state`.

    Args:
        name: SUITE/TASK.
        instruction: The task in words.
        action_dim: Number of action dimensions (A).
        state_dim: Number of proprioception dimensions (P).
        environment_dim: Number of `environment_state` dimensions (E); 0 for suites without it.
        control_hz: Actions per second.
        horizon: Number of steps per episode if `steps` is not given.
        usual: The suite's usual cameras.
        known: All cameras of the suite, against which the chosen cameras are checked; `None` if the suite checks them
            itself.
        **options: See `Options`.

    Attributes:
        look: Set it to False if the next images will not be read: `reset` and `step` then return black images.

    Raises:
        BadInputError: If the task, camera or option does not exist in the suite.
        MissingExtraError: If the suite's simulator is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium's own type)
    render_mode = "rgb_array"
    has_success: ClassVar[bool] = True
    """False for suites that have only rewards, without `info["is_success"]`."""
    smallest: ClassVar[int] = 1
    """The minimum image size, in pixels."""
    usual_size: ClassVar[int] = 84
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose versions determine states and pixels."""

    def __init__(
        self,
        name: str,
        instruction: str,
        *,
        action_dim: int,
        state_dim: int,
        environment_dim: int = 0,
        control_hz: float,
        horizon: int,
        usual: Sequence[str] = (),
        known: Sequence[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        size, steps = options.get("size", self.usual_size), options.get("steps")
        self._rendered_size = options.get("render") or size
        enough = min(size, self._rendered_size) >= self.smallest
        require(enough, "size", size, f"at least {self.smallest} pixels", "enlarge")
        require(steps is None or steps >= 1, "steps", steps, "1 or more", "leave it out for the suite's own")
        self.name, self.instruction, self.size, self.control_hz = name, instruction, size, control_hz
        self.action_dim, self.state_dim, self.environment_dim = action_dim, state_dim, environment_dim
        self.cameras = choose_cameras(options.get("cameras"), usual, known)
        self.horizon, self._steps = horizon if steps is None else steps, 0
        self.look = True
        self.metadata = {**self.metadata, "render_fps": max(1, round(control_hz))}
        boxes = dict.fromkeys(self.cameras, spaces.Box(0, 255, (size, size, 3), np.uint8))
        dims = {"state": state_dim} | ({"environment_state": environment_dim} if environment_dim else {})
        vectors = {name: spaces.Box(-np.inf, np.inf, (dim,), np.float32) for name, dim in dims.items()}
        self.observation_space = spaces.Dict({**boxes, **vectors})
        self.action_space = spaces.Box(-1.0, 1.0, (action_dim,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode with this seed; without a seed, a number drawn from `np_random` is used."""
        super().reset(seed=seed)
        self._steps = 0
        self._begin(int(self.np_random.integers(2**31)) if seed is None else int(seed))
        return self._observation(), {"is_success": False} if self.has_success else {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one action.

        Raises:
            BadInputError: If the action does not consist of A finite numbers.
        """
        action = np.asarray(action)
        if action.shape != self.action_space.shape or not np.isfinite(action).all():
            raise self._bad_action(action)
        reward, success, ended = self._advance(action)
        self._steps += 1
        info = {"is_success": bool(success)} if self.has_success else {}
        return self._observation(), float(reward), bool(ended), self._steps >= self.horizon, info

    def render(self) -> Array:
        """Return the first camera's image: uint8 [size, size, 3]."""
        return self.images()[self.cameras[0]]

    def images(self) -> dict[str, Array]:
        """Render every camera; return the images, uint8 [size, size, 3], by camera name."""
        images = self._images()
        if self._rendered_size != self.size:
            images = {camera: resize(image[None], self.size)[0] for camera, image in images.items()}
        return images

    def state(self) -> Array:
        """Return proprioception: float32 [P]."""
        raise NotImplementedError

    def environment_state(self) -> Array:
        """Return the state of the environment, float32 [E], for suites with an `environment_dim`."""
        raise NotImplementedError

    def _begin(self, seed: int) -> None:
        raise NotImplementedError

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        """Take an action; return the reward, success at this step, and True if the episode ends before its horizon."""
        raise NotImplementedError

    def _images(self) -> dict[str, Array]:
        """Render every camera at the size in the option `render`, in the order of `cameras`."""
        raise NotImplementedError

    def _observation(self) -> dict[str, Any]:
        dark = {camera: np.zeros((self.size, self.size, 3), np.uint8) for camera in self.cameras}
        surroundings = {"environment_state": self.environment_state()} if self.environment_dim else {}
        return {**(self.images() if self.look else dark), "state": self.state(), **surroundings}

    def _bad_action(self, action: Array) -> BadInputError:
        wrong = action.shape != self.action_space.shape
        found = f"shape {action.shape}" if wrong else np.array2string(action, precision=3)
        hint = "act with a policy that was trained on this suite, and undo its normalisation"
        return BadInputError(f"{self.name}: action", found, f"{self.action_dim} finite numbers in [-1, 1]", hint)


class MujocoEnv(CameraEnv):
    """A `CameraEnv` of a MuJoCo model; the renderer is created at the first image, in the process that renders.

    A suite's class also implements `_scene`.
    """

    smallest = 16
    hidden: ClassVar[tuple[int, ...]] = ()
    """Groups of geoms that are not rendered."""
    canary: ClassVar[str]
    """The task whose scene `describe_rendering` renders as a test image; the suite's name may come first."""

    _renderer: FastRenderer | None = None

    def _scene(self) -> tuple[Any, Any]:
        """Return the `mujoco.MjModel` and its `mujoco.MjData`."""
        raise NotImplementedError

    @property
    def renderer(self) -> FastRenderer:
        """The renderer of the scene."""
        if self._renderer is None:
            self._renderer = FastRenderer(*self._scene(), self._rendered_size, hidden=self.hidden)
        return self._renderer

    def _images(self) -> dict[str, Array]:
        return {camera: self.renderer.render(camera) for camera in self.cameras}

    def close(self) -> None:
        """Free the graphics context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def describe_rendering(self) -> dict[str, Any]:
        """Return all that determines pixels in addition to the scene (settings, camera poses, device), and a canary.

        The canary is the SHA-256 of a test image of a fixed scene. Two machines or versions with different canaries
        render different pixels.
        """
        model, parts = self._scene()[0], {"position": "pos", "quaternion": "quat"}
        views = {camera: model.camera(camera) for camera in self.cameras}
        suite: Any = type(self)
        canary = suite(self.canary.rpartition("/")[2])
        try:
            canary.reset(seed=0)
            digest = hashlib.sha256(canary.render().tobytes()).hexdigest()
            scene = {"task": self.canary, "seed": 0, "camera": canary.cameras[0], "size": canary.size}
            return {
                **render_settings(self.size),
                **({"hidden_groups": list(self.hidden)} if self.hidden else {}),
                "device": canary.renderer.device,
                "camera_pose": {
                    camera: {part: np.round(getattr(view, name), 6).tolist() for part, name in parts.items()}
                    for camera, view in views.items()
                },
                "canary": {**scene, "sha256": digest},
            }
        finally:
            canary.close()


def choose_cameras(given: Cameras, usual: Sequence[str], known: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the given cameras, or the usual cameras for `None`, without repeats.

    Raises:
        BadInputError: If a camera is unknown.
    """
    names = tuple(dict.fromkeys((given,) if isinstance(given, str) else usual if given is None else given))
    if known is not None:
        for name in names:
            require_known(name, known, "camera")
    return names


@contextmanager
def seeded_numpy(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, which some simulators use, and restore its state afterwards."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)
