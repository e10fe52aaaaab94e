"""Little videos of coloured balls with a manifest, for examples that were given no data of your own."""

from pathlib import Path

import numpy as np

from counterpoint.formats.video import encode_video

COLOURS = {"red": (220, 40, 40), "blue": (40, 70, 220)}


def write_toy_videos(folder: Path, each: int = 4, frames: int = 8) -> Path:
    """Write `each` videos of each of four instructions and `manifest.csv`, with columns video and instruction."""
    rows, random = ["video,instruction"], np.random.default_rng(0)
    for colour, way in ((colour, way) for colour in COLOURS for way in ("left", "right")):
        for number in range(each):
            name, end = f"{colour}-{way}-{number}.mp4", 80 if way == "right" else 8
            table = np.full((frames, 96, 96, 3), random.integers(190, 240), np.uint8)
            for step, left in enumerate(np.linspace(44, end, frames).astype(int)):
                for other, top in (("red", 24), ("blue", 60)):
                    at = left if other == colour else 44
                    table[step, top : top + 12, at : at + 12] = COLOURS[other]
            encode_video(folder / name, table, fps=5)
            rows.append(f"{name},push the {colour} ball {way}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")
    return folder
