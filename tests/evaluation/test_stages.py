from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from counterpoint.data.episode import Episode
from counterpoint.data.segments import SegmentStore
from counterpoint.data.store import MemoryStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.evaluation.comparison import compare
from counterpoint.evaluation.stages import AROUND, FRAMES, stage_accuracy
from counterpoint.rewards.model import RewardModel, cosine
from counterpoint.rewards.sources import EncoderReward, FunctionReward, Reward, ramp
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, episode

Frames = NDArray[np.uint8]


def joined(texts: Sequence[str], lengths: Sequence[int], seed: int) -> Episode:
    """An episode of several stages, in which each stage begins with the balls in the middle again."""
    pairs = zip(texts, lengths, strict=True)
    parts = [episode(text or INSTRUCTIONS[0], length, seed + at) for at, (text, length) in enumerate(pairs)]
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    frames = np.concatenate([part.frames["front"] for part in parts])
    whole = Episode({"front": frames}, ", then ".join(filter(None, texts)), np.arange(len(frames)) / 10)
    return replace(whole, segments=tuple(zip(starts, texts, strict=True)))


def staged(*, unnamed: bool = False) -> MemoryStore:
    right, left = INSTRUCTIONS[:2]
    return MemoryStore(
        [
            joined((right, left), (20, 20), 0),
            joined((right, left), (10, 30), 10),
            joined(("", right, left) if unnamed else (left, right, left), (10, 20, 10), 20),
            replace(episode(INSTRUCTIONS[2], 20, 30), segments=()),
        ]
    )


def ours() -> EncoderReward:
    return EncoderReward(RewardModel(SeeingEncoder()), "ours")


def said(function: Any, **attributes: Any) -> FunctionReward:
    for name, value in attributes.items():
        setattr(function, name, value)
    return FunctionReward(function, "theirs")


def numbered(frames: Frames, text: str) -> dict[str, Any]:
    """Stages 0 and 1, the second from the middle on."""
    steps = np.arange(len(frames))
    return {"progress": steps / len(frames), "stage": (2 * steps >= len(frames)).astype(int)}


def test_a_model_says_the_stage_by_its_number() -> None:
    named = said(lambda *given: numbered(*given), stages=(INSTRUCTIONS[1], INSTRUCTIONS[0]))
    found = stage_accuracy([said(numbered), named], staged())
    assert found[0, :3].tolist() == [1.0, 0.75, pytest.approx(0.5)]  # left 10, then right 20, then left 10 of 40
    assert found[1].tolist()[:2] == [0.0, 0.25]  # its first stage is the second here
    assert np.isnan(found[:, 3]).all()  # an episode of one stage


def test_progress_without_stages_is_read_by_their_mean_shares() -> None:
    """Stages `right` and `left` take 1/2 and 1/2 of one episode, 1/4 and 3/4 of the other: the second begins at 3/8."""
    store = MemoryStore([joined(INSTRUCTIONS[:2], lengths, 0) for lengths in ((20, 20), (10, 30))])
    times = np.linspace(0, 1, 40)
    expected = [np.mean((times >= 3 / 8) == (np.arange(40) >= change)) for change in (20, 10)]
    assert stage_accuracy([said(ramp, progress=True)], store)[0].tolist() == expected
    assert np.isnan(stage_accuracy([said(lambda f, t: np.arange(len(f)))], store)).all()  # neither progress nor stage


def test_an_encoder_names_the_instruction_that_the_frames_around_follow() -> None:
    """Compared with plain loops over frames and instructions."""
    store, reward = staged(), ours()
    found = stage_accuracy([reward], store)[0]
    assert found[:3].min() > 0.7
    one, texts = store.frames(1, np.arange(40)), list(INSTRUCTIONS[:2])
    encoder, half, right = SeeingEncoder(), round(AROUND * 39 / 2), 0
    z, psi = encoder.encode_image(torch.from_numpy(one)).numpy(), encoder.encode_text(texts).numpy()
    for t in range(40):
        first, last = max(0, t - half), min(39, t + half)
        moved = cosine(z[last : last + 1], psi)[0] - cosine(z[first : first + 1], psi)[0]
        right += moved[int(t >= 10)] > moved[int(t < 10)]
    assert found[1] == right / 40


def test_segments_are_measured_in_their_whole_episodes() -> None:
    store = staged()
    rewards: list[Reward] = [ours(), said(numbered)]
    whole, parts = stage_accuracy(rewards, store), SegmentStore(store)
    found = stage_accuracy(rewards, parts)
    assert found.shape == (2, 8)
    for number in range(3):
        own = np.flatnonzero(parts.owner == number)
        mean = (found[:, own] * parts.lengths[own]).sum(axis=1) / parts.lengths[own].sum()
        np.testing.assert_allclose(mean, whole[:, number])
    np.testing.assert_array_equal(stage_accuracy(rewards, SubsetStore(parts, [3, 1])), found[:, [3, 1]])


def test_frames_without_an_instruction_do_not_count() -> None:
    first = said(lambda f, t: {"progress": np.zeros(len(f)), "stage": np.zeros(len(f))})
    found = stage_accuracy([first], staged(unnamed=True))
    assert found[0, 2] == 2 / 3  # stage 0 is the first with an instruction, 20 of the 30 frames


def test_long_episodes_are_measured_at_some_frames_and_failures_give_no_number() -> None:
    seen = []

    def slow(frames: Frames, text: str) -> dict[str, Any]:
        seen.append((len(frames), text))
        return numbered(frames, text)

    long = MemoryStore([joined(INSTRUCTIONS[:2], (100, 100), 0)])
    assert stage_accuracy([said(slow)], long)[0, 0] == pytest.approx(1, abs=0.02)
    assert seen == [(FRAMES, f"{INSTRUCTIONS[0]}, then {INSTRUCTIONS[1]}")]


def test_the_bench_has_the_number_with_an_interval_and_the_clock_beside_it() -> None:
    store = SubsetStore(SegmentStore(staged()), range(7))
    found = compare({"ours": [ours()], "theirs": [said(numbered)]}, store)
    rows = {row.name: row.inputs["as recorded"] for row in found.rows}
    shares = stage_accuracy([ours()], store)[0]
    number = rows["ours"]["stage_accuracy"]
    assert number.value == pytest.approx(shares.mean())
    assert number.n == 7
    assert number.low < number.value <= number.high <= 1
    named = {name for name, numbers in rows.items() if "stage_accuracy" in numbers}
    assert named == {"ours", "theirs", "ramp", "constant"}
    assert "stage_accuracy" not in found.chance
    alone = compare({"ours": [ours()]}, SubsetStore(staged(), [3]))
    assert "stage_accuracy" not in alone.rows[0].inputs["as recorded"]
