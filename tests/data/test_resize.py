from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.data.cache import cached, prepared
from counterpoint.data.draws import StartGoal
from counterpoint.data.episode import Array
from counterpoint.data.resize import Fit, ResizedStore, as_rgb
from counterpoint.data.spec import Spec
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from tests.data.sampling import sampler
from tests.formats.made import memory_store, write_epic, write_lerobot, write_videos


@pytest.mark.parametrize("fit", ["square", "shorter"])
@pytest.mark.parametrize("write", [write_epic, write_videos, write_lerobot])
def test_pixels_are_those_of_a_training_store(write: Any, fit: Fit, tmp_path: Path) -> None:
    source = open_dataset(write(tmp_path / "data"))
    whole = cached(source, size=20, fit=fit, root=tmp_path / "cache", progress=False)
    store = ResizedStore(source, 20, fit)
    assert store.cameras == whole.cameras
    assert store.episodes == whole.episodes
    for episode, info in enumerate(source.episodes):
        steps = np.array([info.length - 1, 0, 2, 0])
        for camera in (None, *source.cameras):
            np.testing.assert_array_equal(
                store.frames(episode, steps, camera), whole.frames(episode, steps, camera), strict=True
            )
        np.testing.assert_array_equal(store.timestamps(episode), whole.timestamps(episode))
    batches = [sampler(one, Spec.clips(StartGoal())) for one in (store, whole)]
    for step in range(3):
        one, other = (served[step] for served in batches)
        assert one["frames"].equal(other["frames"])
        assert one["clip.indices"].equal(other["clip.indices"])


class CountingStore(MemoryStore):
    """Counts the frames that are read."""

    count = 0

    def frames(self, episode: int, indices: Array, camera: str | None = None) -> Array:
        self.count += len(indices)
        return super().frames(episode, indices, camera)


def test_exactly_the_frames_of_a_batch_are_read(tmp_path: Path) -> None:
    source = CountingStore(memory_store(lengths=(50,) * 6)._episodes)
    served = sampler(ResizedStore(source, 16), Spec.clips(StartGoal()))
    source.count = 0
    served[0]
    assert source.count == 8 * 2


def test_the_recipes_key_chooses_and_nothing_is_written(tmp_path: Path) -> None:
    source = memory_store()
    store = prepared(source, decode="always", size=16, root=tmp_path / "cache", cameras=["wrist"])
    assert isinstance(store, ResizedStore)
    assert store.cameras == ("wrist",)
    assert not (tmp_path / "cache").exists()
    expected = prepared(source, decode="once", size=16, root=tmp_path / "cache", cameras=["wrist"])
    np.testing.assert_array_equal(store.frames(1, np.arange(7)), expected.frames(1, np.arange(7)))


def test_content_decides_the_fingerprint() -> None:
    source = memory_store()
    stores = [ResizedStore(source, 16), ResizedStore(source, 8), ResizedStore(source, 16, "shorter")]
    stores += [ResizedStore(memory_store(seed=1), 16), ResizedStore(source, 16, cameras=["wrist"])]
    assert len({store.fingerprint for store in stores}) == len(stores)
    assert ResizedStore(memory_store(), 16).fingerprint == stores[0].fingerprint


def test_a_camera_that_is_not_kept_is_refused() -> None:
    with pytest.raises(BadInputError, match="'side'"):
        ResizedStore(memory_store(), 16, cameras=["side"])
    with pytest.raises(BadInputError, match="'top'"):
        ResizedStore(memory_store(), 16, cameras=["wrist"]).frames(0, np.array([0]), "top")


def test_frames_of_several_sizes_are_refused_in_one_batch() -> None:
    wide, high = memory_store(size=(8, 16))._episodes[0], memory_store(size=(16, 8))._episodes[1]
    with pytest.raises(BadInputError, match="episode 1"):
        ResizedStore(MemoryStore([wide, high]), 8, "shorter").gather("frames", np.arange(2), np.zeros(2, np.int64))


def test_channels_of_any_form_become_three() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    grey, alpha = rgb[..., :1], np.concatenate([rgb, rgb[..., :1]], axis=-1)
    for images in (rgb, alpha, np.moveaxis(rgb, -1, 1), np.moveaxis(alpha, -1, 1)):
        np.testing.assert_array_equal(as_rgb("here", images), rgb)
    for images in (grey, grey[..., 0], np.moveaxis(grey, -1, 1)):
        np.testing.assert_array_equal(as_rgb("here", images), np.repeat(grey, 3, axis=-1))
    np.testing.assert_array_equal(as_rgb("here", np.moveaxis(rgb[0], -1, 0) / 255, 0), rgb[0] / 255)


@pytest.mark.parametrize(("shape", "dtype"), [((2, 4, 4), np.uint16), ((2, 12, 9, 9), np.uint8), ((2, 4), np.float32)])
def test_what_is_no_colour_image_is_refused(shape: tuple[int, ...], dtype: Any) -> None:
    images = np.zeros(shape, dtype)
    with pytest.raises(BadInputError, match=r"here: found images .*depth \(16 bits\), or stacks of frames"):
        as_rgb("here", images)
