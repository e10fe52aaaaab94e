"""`counterpoint reward VIDEO...`: write the reward of a video or episode per frame as a table, an image and a page.

On request the curve is also written as a video with a moving cursor, and as a recording for the viewer Rerun.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.encoders.calibration import RewardForm
from counterpoint.encoders.hub import is_foreign
from counterpoint.errors import BadInputError, import_extra, require, require_extras
from counterpoint.files import Beside, write_atomically
from counterpoint.formats import open_dataset, read_episode_part
from counterpoint.formats.video import encode_video, read_part
from counterpoint.parameter_types import Computes, File, Image, Model, Name, Text
from counterpoint.progress import ProgressBar
from counterpoint.repositories import hub_id
from counterpoint.rewards.embedding import STATE, embed_frames, embed_text, reads_state
from counterpoint.rewards.instructions import given_instructions, instructions_in_words, never_change, read_goal
from counterpoint.rewards.model import RewardModel, gains
from counterpoint.rewards.page import COLOURS, Line, Panel, beside_chart, jpeg, line_image, make_player, render, signed
from counterpoint.rewards.sources import FunctionReward, open_function
from counterpoint.workers import IN_PROCESS, Foreign, in_worker

Array = NDArray[np.float64]

CHUNK_BYTES = 192 * 2**20
"""Bytes of decoded frames held at once."""
IMAGES = 120
"""Maximum number of images on a page, which take about a megabyte."""
MOST_BYTES = 2 * 2**30
"""Maximum size of the frames of a video for a model of others, which reads the whole video at once."""
CurveForm = RewardForm | Literal["progress", "value"]
"""The meaning of a curve: a form of this library's rewards, or what a model of others returns."""
MEANING: dict[CurveForm, str] = {
    "potential": "cosine of the frame and the instruction",
    "similarity": "cosine of the frame and the instruction",
    "transition": "cosine of the change since the first frame and the instruction",
    "goal": "similarity of the frame and the goal image",
    "language": "progress of the instruction since the first frame, by R3M's language reward",
    "progress": "progress of the instruction",
    "value": "the model's own value",
}


def axis_label(form: CurveForm) -> str:
    """Return the axis label of a plotted curve; plotted values are the output of `gains`."""
    return f"reward: {'gain of the ' if form in ('potential', 'goal') else ''}{MEANING[form]}"


@dataclass(frozen=True)
class RewardCurve:
    """A scored video.

    Attributes:
        video: The video file, or a data set and the episode's name.
        form: The meaning of the values.
        seconds: The presentation time of each frame, from the first.
        labels: The L instructions, or the goal image's name.
        values: The reward, [L, T], one row per label.
        images: JPEGs of some frames, keyed by frame number.
    """

    video: Path
    form: CurveForm
    seconds: Float[Array, " T"]
    labels: tuple[str, ...]
    values: Float[Array, "L T"]
    images: dict[int, bytes]

    @property
    def fps(self) -> float:
        """Frames per second; the mean if the rate varies."""
        return (len(self.seconds) - 1) / float(self.seconds[-1] - self.seconds[0])

    @property
    def axis(self) -> str:
        """The label of the plotted values."""
        return axis_label(self.form)


