"""A real EPIC-KITCHENS-100 clip through the official layout: read, embedded, a curve.

    python -m studies.epic_clip --sample EPIC_SAMPLE --runs runs/study

`--sample` holds official annotation files and the frames of one action narrated "open microwave". They are laid out as
the data set is published, opened with `open_dataset`, and scored by the Meta-World encoders under that narration and
two others. The action's own row is not among the validation annotations, so one is written in their columns. These
encoders never saw a kitchen: that a curve comes out is the point, not its shape.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint import RewardModel
from counterpoint.data.formats import open_dataset
from counterpoint.evaluation.metrics import value_order_correlation
from counterpoint.provenance import provenance
from studies.harness import RESULTS

NARRATION, AGAINST = "open microwave", ("close microwave", "wash plate")
VIDEO = "P01_14"  # a video of the frames' rate; which one they come from is not said


def main() -> None:
    """Lay the sample out, read it, score it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--result", type=Path, default=RESULTS / "epic_clip.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = lay_out(arguments.sample, Path(folder))
        store = open_dataset(root)
        info = store.episodes[0]
        frames = store.frames(0, np.arange(info.length))
    curves: dict[str, Any] = {}
    for run in sorted(arguments.runs.glob("decisionnce_t-seed*")):
        model = RewardModel.from_pretrained(run)
        values = np.asarray(model.reward(frames, [info.instruction, *AGAINST], form="potential"))
        curves[run.name] = {
            text: {"voc": value_order_correlation(row), "curve": [round(float(v), 4) for v in row]}
            for text, row in zip([info.instruction, *AGAINST], values, strict=True)
        }
    found = {
        "command": "python -m studies.epic_clip --sample EPIC_SAMPLE --runs RUNS",
        "episodes": len(store.episodes),
        "narration": info.instruction,
        "frames": info.length,
        "fps": info.fps,
        "curves": curves,
    }
    arguments.result.write_text(json.dumps(found | {"provenance": provenance()}, indent=1) + "\n")
    print({run: {text: round(c["voc"], 2) for text, c in of_run.items()} for run, of_run in curves.items()})


def lay_out(sample: Path, root: Path) -> Path:
    """The official layout: ROOT/EPIC_100_train.csv and ROOT/PXX/rgb_frames/VIDEO_ID/frame_%010d.jpg."""
    frames = sorted((sample / "frames").glob("frame_*.jpg"))
    start, stop = (int(frame.stem.removeprefix("frame_")) for frame in (frames[0], frames[-1]))
    header = (sample / "EPIC_100_validation.csv").read_text().splitlines()[0]
    known = {
        "narration_id": f"{VIDEO}_0",
        "participant_id": VIDEO.partition("_")[0],
        "video_id": VIDEO,
        "start_frame": str(start),
        "stop_frame": str(stop),
        "narration": NARRATION,
    }
    row = ",".join(known.get(column, "") for column in header.split(","))
    (root / "EPIC_100_train.csv").write_text(f"{header}\n{row}\n")
    (root / "EPIC_100_video_info.csv").write_bytes((sample / "EPIC_100_video_info.csv").read_bytes())
    place = root / known["participant_id"] / "rgb_frames" / VIDEO
    place.mkdir(parents=True)
    for frame in frames:
        (place / frame.name).symlink_to(frame.resolve())
    return root


if __name__ == "__main__":
    main()
