"""Draw the paths of videos through an encoder's embedding space, in two dimensions.

`principal_plane` is the picture of every report: the plane of two principal components. It is linear, so distances in
it are distances between embeddings, seen from one side. `flatten` is AcTOL's Figure 5 (arXiv 2502.01218, Section 5.5),
which uses t-SNE (van der Maaten and Hinton, 2008): neighbours stay neighbours, but distances between points that are
far apart, the size of groups and the gaps between them mean little. Both scale embeddings to unit length, as in the
cosine, and draw the same instructions in the same colours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from markupsafe import Markup
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import import_extra, require
from counterpoint.evaluation.embedded import EmbeddedVideos, Indices, spread
from counterpoint.rewards.page import Line, line_chart, padded

Array = NDArray[np.float64]

TASKS, ASPECT = 5, 1.6
"""Maximum number of instructions of a plot, which have one colour each; width of a plot over its height."""
VIDEOS_A_TASK = 6
"""Maximum number of videos of an instruction in the principal plane."""
FLAT_VIDEOS_A_TASK, MOST_FRAMES = 10, 1500
"""Maximum number of videos of an instruction in the t-SNE, as in AcTOL's Figure 5, and of frames of all its videos."""
PERPLEXITY, LEAST_PERPLEXITY = 30.0, 5.0
"""Perplexity of the t-SNE, about the number of neighbours that a frame keeps, and its least value. They lie in the
range of 5 to 50 that van der Maaten and Hinton advise; AcTOL's paper does not state its perplexity."""
FEWEST_FRAMES = int(3 * LEAST_PERPLEXITY) + 1
"""Number of frames with which the perplexity is `LEAST_PERPLEXITY`; fewer frames are refused."""

Legend = dict[str, str]
"""The colour (CSS class) of each instruction."""


@dataclass(frozen=True)
class FlatVideos:
    """A t-SNE of the frames of V videos.

    Attributes:
        videos: Index of each drawn video among the embedded videos.
        instructions: The instruction of each drawn video.
        steps: For each video, the episode's step of each point, [T].
        points: For each video, the two t-SNE coordinates of each frame, [T, 2]; they have no unit.
        perplexity: The perplexity.
        seed: Random seed of the t-SNE.
    """

    videos: tuple[int, ...]
    instructions: tuple[str, ...]
    steps: tuple[Int[Indices, " T"], ...]
    points: tuple[Float[Array, "T 2"], ...]
    perplexity: float
    seed: int

    @property
    def frames(self) -> int:
        """Return the number of points."""
        return sum(map(len, self.points))

    def as_json(self) -> dict[str, Any]:
        """Return what one needs to plot the picture again, with five digits of each coordinate."""
        rows = zip(self.videos, self.instructions, self.steps, self.points, strict=True)
        return {
            "method": "t-SNE of embeddings at unit length, initialised with PCA",
            "perplexity": self.perplexity,
            "seed": self.seed,
            "videos": [
                {
                    "video": video,
                    "instruction": text,
                    "steps": steps.tolist(),
                    "x": [float(f"{x:.5g}") for x in points[:, 0]],
                    "y": [float(f"{y:.5g}") for y in points[:, 1]],
                }
                for video, text, steps, points in rows
            ],
        }


def require_frames(store: EpisodeStore, max_frames: int) -> None:
    """Raise a `BadInputError` if a t-SNE of a store's episodes has too few frames; nothing is decoded or embedded.

    Args:
        store: The episodes; each has an instruction.
        max_frames: Maximum number of embedded frames of an episode.
    """
    texts = [info.instruction for info in store.episodes]
    own = np.array([texts.index(text) for text in texts], np.int64)
    chosen = _chosen(own, [min(info.length, max_frames) for info in store.episodes])
    frames = sum(map(len, chosen.values()))
    found = f"{frames} frame(s) of {len(chosen)} video(s) to draw"
    hint = "report on more or longer videos, raise --max-videos or --max-frames, or leave out --embedding"
    require(frames >= FEWEST_FRAMES, "--embedding", found, f"{FEWEST_FRAMES} or more for a t-SNE", hint)


def flatten(embedded: EmbeddedVideos, *, seed: int = 0) -> FlatVideos:
    """Compute a t-SNE of the frames of videos.

    Drawn are the `TASKS` instructions with the most videos and the first `FLAT_VIDEOS_A_TASK` videos of each. If they
    have more than `MOST_FRAMES` frames, each video gives at most its equal share of these, evenly spread, with its
    first and last frame. The perplexity is `PERPLEXITY`, but at most a third of the number of other frames. The same
    embeddings and seed give the same points on the same machine.

    Time on two cores: some ten seconds for `MOST_FRAMES` frames.

    Args:
        embedded: The videos; the embeddings of several cameras are concatenated.
        seed: Random seed of the t-SNE.

    Raises:
        BadInputError: If there are fewer than `FEWEST_FRAMES` frames.
        MissingExtraError: If scikit-learn is not installed.
    """
    manifold, threads = import_extra("sklearn.manifold", "report"), import_extra("threadpoolctl", "report")
    units = _unit(embedded.side_by_side())
    chosen = _chosen(embedded.own, [len(video) for video in units])
    cloud = np.concatenate([units[at][rows] for at, rows in chosen.items()])
    found = f"{len(cloud)} frame(s)"
    require(len(cloud) >= FEWEST_FRAMES, "t-SNE", found, f"{FEWEST_FRAMES} or more", "embed more frames")
    perplexity = min(PERPLEXITY, (len(cloud) - 1) / 3)
    # PCA needs two dimensions, and frames that differ: a collapsed encoder has none.
    start = "pca" if cloud.shape[1] > 1 and np.ptp(cloud, axis=0).any() else "random"
    model = manifold.TSNE(perplexity=perplexity, init=start, random_state=seed % 2**32, n_jobs=1)
    with threads.threadpool_limits(1):  # threads add up in any order, and rounding would change the picture
        flat = np.asarray(model.fit_transform(cloud), np.float64)
    points = np.split(flat, np.cumsum([len(rows) for rows in chosen.values()])[:-1])
    return FlatVideos(
        videos=tuple(chosen),
        instructions=tuple(embedded.instructions[embedded.own[at]] for at in chosen),
        steps=tuple(embedded.steps[at][rows] for at, rows in chosen.items()),
        points=tuple(points),
        perplexity=perplexity,
        seed=seed,
    )