def reward_command(
    videos: Positional[Annotated[Sequence[Path], arg(metavar="PATH...", help_behavior_hint="(required)")]],
    instruction: Text = None,
    *,
    model: Model,
    out: Path,
    episodes: Annotated[Sequence[int], arg(metavar="INT...")] = (),
    camera: Name = None,
    text_file: File = None,
    against: Annotated[Sequence[str], arg(metavar="TEXT...")] = (),
    goal: Image = None,
    form: RewardForm | None = None,
    also: Annotated[Sequence[Literal["mp4", "rrd"]], arg(metavar="mp4|rrd...")] = (),
    device: Computes = "cpu",
    foreign: Foreign = IN_PROCESS,
    dialect: Name = None,
) -> list[Path]:
    """Plot the reward curve of videos: a CSV, a PNG and a page that shows the frame at a cursor on the curve.

    A video that cannot be read, or never changes, is skipped; the files of the other videos are kept.

    Time on two cores: about 10 s for a video of some hundred frames with the demo's encoder, most of it for loading
    torch. Disk: about a megabyte per video.

    Args:
        videos: Video files, or one data set with --episodes.
        instruction: The task that the videos should show; by default, each episode of a data set is scored under its
            own instruction.
        model: A run's folder, a folder of saved weights, a Hub id or the name of a released model, such as liv; or a
            model of others: the folder of a LeRobot reward model, or module:function.
        out: The folder to write.
        episodes: Numbers of the data set's episodes to plot.
        camera: Camera of the data set; the first camera by default.
        text_file: Text file with one instruction per line, one for each video.
        against: Other instructions, plotted in the same chart.
        goal: Image of the goal, for a reward that compares frames with goals.
        form: The reward to compute; by default the one that the encoder was trained for.
        also: Further files to write: mp4 is a video of the frames beside their curve, with a moving cursor; rrd is a
            recording for the viewer Rerun (extra `rerun`).
        device: The device that computes, such as cuda.
        foreign: How models of others run.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.

    Returns:
        The files NAME.csv, NAME.png and NAME.html of each video, and those of `also`.

    Raises:
        BadInputError: If there is no video, an episode does not exist, an instruction is empty or given twice, or the
            form or model cannot be used. If a video cannot be read, the error is raised after all others are done.
        MissingExtraError: If the extra `report` is not installed, or `rerun`, for the recording.
    """
    require_extras({"rerun": "rerun"} if "rrd" in also else {})
    require(videos, "videos", "none", "one or more files", "name a video")
    require(not out.exists() or out.is_dir(), out, "a file", "a folder", "choose another --out")
    clips = _episodes(videos, episodes, camera, dialect) if episodes else [video_clip(path) for path in videos]
    if goal is not None:
        alone = instruction is None and text_file is None
        require(alone, "--goal", "an instruction beside it", "one of the two", "leave one out")
        labels = [[f"goal {goal}"]] * len(clips)
    else:
        own, names = [clip.instruction for clip in clips], [str(clip.path) for clip in clips]
        labels = [[text, *against] for text in given_instructions(own, names, instruction, text_file)]
    for each in labels:
        require(len(set(each)) == len(each), "--against", "the same instruction twice", "different ones", "drop one")
    image = None if goal is None else read_goal(goal)
    clips[0] = _begun(clips[0])  # decoded while the model is loaded
    rewards: RewardModel | FunctionReward
    if is_foreign(str(model)):
        given = form is None and goal is None
        found = "--form or --goal for a model of others"
        require(given, model, found, "instructions alone", "leave them out: these are forms of this library's models")
        rewards = open_function(str(model), device=device, foreign=foreign)
    else:
        rewards = RewardModel.from_pretrained(model, device=device, form=form)
    for clip in clips if reads_state(rewards.encoder if isinstance(rewards, RewardModel) else rewards) else ():
        hint = "name a data set and some of its --episodes"
        require(clip.state is not None, clip.path, "no state", "the robot's state, which the model reads", hint)
    if image is None and isinstance(rewards, RewardModel):
        rewards.check_form(rewards.form, instructed=True)
        texts = list(dict.fromkeys(text for each in labels for text in each))
        embed_text(rewards.encoder, texts)  # raises if an instruction is too long
        if words := instructions_in_words(rewards.encoder, texts):
            print(words)
    written: list[Path] = []
    failed: list[BadInputError] = []
    with ProgressBar("Rewards", len(clips), "videos") as progress:
        for number, clip in enumerate(clips):
            stem = clip.path.stem
            earlier = sum(other.path.stem == stem for other in clips[:number])
            name = f"{stem}-{earlier + 1}" if earlier else stem
            try:
                curve = score_clip(rewards, clip, labels[number], goal=image)
                page = curve_page(curve, model=str(model), csv_name=f"{name}.csv")
                for ending, content in (
                    ("csv", curve_csv(curve)),
                    ("png", line_image(curve_lines(curve), title=curve.video.name, y_label=curve.axis)),
                    ("html", page),
                ):
                    write_atomically(out / f"{name}.{ending}", content)
                    written.append(out / f"{name}.{ending}")
                for kind in dict.fromkeys(also):
                    write = curve_video if kind == "mp4" else curve_recording
                    write(out / f"{name}.{kind}", curve, clip)
                    written.append(out / f"{name}.{kind}")
            except BadInputError as error:
                failed.append(error)
            progress.advance()
    where, found = ("; ".join(getattr(error, part) for error in failed) for part in ("where", "found"))
    hint = f"replace or leave out {len(failed)} of {len(clips)}; the others are done, in {out}"
    require(not failed, where, found, "videos that can be read", hint)
    return written


@dataclass(frozen=True)
class Clip:
    """A video file or an episode of a data set, not opened yet.

    Attributes:
        path: The video file; for an episode, the data set's path and `episode-NUMBER`.
        instruction: The episode's own instruction.
        read: Function of a step and a maximum number of bytes. It returns the frames from that step on that fit, uint8
            [n, H, W, 3], their times in seconds [n], and the total number of frames.
        state: The robot's state [T, S]; a video file has none.
    """

    path: Path
    instruction: str
    read: Callable[[int, int], tuple[NDArray[np.uint8], Array, int]]
    state: NDArray[np.float32] | None = None


