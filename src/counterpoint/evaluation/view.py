"""`counterpoint view RUN|DATA...`: a local page with videos and episodes next to their reward curves.

The server listens only on the loopback address and refuses requests that name another host, so that a web page cannot
reach the server by pointing its domain name at this machine. An uploaded video is decoded in a separate process, which
may crash, and deleted after reading.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup
from tyro.conf import Positional, arg

from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.encoders.hub import is_foreign, saved_kind
from counterpoint.errors import BadInputError, MissingExtraError, import_extra, require
from counterpoint.evaluation.browsed import TRAINED_ON, BrowsedSet, Clip, embed_clip, panels_of
from counterpoint.evaluation.compare import TEMPLATES
from counterpoint.evaluation.embedded import spread
from counterpoint.evaluation.held_out import read_config
from counterpoint.evaluation.overlays import overlay_panels
from counterpoint.evaluation.rank import edit_command
from counterpoint.formats.lru import LRUCache
from counterpoint.formats.remote import absolute, may_exist, reachable
from counterpoint.formats.video import frame_times, probe_video, read_frames
from counterpoint.parameter_types import Computes, File, Name
from counterpoint.repositories import hub_id
from counterpoint.rewards.curves import CHUNK_BYTES, MEANING, form_of
from counterpoint.rewards.embedding import STATE, check_instructions
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.page import Panel, breakable, jpeg, make_player, render, signed
from counterpoint.rewards.sources import FunctionReward, open_function
from counterpoint.workers import IN_PROCESS, Foreign, in_worker

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

FRAMES, THUMBNAIL = 128, 220
"""Number of scored frames of a video, evenly spread; longer side of thumbnails."""
LARGEST_UPLOAD, LARGEST_FRAME = 256 * 2**20, 2**25
"""Maximum bytes of an uploaded video, and maximum pixels of a frame (8K)."""
KEPT = 512 * 2**20
"""Maximum bytes of scored videos and episodes kept in memory."""
ON_A_PAGE, AT_HOME, RIVALS = 24, 4, 50
"""Episodes per page; episodes on the first page; maximum number of other instructions that are scored for an episode.
The instruction with the highest final reward is the episode's strongest rival."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FILTER = ("find", "success", "split", "flag", "sort", "order")
"""Keys of a query that filter and sort episodes."""


def view(
    targets: Positional[Annotated[Sequence[str], arg(metavar="RUN|DATA...", help_behavior_hint="(required)")]],
    *,
    overlay: Annotated[Sequence[str], arg(metavar="FILE|COLUMN...")] = (),
    flags: File = None,
    port: int = 0,
    browser: bool = True,
    device: Computes = "cpu",
    foreign: Foreign = IN_PROCESS,
    dialect: Name = None,
) -> None:
    """Open a local page: drop a video, browse episodes, and see their reward curves by one run or several.

    Episodes can be sorted by curves of progress files and of columns, and flagged; the page exports the command that
    deletes the flagged episodes of a LeRobot data set, in a copy. The page is served until the command is interrupted.

    Time on two cores: some seconds to start, then a second or two for a video of some hundred frames with the demo's
    encoder. Disk: only temporary files, and the flags.

    Args:
        targets: Runs (folders of runs or of saved weights, or Hub ids), models of others (folders of LeRobot reward
            models, or module:function) and data sets; if no data set is given, those that the runs were trained on. A
            Hub id is a data set if there is no model of that name.
        overlay: Curves that are drawn over the episodes of the one data set: parquet files such as
            sarm_progress.parquet, FILE:COLUMN for one of their columns, and columns of the data set. Progress files in
            a LeRobot data set are found without being named.
        flags: JSON file of the flagged episodes of the one data set; by default DATA.flags.json, beside the data.
        port: The port on this machine; 0 selects a free port.
        browser: True to open the page in the machine's browser.
        device: The device that computes, such as cuda.
        foreign: How models of others run.
        dialect: The dialect of HDF5 files, if the files do not identify it; by default as in the runs that were trained
            on them.

    Raises:
        BadInputError: If a target is neither a run nor a data set, a curve or a flag does not fit the data, or the
            port is in use.
        MissingExtraError: If the extra `view` is not installed.
    """
    uvicorn = import_extra("uvicorn", "view")
    with tempfile.TemporaryDirectory(prefix="counterpoint-view-") as folder:
        app = Viewer(targets, Path(folder), device, dialect, foreign, overlay, flags).app()
        with listen(port) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            print(f"Open {address} (Ctrl+C ends the server)", flush=True)
            if browser:
                webbrowser.open(address)
            try:
                uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
            except KeyboardInterrupt:  # the usual way to end the server
                print("The server has ended.")


