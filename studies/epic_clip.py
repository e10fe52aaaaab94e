"""A real EPIC-KITCHENS-100 clip in the official layout is read, embedded and scored.

    python -m studies.epic_clip --data=EPIC_SAMPLE --runs=runs/metaworld_rewards/runs --out runs/epic_clip

The sample holds official annotation files and the frames of one action narrated "open microwave". The study writes them
in the published layout, opens them with `open_dataset`, and scores them by the Meta-World encoders under that narration
and two others. The validation annotations have no row for this action, so a row is written with the same columns. The
encoders were not trained on kitchens: the study shows that the pipeline works, and the curve's shape means nothing.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from counterpoint import RewardModel
from counterpoint.evaluation.metrics import value_order_correlation
from counterpoint.formats import open_dataset
from studies.harness import Study, Tree, Trial, main
from studies.metaworld_rewards import RunsConfig, run_name

NARRATION, AGAINST = "open microwave", ("close microwave", "wash plate")
VIDEO = "P01_14"  # a video of the frames' rate; which one they come from is not said


class EpicClipConfig(RunsConfig):
    """Encoders that score one clip: `data` is the folder with annotations and frames."""


def epic_clip_study(config: EpicClipConfig, out: Path) -> Tree:
    """Score the clip by every encoder and write `epic_clip.json` and `results.parquet`."""
    study = Study("an EPIC-KITCHENS clip", out, config)
    study.run([Trial(f"{s}", partial(score, config, s), about={"seed": s}) for s in config.seeds], config.processes)
    return study.finish("epic_clip", {"curves": {row["seed"]: row["curves"] for row in study.rows()}})


def score(config: EpicClipConfig, seed: int) -> Tree:
    """Return the curve of the clip under each instruction, with its rank correlation."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_dataset(lay_out(Path(config.data), Path(folder)))
        info = store.episodes[0]
        frames = store.frames(0, np.arange(info.length))
    model = RewardModel.from_pretrained(Path(config.runs) / run_name("decisionnce_t", seed))
    instructions = [info.instruction, *AGAINST]
    values = np.asarray(model.reward(frames, instructions, form="potential"))
    curves = {
        text: {"voc": value_order_correlation(row), "curve": [round(float(v), 4) for v in row]}
        for text, row in zip(instructions, values, strict=True)
    }
    return {"episodes": len(store.episodes), "frames": info.length, "fps": info.fps, "curves": curves}


def lay_out(sample: Path, root: Path) -> Path:
    """Write the official layout: ROOT/EPIC_100_train.csv and ROOT/PXX/rgb_frames/VIDEO_ID/frame_%010d.jpg."""
    frames = sorted((sample / "frames").glob("frame_*.jpg"))
    start, stop = (frame.stem.removeprefix("frame_").lstrip("0") for frame in (frames[0], frames[-1]))
    header = (sample / "EPIC_100_validation.csv").read_text().splitlines()[0]
    person = VIDEO.partition("_")[0]
    known = {"narration_id": f"{VIDEO}_0", "participant_id": person, "video_id": VIDEO, "narration": NARRATION}
    known |= {"start_frame": start or "0", "stop_frame": stop}
    row = ",".join(known.get(column, "") for column in header.split(","))
    (root / "EPIC_100_train.csv").write_text(f"{header}\n{row}\n")
    (root / "EPIC_100_video_info.csv").write_bytes((sample / "EPIC_100_video_info.csv").read_bytes())
    place = root / person / "rgb_frames" / VIDEO
    place.mkdir(parents=True)
    for frame in frames:
        (place / frame.name).symlink_to(frame.resolve())
    return root


if __name__ == "__main__":
    main("epic_clip")