def video_clip(path: Path) -> Clip:
    """Return a video file as a clip."""
    hint = "name some of its episodes: --episodes 0 1 2"
    found = "a folder" if path.is_dir() else "a data set of the Hub"
    good = path.is_file() or not (path.is_dir() or hub_id(path))
    require(good, path, found, "a video file, or a data set and episodes", hint)

    def read(start: int, limit: int) -> tuple[NDArray[np.uint8], Array, int]:
        require(path.is_file(), path, "no such file", "a video", "check the path")
        return in_worker(read_part, path, start, limit, timeout=300.0)

    return Clip(path, "", read)


def _begun(clip: Clip) -> Clip:
    """Return the clip; another thread starts to read its first chunk at once."""
    thread = ThreadPoolExecutor(1)
    first = [thread.submit(clip.read, 0, CHUNK_BYTES)]
    thread.shutdown(wait=False)

    def read(start: int, limit: int) -> tuple[NDArray[np.uint8], Array, int]:
        return first.pop().result() if first and (start, limit) == (0, CHUNK_BYTES) else clip.read(start, limit)

    return replace(clip, read=read)


def _episodes(paths: Sequence[Path], numbers: Sequence[int], camera: str | None, dialect: str | None) -> list[Clip]:
    found = f"{len(paths)} paths"
    require(len(paths) == 1, "--episodes", found, "one data set", "leave --episodes out for video files")
    store = open_dataset(paths[0], camera=camera, dialect=dialect)
    camera_names(None, store)  # data without images are refused
    count = len(store.episodes)
    for number in numbers:
        where, hint = f"--episodes of {paths[0]}", "counterpoint data info lists what it holds"
        require(0 <= number < count, where, number, f"numbers from 0 to {count - 1}", hint)
    return [_episode(paths[0], store, number, camera, dialect) for number in numbers]


def _episode(data: Path, store: EpisodeStore, number: int, camera: str | None, dialect: str | None) -> Clip:
    def read(start: int, limit: int) -> tuple[NDArray[np.uint8], Array, int]:
        return in_worker(read_episode_part, data, number, camera, start, limit, dialect, timeout=300.0)

    return Clip(data / f"episode-{number:06d}", store.episodes[number].instruction, read, store.state(number))


def score_clip(
    rewards: RewardModel | FunctionReward, clip: Clip, labels: Sequence[str], *, goal: NDArray[np.uint8] | None = None
) -> RewardCurve:
    """Score every frame of a clip in chunks, which are decoded in a separate process because decoders may crash.

    Args:
        rewards: The reward; a model of others reads all chunks together.
        clip: The video or episode.
        labels: L instructions, or the name of the goal.
        goal: The goal image [H, W, 3], if it replaces the instructions.

    Raises:
        BadInputError: If the clip cannot be read, all its frames are the same, or it is too large for a model of
            others.
    """
    watched, form = _Watched(clip), form_of(rewards, goal=goal is not None)
    if isinstance(rewards, RewardModel):
        encoder = rewards.encoder
        targets = embed_text(encoder, labels) if goal is None else embed_frames(encoder, goal[None])
        parts = [embed_frames(encoder, seen, rewards.batch_size) for seen, _ in watched]
        values = rewards.score(rewards.form if goal is None else "goal", np.concatenate(parts), targets)
    else:
        frames = []
        for seen, total in watched:
            size = total * seen[""][0].nbytes
            most = f"{MOST_BYTES / 1e9:.1f} GB, which a model of others reads at once"
            hint = "make it shorter or its images smaller"
            require(size <= MOST_BYTES, clip.path, f"{size / 1e9:.1f} GB of frames, more than {most}", "less", hint)
            frames.append(seen[""])
        whole = {"": np.concatenate(frames)} | ({} if clip.state is None else {STATE: clip.state})
        values = np.stack([rewards.predict(whole, text).progress for text in labels])
    hint = "leave it out: nothing happens in it"
    require(not watched.still, clip.path, f"{len(values[0])} frames that are all alike", "a video that changes", hint)
    return RewardCurve(clip.path, form, np.concatenate(watched.seconds), tuple(labels), values, watched.images)


def form_of(rewards: RewardModel | FunctionReward, *, goal: bool = False) -> CurveForm:
    """Return the meaning of a reward's curves, under instructions or a goal."""
    if isinstance(rewards, RewardModel):
        return "goal" if goal else rewards.form
    return "progress" if rewards.progress else "value"


