"""The instructions, goals and frames that a command is given, read and checked before long work begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from counterpoint.data.episode import says_nothing, visible
from counterpoint.errors import BadInputError, require
from counterpoint.formats.boundary import decode_image, read_bytes
from counterpoint.rewards.embedding import Embedder, check_instructions, embed_text
from counterpoint.rewards.model import cosine

_GOALS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
_CODING_NOISE = 3  # levels of 255 by which a codec changes the pixels of a still image
_ONE_EMBEDDING = 1 - 1e-6
_COMPARED, _SHOWN = 300, 5  # instructions compared by their embeddings, and examples shown


def never_change(frames: UInt8[NDArray[np.uint8], "N H W 3"], first: UInt8[NDArray[np.uint8], "H W 3"]) -> bool:
    """Return True if all images equal `first`, except for the changes that a codec makes."""
    return bool(all(np.abs(frame.astype(np.int16) - first).max() <= _CODING_NOISE for frame in frames))


def read_goal(path: Path) -> UInt8[NDArray[np.uint8], "H W 3"]:
    """Return the image of a goal, of any size, rotated upright by its EXIF orientation.

    Raises:
        BadInputError: If the file is not an image.
    """
    return np.array(decode_image(path, read_bytes(path), _GOALS))  # torch wants an array that it may write to


def given_instructions(
    own: Sequence[str], names: Sequence[str], instruction: str | None = None, text_file: Path | None = None
) -> list[str]:
    """Return the instruction of each of N videos.

    Args:
        own: The videos' own instructions; an empty text if a video has none.
        names: The videos' names, for messages.
        instruction: One instruction for all videos, overriding their own.
        text_file: A file with one instruction per line, one line per video, overriding the videos' own.

    Raises:
        BadInputError: If both an instruction and a file are given, a video has no instruction, or the number of lines
            is not N.
    """
    one = instruction is None or text_file is None
    require(one, "--text-file", "an --instruction beside it", "one of the two", "leave one out")
    if text_file is not None:
        return _lines(text_file, len(names))
    if instruction is not None:
        return check_instructions(instruction) * len(names)
    hint = "give --instruction TEXT for all, --text-file FILE with a line for each, or --goal IMAGE"
    for name, text in zip(names, own, strict=True):
        require(visible(text), name, "no instruction", "one", hint)
    return list(own)


def placeholders_in_words(texts: Iterable[str]) -> str:
    """Name the placeholders, such as "none", in instructions, and the command that replaces them; empty without any."""
    void = [repr(text) for text in dict.fromkeys(texts) if says_nothing(text)]
    command = "counterpoint data convert DATA OUT --instruction TEXT"
    return f"Placeholders, which name no task: {_some(void)}; to replace them: {command}" if void else ""


def instructions_in_words(encoder: Embedder, texts: Sequence[str]) -> str:
    """Describe how well an encoder distinguishes instructions; empty for a single instruction whose words it knows.

    The lines report cosines between embeddings, instructions with equal embeddings, instructions with pieces that the
    encoder does not know, and placeholders. Embeddings are equal if the tokens are equal (for example, if texts differ
    in an emoji) or the cosine is above 1 - 1e-6. All tokens are compared, but only the embeddings of the first 300
    instructions.

    Args:
        encoder: The encoder; its text tower may have a method `tokens`.
        texts: The instructions; repeated ones count once.
    """
    texts = list(dict.fromkeys(texts))
    read = getattr(getattr(encoder, "text", None), "tokens", None)
    tokens = {text: tuple(read(text)) if read else (text,) for text in texts}
    alike: dict[object, list[str]] = defaultdict(list)
    for text in texts:
        alike[tokens[text]].append(text)
    first = [group[0] for group in alike.values()][:_COMPARED]
    lines, pairs = [], []
    if len(first) > 1:
        embedded = embed_text(encoder, first)
        cosines = cosine(embedded, embedded)
        rows, columns = np.triu_indices(len(first), 1)
        apart = cosines[rows, columns]
        pairs = [(first[rows[at]], first[columns[at]]) for at in np.flatnonzero(apart > _ONE_EMBEDDING)]
        among = f"{len(texts)} instructions" + (f", {len(first)} of them compared" if len(first) < len(alike) else "")
        spread = f"{apart.min():.3f} to {apart.max():.3f}, median {np.median(apart):.3f}"
        lines.append(f"{among}: cosines of their embeddings {spread}")
    same = [" = ".join(map(repr, group)) + " (equal tokens)" for group in alike.values() if len(group) > 1]
    same += [f"{one!r} = {other!r} (equal embeddings)" for one, other in pairs]
    strange = [repr(text) for text in texts if None in tokens[text]]
    lines += [f"One and the same to the text encoder: {_some(same)}"] if same else []
    lines += [f"With pieces that the text encoder does not know: {_some(strange)}"] if strange else []
    return "\n".join([*lines, *filter(None, [placeholders_in_words(texts)])])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _lines(path: Path, count: int) -> list[str]:
    require(path.is_file(), path, "no such file", "a text file", "check the path")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise BadInputError(path, str(error), "UTF-8 text", "save it as UTF-8") from None
    hint = "write one instruction a line, one line a video or episode"
    require(len(lines) == count, path, f"{len(lines)} lines", str(count), hint)
    return check_instructions(lines)