def listen(port: int) -> socket.socket:
    """Return a socket that listens on the loopback address; port 0 selects a free port.

    Raises:
        BadInputError: If the port is in use or not allowed.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # reuse the port of a server that has just ended
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise BadInputError("--port", f"{port} ({error})", "a free port", "leave it out: a free one is taken") from None
    listener.listen()
    return listener


class Viewer:
    """The pages over some runs and data sets.

    Args:
        targets: Runs and data sets; if no data set is given, the runs' training data are browsed.
        folder: A folder for videos while they are read.
        device: The device that computes.
        dialect: The dialect of HDF5 files, if the files do not identify it.
        foreign: How models of others run.
        overlay: Files and columns whose curves are drawn over the episodes of the one data set.
        flags: The file of flagged episodes of the one data set.
    """

    def __init__(
        self,
        targets: Sequence[str],
        folder: Path,
        device: str = "cpu",
        dialect: str | None = None,
        foreign: Foreign = IN_PROCESS,
        overlay: Sequence[str] = (),
        flags: Path | None = None,
    ) -> None:
        require(targets, "view", "nothing to view", "a run or a data set", "name one or several")
        self.folder = folder
        self.runs: dict[str, RewardModel | FunctionReward] = {}
        self.objectives: dict[str, str] = {}
        paths: list[str] = []
        trained: dict[str, list[dict[str, Any]]] = {}
        for target in dict.fromkeys(targets):
            if not _is_run(target):
                paths.append(target)
                continue
            name = Path(target).resolve().name
            name = target if name in self.runs else name
            if is_foreign(target):
                self.runs[target] = open_function(target, device=device, foreign=foreign)
                self.objectives[target] = "a model of others"
                continue
            self.runs[name] = RewardModel.from_pretrained(target, device=device)
            file = Path(target) / "config.json"
            config = read_config(file) if file.is_file() else {}
            objective, data = (
                config[key] if isinstance(config.get(key), dict) else {} for key in ("objective", "data")
            )
            self.objectives[name] = objective.get("name", "")
            if reachable(data.get("path") or "absent"):
                trained.setdefault(absolute(data["path"]), []).append(config)
        count, hint = len(paths or trained), "name one data set, or leave it out"
        given = [f"--{name}" for name, value in (("overlay", overlay), ("flags", flags)) if value]
        require(not given or count == 1, " and ".join(given), f"{count} data sets", "one", hint)
        settings: dict[str, Any] = {"dialect": dialect, "overlay": overlay, "flags": flags}
        self.sets = [BrowsedSet(Path(path), trained.get(absolute(path), ()), **settings) for path in paths or trained]
        self._computing = threading.Lock()
        self.language = any(form_of(model) != "goal" for model in self.runs.values())
        self._clips: LRUCache[Clip] = LRUCache(KEPT)

    def app(self) -> Starlette:
        """Return the application.

        Raises:
            MissingExtraError: If the extra `view` is not installed.
        """
        import_extra("starlette", "view")
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.routing import Route

        kinds: tuple[type[Exception], ...] = (BadInputError, MissingExtraError, HTTPException)
        return Starlette(
            routes=[
                Route("/", self.home),
                Route("/videos", self.upload, methods=["POST"]),
                Route("/videos/{key}", self.video),
                Route("/data/{set:int}", self.browse),
                Route("/data/{set:int}/episodes/{episode:int}", self.episode),
                Route("/data/{set:int}/images/{episode:int}", self.thumbnail),
                Route("/data/{set:int}/flags/{episode:int}", self.flag, methods=["PUT", "DELETE"]),
                Route("/data/{set:int}/export", self.export),
            ],
            exception_handlers=dict.fromkeys(kinds, self._refuse),
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
        )

    def home(self, request: Request) -> Response:
        """Return the first page: a field for uploading a video, and the data sets."""
        shown = []
        for number, one in enumerate(self.sets):
            N = len(one.store.episodes)
            shown.append((one.path.name, f"/data/{number}", N, self._cards(number, spread(N, AT_HOME).tolist(), {})))
        runs = [(name, self.objectives[name], MEANING[form_of(model)]) for name, model in self.runs.items()]
        names = [*self.runs, *(one.path.name for one in self.sets)]
        return self._page("home", title=", ".join(names), runs=runs, sets=shown)

    def browse(self, request: Request) -> Response:
        """Return the page of a data set's episodes that match the query `FILTER`, and are on its `page`."""
        number, query = request.path_params["set"], _query(request, FILTER)
        one = self._set(number)
        with self._computing:
            matching = one.matching(**query)
        pages = max(1, -(-len(matching) // ON_A_PAGE))
        asked = request.query_params.get("page", "1")
        page = min(max(1, int(asked) if asked.isdecimal() else 1), pages)
        return self._page(
            "data",
            title=one.path.name,
            query=query,
            splits=[*one.marks, *one.splits],
            sorts=one.sorts,
            flagged=len(one.flags.episodes()),
            export=f"/data/{number}/export",
            counted=one.counted(matching),
            episodes=self._cards(number, matching[(page - 1) * ON_A_PAGE : page * ON_A_PAGE], query),
            page=page,
            pages=pages,
            earlier=page > 1 and _link(f"/data/{number}", query | {"page": page - 1}),
            later=page < pages and _link(f"/data/{number}", query | {"page": page + 1}),
        )

    def episode(self, request: Request) -> Response:
        """Return an episode's page with its curves, by default under its instruction and under its strongest rival."""
        number, at, one = self._episode(request)
        store = one.store
        query, chosen = _query(request, FILTER), _query(request, ("instruction", "against", "camera"))
        (camera,) = camera_names(chosen["camera"] or None, store)
        info = store.episodes[at]
        clip = self._clips.get((number, at, camera), lambda: self._read_episode(store, at, camera))
        with self._computing:
            more = overlay_panels(list(one.overlays.values()), at, clip.seconds, clip.steps)
            matching = one.matching(**query)
        place = matching.index(at) if at in matching else -1
        beside = [(matching[to] if place >= 0 and 0 <= to < len(matching) else None) for to in (place - 1, place + 1)]
        links = [to is not None and _link(f"/data/{number}/episodes/{to}", query) for to in beside]
        return self._clip_page(
            clip,
            chosen["instruction"] or info.instruction,
            chosen["against"],
            one.instructions,
            more,
            about=one.about(at),
            learned=bool(self.runs) and at in one.marks.get(TRAINED_ON, ()),
            trail=[(one.path.name, _link(f"/data/{number}", query))],
            kept=[(name, value) for name, value in query.items() if value],
            flag=(f"/data/{number}/flags/{at}", at in one.flags.episodes()),
            cameras=store.cameras,
            camera=camera,
            earlier=links[0],
            later=links[1],
        )

    def video(self, request: Request) -> Response:
        """Return the page of an uploaded video, with its curves under the query's `instruction` and `against`."""
        clip = self._clips.get(request.path_params["key"], _forgotten)
        words = _query(request, ("instruction", "against"))
        return self._clip_page(
            clip,
            words["instruction"],
            words["against"],
            [],
            [],
            about=f"{clip.length} frames, {clip.seconds[-1]:.1f} s",
            uploaded=True,
        )

    def thumbnail(self, request: Request) -> Response:
        """Return an image from the middle of an episode."""
        from starlette.responses import Response

        _, at, one = self._episode(request)
        with self._computing:
            (frame,) = one.store.frames(at, np.array([one.store.episodes[at].length // 2]))
        image = jpeg(frame, side=THUMBNAIL)
        return Response(image, media_type="image/jpeg", headers=HEADERS | {"Cache-Control": "private, max-age=600"})

    def flag(self, request: Request) -> Response:
        """Flag an episode (PUT) or take its flag away (DELETE); return the number of flagged episodes as text.

        Browsers let pages of other sites send these methods only after a preflight request, which is never granted.
        """
        from starlette.responses import PlainTextResponse

        _, at, one = self._episode(request)
        return PlainTextResponse(str(one.flags.put(at, flagged=request.method == "PUT")), headers=HEADERS)

    def export(self, request: Request) -> Response:
        """Return as text LeRobot's command that leaves the flagged episodes out; for other formats, their numbers."""
        from starlette.responses import PlainTextResponse

        one = self._set(request.path_params["set"])
        flagged = sorted(one.flags.episodes())
        text = edit_command(one.path, flagged, one.store) or " ".join(map(str, flagged))
        return PlainTextResponse(text, headers=HEADERS)

    async def upload(self, request: Request) -> Response:
        """Read a video from the request's body; return the address of its page."""
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import PlainTextResponse

        # Browsers let pages of other sites send this type only after a preflight request, which is never granted.
        kind, name = request.headers.get("content-type"), request.query_params.get("name", "video")[-120:]
        require(kind == "application/octet-stream", "content type", kind, "application/octet-stream", "use the page")
        require(self.runs, name, "no run to score it with", "a run", "name one: counterpoint view RUN")
        key, size = token_hex(8), 0
        path = self.folder / key
        try:
            with path.open("wb") as file:
                async for chunk in request.stream():
                    size += len(chunk)
                    found, expected = f"more than {LARGEST_UPLOAD // 10**6} MB", f"{LARGEST_UPLOAD // 10**6} MB or less"
                    require(size <= LARGEST_UPLOAD, name, found, expected, "cut it: ffmpeg -i IN -t 60 OUT.mp4")
                    file.write(chunk)
            clip = await run_in_threadpool(self._read_video, path, name)
        except BadInputError as error:
            where, found = (text.replace(str(path), name) for text in (error.where, error.found))
            raise BadInputError(where, found, error.expected, error.hint) from error
        finally:
            path.unlink(missing_ok=True)
        self._clips.get(key, lambda: (clip, clip.bytes))
        return PlainTextResponse(f"/videos/{key}", headers=HEADERS)

    def _set(self, number: int) -> BrowsedSet:
        require(number < len(self.sets), f"data set {number}", "none such", f"0 to {len(self.sets) - 1}", "go back")
        return self.sets[number]

    def _episode(self, request: Request) -> tuple[int, int, BrowsedSet]:
        """Return the numbers of the requested data set and episode, and the data set."""
        number, at = request.path_params["set"], request.path_params["episode"]
        one = self._set(number)
        last = len(one.store.episodes) - 1
        require(at <= last, f"episode {at}", "no such episode", f"a number from 0 to {last}", "choose another")
        return number, at, one

    def _cards(self, number: int, episodes: Sequence[int], query: Mapping[str, str]) -> list[dict[str, Any]]:
        one = self._set(number)
        flagged = one.flags.episodes()
        with self._computing:
            return [
                {
                    "link": _link(f"/data/{number}/episodes/{at}", query),
                    "image": f"/data/{number}/images/{at}",
                    "instruction": one.store.episodes[at].instruction,
                    "about": one.about(at),
                    "signs": [
                        (breakable(name), *(signed(value, 2) for value in overlay.signs(at).values()))
                        for name, overlay in one.overlays.items()
                    ],
                    "flag": (f"/data/{number}/flags/{at}", at in flagged),
                }
                for at in episodes
            ]

    def _read_video(self, path: Path, title: str) -> Clip:
        info = in_worker(probe_video, path)
        pixels, hint = info.height * info.width, "make it smaller: ffmpeg -i IN -vf scale=640:-2 OUT.mp4"
        require(pixels <= LARGEST_FRAME, path, f"frames of {info.width} x {info.height}", "8K at most", hint)
        steps, at_once = spread(info.frames, FRAMES), max(1, CHUNK_BYTES // (3 * pixels))
        parts = np.split(steps, range(at_once, len(steps), at_once))
        chunks = ({"": in_worker(read_frames, path, some, timeout=300.0)} for some in parts)
        seconds = in_worker(frame_times, path)[steps]
        with self._computing:  # one at a time: stores and encoders are not thread-safe
            return embed_clip(self.runs, title, info.frames, steps, seconds, chunks)

    def _read_episode(self, store: EpisodeStore, at: int, camera: str) -> tuple[Clip, int]:
        info = store.episodes[at]
        steps = spread(info.length, FRAMES)
        title, seconds, state = info.instruction or f"Episode {at}", store.timestamps(at)[steps], store.state(at)
        own, parts = {} if state is None else {STATE: state}, np.split(steps, range(64, len(steps), 64))
        chunks = ({"": store.frames(at, part, camera), **{k: v[part] for k, v in own.items()}} for part in parts)
        with self._computing:
            clip = embed_clip(self.runs, title, info.length, steps, seconds, chunks)
        return clip, clip.bytes

    def _panels(self, clip: Clip, instruction: str, against: str, others: Sequence[str]) -> list[Panel]:
        """Return each run's charts of reward and progress, for `instruction` and `against` or the strongest rival."""
        texts: list[str] = []
        if self.language:
            texts = check_instructions([instruction, *([against] if against else others)])
            require(instruction != against, "the contrary instruction", "the same", "another", "change a word")
        with self._computing:
            return [panel for name, model in self.runs.items() for panel in panels_of(name, model, clip, texts)]

    def _clip_page(
        self, clip: Clip, instruction: str, against: str, rivals: Sequence[str], more: Sequence[Panel], **values: Any
    ) -> Response:
        """Return the page of a video; an error in the given texts is shown as a message above the video."""
        message, panels = "", list[Panel]()
        others = [text for text in rivals[:RIVALS] if text != instruction]
        try:
            panels = self._panels(clip, instruction, against, others)
        except (BadInputError, MissingExtraError) as error:
            message = str(error)
        seen = f"; every curve has {len(clip.steps)} of them" if len(clip.steps) < clip.length else ""
        blank = {
            "uploaded": False,
            "learned": False,
            "kept": [],
            "flag": (),
            "cameras": (),
            "camera": "",
            "earlier": "",
            "later": "",
        }
        return self._page(
            "clip",
            400 if message else 200,
            **blank | values | {"about": f"{values['about']}{seen}"},
            title=clip.title,
            message=message,
            view=make_player([*panels, *more], clip.seconds, clip.steps, clip.images),
            goal=any(form_of(model) == "goal" for model in self.runs.values()),
            instruction=instruction,
            against=against,
            strongest=bool(others) and not against,
        )

    def _page(self, template: str, status: int = 200, **values: Any) -> Response:
        from starlette.responses import HTMLResponse

        style, script = (Markup((TEMPLATES / "view" / f"view.{kind}").read_text()) for kind in ("css", "js"))
        known = dict.fromkeys(text for one in self.sets for text in one.instructions)
        values = {"trail": [], "language": self.language, "instructions": list(known)} | values
        values |= {"largest": LARGEST_UPLOAD, "view_style": style, "view_script": script}
        return HTMLResponse(
            render(f"view/{template}.html.j2", [TEMPLATES], **values), status, HEADERS | {"Cache-Control": "no-store"}
        )

    def _refuse(self, request: Request, error: Exception) -> Response:
        """Return an error message as a page, or as plain text if a script sent the request."""
        from starlette.responses import PlainTextResponse

        message, status = getattr(error, "detail", None) or str(error), getattr(error, "status_code", 400)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse(message, status, HEADERS)
        return self._page("message", status, title="That did not work", message=message)


def _is_run(target: str) -> bool:
    """Return True if a target is a run: a folder with a model, a model of the Hub, or a name of nothing else."""
    path = Path(target)
    if hub_id(target) is None:
        return (path / "config.json").is_file() or (path / "model").is_dir() or not may_exist(path)
    try:
        saved_kind(target)
    except BadInputError:
        return False
    return True


def _forgotten() -> tuple[Clip, int]:
    raise BadInputError("the video", "none of that name in memory", "one that was dropped here", "drop it again")


def _query(request: Request, names: Sequence[str]) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in names}


def _link(path: str, query: Mapping[str, object]) -> str:
    words = urlencode({name: value for name, value in query.items() if value})
    return f"{path}?{words}" if words else path