class _Watched:
    """Reads a clip chunk by chunk; an iteration yields a chunk's frames, with the state, and the number of all frames.

    Attributes:
        seconds: The times of each chunk's frames.
        images: JPEGs of some frames, by frame number.
        still: True if all frames so far are alike.
    """

    def __init__(self, clip: Clip) -> None:
        self.clip, self.still = clip, True
        self.seconds: list[Array] = []
        self.images: dict[int, bytes] = {}

    def __iter__(self) -> Iterator[tuple[dict[str, NDArray[Any]], int]]:
        state, first, start, total = self.clip.state, None, 0, 1
        while start < total:
            frames, times, total = self.clip.read(start, CHUNK_BYTES)
            self.seconds.append(times)
            first = frames[0].copy() if first is None else first
            self.still = self.still and never_change(frames, first)
            yield {"": frames} | ({} if state is None else {STATE: state[start : start + len(frames)]}), total
            wanted = np.linspace(0, total - 1, min(IMAGES, total)).round().astype(int) - start
            self.images |= {int(n) + start: jpeg(frames[n]) for n in wanted[(wanted >= 0) & (wanted < len(frames))]}
            start += len(frames)


def curve_csv(curve: RewardCurve) -> str:
    """Return one row per frame: `frame`, `seconds`, and one column per label."""
    buffer = io.StringIO(newline="")
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(["frame", "seconds", *curve.labels])
    rows = np.vstack([curve.seconds, curve.values]).T
    table.writerows([frame, *(f"{value:.6f}" for value in row)] for frame, row in enumerate(rows))
    return buffer.getvalue()


def curve_lines(curve: RewardCurve) -> list[Line]:
    """Return one line per label, the first label's on top; labels beyond the last colour are grey and unnamed."""
    kinds = [f"c{row}" if row < len(COLOURS) else "rest" for row in range(len(curve.labels))]
    each = zip(gains(curve.values, curve.form), kinds, curve.labels, strict=True)
    seconds = curve.seconds.tolist()
    lines = [
        Line(seconds, one.tolist(), kind, "" if kind == "rest" else text, kind != "rest") for one, kind, text in each
    ]
    return lines[::-1]


def curve_page(curve: RewardCurve, *, model: str, csv_name: str) -> str:
    """Return one HTML file with the curve and the video's frame at a cursor on the curve.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    lines, seconds = curve_lines(curve), curve.seconds.tolist()
    summary = f"Reward of {curve.video.name} over time: {', '.join(curve.labels)}"
    view = make_player([Panel(lines, curve.axis, summary)], seconds, range(len(seconds)), curve.images)
    columns = (curve.values[:, 0], curve.values[:, -1], curve.values[:, -1] - curve.values[:, 0])
    return render(
        "curve.html.j2",
        title=curve.video.name,
        labels=curve.labels,
        meaning=MEANING[curve.form],
        axis=curve.axis,
        view=view,
        rows=[
            (text, line.kind, *map(signed, row))
            for text, line, *row in zip(curve.labels, lines[::-1], *columns, strict=True)
        ],
        fps=f"{curve.fps:g}",
        model=model,
        csv=csv_name,
    )


def curve_video(path: Path, curve: RewardCurve, clip: Clip) -> None:
    """Write an MP4 of a clip's frames beside its curve with a moving cursor, at the clip's mean frame rate.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    beside = beside_chart(curve_lines(curve), title=curve.video.name, y_label=curve.axis)
    images = (beside(frame, number) for number, frame in enumerate(_frames(clip)))
    encode_video(path, images, curve.fps, gop=max(2, round(2 * curve.fps)))


def curve_recording(path: Path, curve: RewardCurve, clip: Clip) -> None:
    """Write a recording for Rerun: the frames as `video`, and each label's reward as `reward/LABEL`.

    Raises:
        MissingExtraError: If rerun-sdk is not installed.
    """
    rr = import_extra("rerun", "rerun")
    with Beside(path) as folder:
        made = Path(folder) / path.name
        rr.init(f"counterpoint/{curve.video.name}", spawn=False)
        rr.save(made)
        for number, frame in enumerate(_frames(clip)):
            rr.set_time("frame_index", sequence=number)
            rr.set_time("seconds", duration=float(curve.seconds[number]))
            rr.log("video", rr.Image(frame).compress())
            for text, values in zip(curve.labels, curve.values, strict=True):
                rr.log(["reward", text], rr.Scalars(float(values[number])))
        rr.disconnect()  # writes what is buffered, and closes the file
        made.replace(path)


def _frames(clip: Clip) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames of a clip, decoded again, because all frames together may not fit into memory."""
    start, total = 0, 1
    while start < total:
        frames, _, total = clip.read(start, CHUNK_BYTES)
        yield from frames
        start += len(frames)