def draw_flat(flat: FlatVideos) -> tuple[Markup, Legend]:
    """Return a t-SNE as a plot, with one line per video from a ring (start) to a dot (end), and its legend."""
    return _plot(
        [(text, points) for text, points in zip(flat.instructions, flat.points, strict=True)],
        x_label="first coordinate of the t-SNE (no unit)",
        y_label="second coordinate of the t-SNE (no unit)",
        summary="t-SNE of held-out videos: lines from first to last frame, coloured by instruction",
    )


def principal_plane(embedded: EmbeddedVideos) -> tuple[Markup, Legend]:
    """Return a plot of videos as lines in the plane of two principal components, and its legend.

    The plot follows AcTOL's Figure 5, with PCA instead of t-SNE: PCA is linear, has no seed, and cannot invent clusters
    or cut a path in two.
    """
    units = _unit(embedded.side_by_side())
    cloud = np.concatenate(units)
    centre = cloud.mean(axis=0)
    _, widths, axes = np.linalg.svd(cloud - centre, full_matrices=False)
    plane, share = np.zeros((2, cloud.shape[1])), np.zeros(2)
    plane[: len(axes)] = axes[:2]
    share[: len(widths)] = widths[:2] ** 2 / max(float((widths**2).sum()), 1e-12)
    return _plot(
        [
            (embedded.instructions[embedded.own[at]], (units[at] - centre) @ plane.T)
            for at in _drawn(embedded.own, VIDEOS_A_TASK)
        ],
        x_label=f"first principal direction ({share[0]:.0%} of the variance)",
        y_label=f"second principal direction ({share[1]:.0%} of the variance)",
        summary="Held-out videos as lines through the embedding space, coloured by instruction",
    )


def _unit(joint: EmbeddedVideos) -> list[Float[Array, "T D"]]:
    return [video / np.maximum(np.linalg.norm(video, axis=1, keepdims=True), 1e-12) for video in joint.videos]


def _drawn(own: Int[Indices, " V"], each: int) -> list[int]:
    """Return the videos to draw, instruction by instruction in order of appearance.

    They are the first `each` videos of the `TASKS` instructions with the most videos; of instructions with equally many
    videos, the first.
    """
    most = {task for task, _ in Counter(own.tolist()).most_common(TASKS)}
    tasks = [task for task in dict.fromkeys(own.tolist()) if task in most]
    return [int(at) for task in tasks for at in np.flatnonzero(own == task)[:each]]


def _chosen(own: Int[Indices, " V"], lengths: Sequence[int]) -> dict[int, Int[Indices, " T"]]:
    """Return the rows of each video that a t-SNE shows, keyed by video."""
    videos = _drawn(own, FLAT_VIDEOS_A_TASK)
    fits = sum(lengths[at] for at in videos) <= MOST_FRAMES
    return {at: spread(lengths[at], lengths[at] if fits else MOST_FRAMES // len(videos)) for at in videos}


def _plot(
    paths: Sequence[tuple[str, Float[Array, "T 2"]]], *, x_label: str, y_label: str, summary: str
) -> tuple[Markup, Legend]:
    """Return (instruction, points) as lines, and the legend.

    Both axes have the same scale. The plot is `ASPECT` times as wide as high.
    """
    legend = {text: f"c{at}" for at, text in enumerate(dict.fromkeys(text for text, _ in paths))}
    lines, named = [], set[str]()
    for text, points in paths:
        lines.append(Line(points[:, 0].tolist(), points[:, 1].tolist(), legend[text], "" if text in named else text))
        named.add(text)
    axes_values = ([line.x for line in lines], [line.y for line in lines])
    edges = [padded(min(map(min, values)), max(map(max, values))) for values in axes_values]
    span = max(edges[0][1] - edges[0][0], ASPECT * (edges[1][1] - edges[1][0]))
    x_range, y_range = (
        ((low + high - wide) / 2, (low + high + wide) / 2)
        for (low, high), wide in zip(edges, (span, span / ASPECT), strict=True)
    )
    chart = line_chart(
        lines,
        x_label=x_label,
        y_label=y_label,
        summary=summary,
        x_range=x_range,
        y_range=y_range,
        dots=True,
        rings=True,
    )
    return chart.html, legend
