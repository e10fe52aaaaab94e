from __future__ import annotations

import json
import re

import numpy as np
import pytest

from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.embedded import EmbeddedVideos
from counterpoint.evaluation.trajectories import (
    FEWEST_FRAMES,
    FLAT_VIDEOS_A_TASK,
    LEAST_PERPLEXITY,
    MOST_FRAMES,
    PERPLEXITY,
    TASKS,
    draw_flat,
    flatten,
    principal_plane,
    require_frames,
)


def videos(tasks: int = 3, each: int = 4, length: int = 12, *, cameras: int = 0, width: int = 8) -> EmbeddedVideos:
    """Per task, slow random walks around the task's own axis."""
    rng, own, found = np.random.default_rng(0), np.repeat(np.arange(tasks), each), []
    shape = (length, cameras, width) if cameras else (length, width)
    for task in own:
        walk = np.cumsum(rng.normal(0, 0.02, shape), axis=0)
        walk[..., task % width] += 1.0
        found.append(walk)
    steps = tuple(3 * np.arange(length) for _ in own)
    texts = tuple(f"task {task}" for task in range(tasks))
    return EmbeddedVideos(tuple(found), steps, own.astype(np.int64), texts, np.eye(tasks, width), "")


def test_clusters_stay_apart_and_paths_whole() -> None:
    flat = flatten(videos())
    cloud, own = np.concatenate(flat.points), np.repeat(np.arange(3), 4 * 12)
    between = np.linalg.norm(cloud[:, None] - cloud[None], axis=-1)
    np.fill_diagonal(between, np.inf)
    assert (own[between.argmin(axis=1)] == own).all()
    steps = np.concatenate([np.linalg.norm(np.diff(points, axis=0), axis=1) for points in flat.points])
    assert np.median(steps) < 0.1 * np.median(between[np.isfinite(between)])


def test_a_picture_is_a_function_of_the_seed() -> None:
    embedded = videos(each=2)
    assert flatten(embedded, seed=5).as_json() == flatten(embedded, seed=5).as_json()
    assert flatten(embedded, seed=5).as_json() != flatten(embedded, seed=6).as_json()
    assert flatten(embedded, seed=-1).seed == -1


def test_every_frame_of_a_few_videos_is_drawn() -> None:
    flat = flatten(videos(tasks=2, each=2, length=6, cameras=2))
    assert flat.videos == (0, 1, 2, 3)
    assert flat.instructions == ("task 0", "task 0", "task 1", "task 1")
    assert all(steps.tolist() == [0, 3, 6, 9, 12, 15] for steps in flat.steps)
    assert flat.frames == 24
    assert flat.perplexity == pytest.approx(23 / 3)
    (first, *_), again = flat.as_json()["videos"], json.dumps(flat.as_json(), allow_nan=False)
    np.testing.assert_allclose(np.stack([first["x"], first["y"]], axis=1), flat.points[0], rtol=1e-4)
    assert json.loads(again) == flat.as_json()


def test_many_videos_are_drawn_in_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoint.evaluation.trajectories.MOST_FRAMES", 200)
    embedded = videos(tasks=TASKS + 2, each=FLAT_VIDEOS_A_TASK + 1, length=9)
    fewer = embedded.own != 1  # an instruction with one video less than the others
    fewer[np.flatnonzero(embedded.own == 1)[0]] = True
    kept = np.flatnonzero(fewer)
    flat = flatten(
        EmbeddedVideos(
            tuple(embedded.videos[at] for at in kept),
            tuple(embedded.steps[at] for at in kept),
            embedded.own[kept],
            embedded.instructions,
            embedded.text,
            "",
        )
    )
    assert list(dict.fromkeys(flat.instructions)) == ["task 0", "task 2", "task 3", "task 4", "task 5"]
    assert len(flat.videos) == TASKS * FLAT_VIDEOS_A_TASK
    assert flat.frames == 200
    assert all(steps[0] == 0 and steps[-1] == 24 and len(steps) == 4 for steps in flat.steps)
    assert flat.perplexity == PERPLEXITY


def test_the_share_of_a_video_is_a_line() -> None:
    assert MOST_FRAMES // (TASKS * FLAT_VIDEOS_A_TASK) >= 20


def test_too_few_frames_are_refused_unseen() -> None:
    class Unseen(MemoryStore):
        def frames(self, *_: object) -> None:  # type: ignore[override]
            raise AssertionError("a frame was read")

    def store(length: int) -> MemoryStore:
        clip = np.zeros((length, 8, 8, 3), np.uint8)
        return Unseen([Episode({"front": clip}, text, np.arange(length) / 10) for text in ("open", "close")])

    require_frames(store(FEWEST_FRAMES // 2), 128)
    for length, most in ((FEWEST_FRAMES // 2 - 1, 128), (50, 7)):
        with pytest.raises(BadInputError, match=r"--embedding: found 14 frame.*2 video.*expected 16 or more"):
            require_frames(store(length), most)
    with pytest.raises(BadInputError, match="t-SNE"):
        flatten(videos(tasks=1, each=1, length=FEWEST_FRAMES - 1))
    assert flatten(videos(tasks=1, each=1, length=FEWEST_FRAMES)).perplexity == LEAST_PERPLEXITY


@pytest.mark.parametrize("width", [1, 2])
def test_a_collapsed_encoder_has_a_picture(width: int) -> None:
    embedded = videos(tasks=1, each=3, width=width)
    flat = flatten(EmbeddedVideos(*(tuple(map(np.ones_like, embedded.videos)), *list(vars(embedded).values())[1:])))
    assert np.isfinite(np.concatenate(flat.points)).all()
    assert "nan" not in draw_flat(flat)[0]


def test_both_pictures_have_the_same_colours_and_mark_both_ends() -> None:
    embedded = videos(each=2)
    drawn, flat = principal_plane(embedded), draw_flat(flatten(embedded))
    assert drawn[1] == flat[1] == {"task 0": "c0", "task 1": "c1", "task 2": "c2"}
    for html, _ in (drawn, flat):
        assert html.count('class="line c') == 6
        assert html.count('class="hole"') == 6
        assert len(re.findall(r'class="point c\d"', html)) == 12
