"""Models that papers' authors released, by name: the file is fetched, its digest checked, and it is converted once.

CACHE/released/NAME/FILE         the authors' file, if the user put it there; a downloaded file is not kept
CACHE/released/NAME/SHA256SUMS   the file's digest at first use, if none was known
CACHE/released/NAME/model/       the converted model, a folder as `save_pretrained` writes it

None of the authors publishes a digest.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import huggingface_hub

from counterpoint.errors import BadInputError, relocated, require
from counterpoint.files import Beside, cache_root, sha256_of
from counterpoint.folder import DIGESTS, append, digests_of, lock
from counterpoint.progress import ProgressBar
from counterpoint.provenance import note_download
from counterpoint.registry import imported


@dataclass(frozen=True)
class Release:
    """A released file.

    Attributes:
        method: The method of `counterpoint convert`.
        file: The file's name.
        url: The address that the authors' code fetches it from.
        sha256: The file's digest, as far as one is known.
    """

    method: str
    file: str
    url: str
    sha256: str | None = None


def _drive(identifier: str) -> str:
    return f"https://drive.google.com/uc?export=download&id={identifier}&confirm=t"


RELEASED = {
    "decisionnce-p": Release("decisionnce", "DecisionNCE-P", _drive("1LmDHaKMZCv9QT89dWubZ8dRo6qwpVMYo")),
    "decisionnce-t": Release("decisionnce", "DecisionNCE-T", _drive("14wn2R5ZDNujSq9Tsaeuy6fJNr6zM5l7E")),
    "actol": Release("actol", "AcTOL", _drive("19GX5k0CjjHoCqhTSwNdmAqiNBlNnuiVw")),
    "liv": Release(
        "liv",
        "model.pt",
        huggingface_hub.hf_hub_url("jasonyma/LIV", "model.pt", revision="5a29adb8f796b0f91fdd9bc284b31a1829c1eb91"),
        # From a benchmark's list of checkpoints, not from LIV's authors.
        "0387b1ce397ffc67c03e0945ce3ecce1dc037191ea7e680a721618e6fed1bc1c",
    ),
    "vip": Release("vip", "model.pt", "https://pytorch.s3.amazonaws.com/models/rl/vip/model.pt"),
    "r3m": Release("r3m", "model.pt", _drive("1Xu0ssuG0N1zjZS54wmWzJ7-nb0-7XzbA")),
    "r3m-34": Release("r3m-34", "model.pt", _drive("15bXD3QRhspIRacOKyWPw5y2HpoWUCEnE")),
    "r3m-18": Release("r3m-18", "model.pt", _drive("1A1ic-p4KtYlKXdXHcV2QV0cUzI4kn0u-")),
}
"""Released models by name."""


def is_released(source: str | Path) -> bool:
    """Return whether a source is the name of a released model; a file or folder of that name has precedence."""
    return str(source) in RELEASED and not Path(source).exists()


def released_folder(name: str, *, offline: bool = False) -> Path:
    """Return the folder of a released model; the first call fetches and converts it.

    Args:
        name: A key of `RELEASED`.
        offline: Fetch nothing. Nothing is fetched either if `HF_HUB_OFFLINE` is set.

    Raises:
        BadInputError: If the file is absent and cannot be fetched (the message says what to put where), is not the
            expected one, or is damaged. Nothing is kept then.
        MissingExtraError: If a library that the model needs is not installed.
    """
    place, release = cache_root() / "released" / name, RELEASED[name]
    if not (place / "model").is_dir():
        with lock(place / ".lock", "converts", wait=True):
            if not (place / "model").is_dir():
                _make(name, place, offline=offline or huggingface_hub.constants.HF_HUB_OFFLINE)
    note_download(name, f"sha256 {release.sha256 or digests_of(place).get(release.file)}")
    return place / "model"


def _make(name: str, place: Path, *, offline: bool) -> None:
    """Convert the file in the folder `place`, or a downloaded one, to `place/model`."""
    release, own = RELEASED[name], place / RELEASED[name].file
    with Beside(place / "model") as work:
        file = own if own.is_file() else Path(work) / release.file
        if file != own:
            _download(name, file, own, offline=offline)
        with relocated("" if file == own else f"{release.url}, "):
            with file.open("rb") as opened:
                page = opened.read(64).lstrip().startswith(b"<")
            hint = f"open {release.url} in a browser, and put the file at {own}"
            require(not page, file, "a web page", "the file that the authors released", hint)
            digest, known = sha256_of(file), release.sha256 or digests_of(place).get(release.file)
            hint = f"copy or download it again; for a newer file of the authors, remove {place / DIGESTS}"
            if release.sha256:
                hint = f"copy or download it again, or: counterpoint convert {release.method} FILE --out FOLDER"
            require(known in (None, digest), file, f"sha256 {digest}", str(known), hint)
            convert = imported("counterpoint.encoders.convert:convert_checkpoint")
            made = convert(release.method, file, Path(work) / "model")
        if known is None:
            append(place, {release.file: digest})
            said = f"{name}: no digest of {release.file} is published; its sha256 {digest} is kept in {place / DIGESTS}"
            print(said, file=sys.stderr, flush=True)
        made.rename(place / "model")


def _download(name: str, file: Path, own: Path, *, offline: bool) -> None:
    """Download a released file; the error says to put it at `own`."""
    url, size = RELEASED[name].url, 0
    request = Request(url, headers={"User-Agent": "counterpoint"})
    try:
        if offline:
            raise OSError("only local files are allowed")
        with urlopen(request, timeout=60) as answer, file.open("wb") as out:
            total = int(answer.headers.get("Content-Length") or 0)
            with ProgressBar(f"Downloading {name}", total // 2**20 + 1, "MiB") as bar:
                while piece := answer.read(2**20):
                    size += out.write(piece)
                    bar.advance()
        if size < total:
            raise OSError(f"it broke off after {size} of {total} bytes")
    except (OSError, HTTPException) as error:
        found = f"no file {own}, and no download from {url} ({error})"
        hint = f"download {url} elsewhere, put it at {own}, and run the same command again"
        raise BadInputError(name, found, "the file that the authors released", hint) from error
