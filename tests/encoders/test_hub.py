from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors.torch import load_file

from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.encoders.hub import further_weights, load
from counterpoint.errors import BadInputError
from counterpoint.provenance import provenance
from tests.encoders.saved_kinds import made, write_digests

CONFIG = EncoderConfig(image_size=32, embed_dim=16, mean=(0.1, 0.2, 0.3))
FRAMES = torch.randint(0, 256, (2, 40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def encoder() -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(CONFIG)


@pytest.fixture
def folder(encoder: DualEncoder, tmp_path: Path) -> Path:
    encoder.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_encoder_comes_back_bit_for_bit(encoder: DualEncoder, folder: Path) -> None:
    twin = DualEncoder.from_pretrained(folder)
    assert not twin.training
    assert twin.config == encoder.config
    assert torch.equal(twin.encode_image(FRAMES), encoder.encode_image(FRAMES))
    assert torch.equal(twin.encode_text(["open"]), encoder.encode_text(["open"]))
    assert all(parameter.requires_grad for parameter in twin.parameters())


def test_the_folder_is_laid_out_for_the_hub(encoder: DualEncoder, folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
        "model.safetensors",
    ]
    assert json.loads((folder / "config.json").read_text()) == {
        "format": 3,
        "kind": "dual_encoder",
        "config": encoder.config.model_dump(mode="json"),
    }
    assert load_file(folder / "model.safetensors").keys() == encoder.state_dict().keys()


def test_saving_again_replaces_weights_and_configuration(encoder: DualEncoder, folder: Path) -> None:
    with torch.no_grad():
        next(encoder.parameters()).add_(1)
    encoder.save_pretrained(folder)
    twin = DualEncoder.from_pretrained(str(folder))
    assert torch.equal(twin.encode_image(FRAMES), encoder.encode_image(FRAMES))


def test_a_run_is_found_by_its_folder(encoder: DualEncoder, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"objective": "decisionnce_t"}')
    encoder.save_pretrained(tmp_path / "model")
    twin = DualEncoder.from_pretrained(tmp_path)
    assert torch.equal(twin.encode_image(FRAMES), encoder.encode_image(FRAMES))


def test_the_starting_point_is_remembered_but_not_needed_again(tmp_path: Path) -> None:
    torch.manual_seed(1)
    start = tmp_path / "start.pt"
    torch.save(DualEncoder(CONFIG).image.state_dict(), start)
    encoder = DualEncoder(CONFIG.model_copy(update={"pretrained": str(start)}))
    assert torch.equal(encoder.image.state_dict()["head.weight"], torch.load(start)["head.weight"])
    encoder.save_pretrained(tmp_path / "saved")
    start.unlink()
    assert DualEncoder.from_pretrained(tmp_path / "saved").config.pretrained == str(start)


def test_the_card_says_what_it_is_and_what_is_left_out(encoder: DualEncoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path, method="DecisionNCE-T", results="VOC 0.9", license="mit")
    card = (tmp_path / "README.md").read_text()
    assert "library_name: counterpoint" in card
    assert "license: mit" in card
    assert "DecisionNCE-T" in card
    assert "VOC 0.9" in card
    assert "stretched to 32 x 32" in card
    assert "(0.1, 0.2, 0.3)" in card
    assert "**not** part of `model.safetensors`" in card
    assert f"{sum(x.numel() for x in encoder.state_dict().values()):,} numbers" in card


def test_a_hub_id_is_fetched_file_by_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str | None]] = []

    def download(repo_id: str, filename: str, *, revision: str | None, **_: Any) -> str:
        asked.append((repo_id, filename, revision))
        return str(folder / filename)

    monkeypatch.setattr("counterpoint.encoders.hub.hf_hub_download", download)
    encoder = DualEncoder.from_pretrained("someone/demo", revision="v1")
    assert set(asked) == {("someone/demo", name, "v1") for name in ("config.json", "SHA256SUMS", "model.safetensors")}
    assert torch.equal(load("someone/demo", revision="v1").encode_image(FRAMES), encoder.encode_image(FRAMES))
    assert encoder.embed_dim == 16


def test_an_unreachable_hub_id_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("counterpoint.encoders.hub.hf_hub_download", download)
    with pytest.raises(BadInputError, match=r"someone/demo: found no such folder, and nothing on the Hub"):
        DualEncoder.from_pretrained("someone/demo")


@pytest.mark.parametrize("path", ["/no/such/folder", "runs", "./runs", "a/b/c", "org/missing"])
def test_what_cannot_be_a_hub_id_is_not_asked_for(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match=r"config\.json: found no such file"):
        DualEncoder.from_pretrained(path)


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_truncated_weights_are_named(folder: Path, keep: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(BadInputError, match=r"model\.safetensors.*cut short"):
        DualEncoder.from_pretrained(folder)


def test_weights_of_another_architecture_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["config"]["embed_dim"] = 8
    (folder / "config.json").write_text(json.dumps(config))
    write_digests(folder)
    with pytest.raises(BadInputError, match=r"model\.safetensors.*head\.weight \[16, 1024\] instead of \[8, 1024\]"):
        DualEncoder.from_pretrained(folder)


def test_missing_weights_pass_only_when_asked(folder: Path, encoder: DualEncoder) -> None:
    from counterpoint.encoders.weights import write_weights

    partial = {name: value for name, value in encoder.state_dict().items() if not name.startswith("text.")}
    write_weights(partial, folder / "model.safetensors")
    write_digests(folder)
    with pytest.raises(BadInputError, match=r"lacks text\.projection\.bias"):
        DualEncoder.from_pretrained(folder)
    loose = DualEncoder.from_pretrained(folder, strict=False)
    assert torch.equal(loose.encode_image(FRAMES), encoder.encode_image(FRAMES))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"image": ', "no model's configuration"),
        ("[]", "no model's configuration"),
        ('{"format": 3, "kind": "oracle", "config": {}}', "kind 'oracle'"),
        ('{"format": 3, "kind": "agent", "config": {}}', "kind 'agent'; expected 'dual_encoder'"),
        ('{"format": 3, "kind": "dual_encoder", "config": {"pooling": "mean"}}', "unknown key 'pooling'"),
        ('{"format": 3, "kind": "dual_encoder", "config": {"image": "vit"}}', "image = 'vit'"),
    ],
)
def test_a_bad_configuration_is_named(folder: Path, text: str, found: str) -> None:
    (folder / "config.json").write_text(text)
    write_digests(folder)
    with pytest.raises(BadInputError, match=rf"config\.json: found {found}"):
        DualEncoder.from_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("open_it", [DualEncoder.from_pretrained, load])
def test_one_flipped_bit_is_named(folder: Path, name: str, open_it: Callable[[Path], object]) -> None:
    damaged = bytearray((folder / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (folder / name).write_bytes(damaged)
    with pytest.raises(BadInputError, match=rf"{name}: found sha256 \w+; expected \w+, as in SHA256SUMS"):
        open_it(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "SHA256SUMS"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(BadInputError, match=f"{name}: found no such file"):
        DualEncoder.from_pretrained(folder)


def test_a_run_that_has_not_ended_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text('{"format": 3}')
    hint = r"repeat its `counterpoint train` command, which continues it"
    with pytest.raises(BadInputError, match=rf"found a run that has not ended; .*{hint}"):
        load(tmp_path / "run")


@pytest.mark.parametrize("open_it", [DualEncoder.from_pretrained, load])
def test_a_model_of_0_1_is_refused_with_what_to_do(folder: Path, open_it: Callable[[Path], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["format"]
    (folder / "config.json").write_text(json.dumps(config))
    hint = r"make it again with this version, or use it with the one that wrote it: 0\.1"
    message = rf"config\.json: found a model of no format, of another version; expected format 3\. Hint: {hint}"
    write_digests(folder)
    with pytest.raises(BadInputError, match=message):
        open_it(folder)
    (folder / "SHA256SUMS").rename(folder / "digests.json")
    with pytest.raises(BadInputError, match=message):
        open_it(folder)


def test_a_model_of_0_1_on_the_hub_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config.json").write_text('{"kind": "dual_encoder", "config": {}}')

    def download(repo_id: str, filename: str, **_: Any) -> str:
        if filename == "SHA256SUMS":
            raise EntryNotFoundError("no such file")
        return str(folder / filename)

    monkeypatch.setattr("counterpoint.encoders.hub.hf_hub_download", download)
    with pytest.raises(BadInputError, match="a model of no format, of another version"):
        load("someone/demo")


def test_weights_saved_beside_a_model_are_under_its_digests(encoder: DualEncoder, tmp_path: Path) -> None:
    folder = encoder.save_pretrained(tmp_path / "saved", further={"head": torch.nn.Linear(2, 3)})
    found = further_weights(folder, "head")
    assert found is not None
    assert {name: value.shape for name, value in found[1].items()} == {"weight": (3, 2), "bias": (3,)}
    assert further_weights(folder, "other") is None
    damaged = bytearray((folder / "head.safetensors").read_bytes())
    damaged[-1] ^= 1
    (folder / "head.safetensors").write_bytes(damaged)
    with pytest.raises(BadInputError, match=r"head\.safetensors: found sha256"):
        further_weights(folder, "head")
    (folder / "head.safetensors").unlink()
    with pytest.raises(BadInputError, match=r"head\.safetensors: found no such file"):
        further_weights(folder, "head")


def test_an_unknown_option_is_an_error(folder: Path) -> None:
    with pytest.raises(TypeError, match="device"):
        DualEncoder.from_pretrained(folder, device="cpu")


def test_a_device_that_is_not_there_is_named_for_every_kind(tmp_path: Path) -> None:
    for kind, (model, _) in made().items():
        folder = model.save_pretrained(tmp_path / kind)
        for open_it in (type(model).from_pretrained, load):
            with pytest.raises(BadInputError, match="--device: found 'cuda:99'"):
                open_it(folder, map_location="cuda:99")


def test_loading_is_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DualEncoder.from_pretrained(folder).encode_text(["a sentence no other test embeds"])
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def cached_download(folder: Path, cache: Path) -> Any:
    """A download into a cache laid out as the Hub's, at the commit abc."""
    snapshot = cache / "models--someone--demo" / "snapshots" / "abc"
    shutil.copytree(folder, snapshot)
    return lambda repo_id, filename, **_: str(snapshot / filename)


def test_a_commit_is_taken_from_the_id_and_recorded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []
    fetch = cached_download(folder, tmp_path)

    def download(repo_id: str, filename: str, *, revision: str | None, **_: Any) -> str:
        asked.append((repo_id, revision))
        return str(fetch(repo_id, filename))

    monkeypatch.setattr("counterpoint.encoders.hub.hf_hub_download", download)
    monkeypatch.setattr("counterpoint.provenance._downloads", {})
    load("someone/demo@abc")
    assert set(asked) == {("someone/demo", "abc")}
    assert provenance()["downloads"] == {"someone/demo": "abc"}


def test_a_model_of_the_hub_that_names_code_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["config"] |= {"image": "module", "image_model": "os:abort"}
    (folder / "config.json").write_text(json.dumps(config))
    write_digests(folder)
    monkeypatch.setattr("counterpoint.encoders.hub.hf_hub_download", cached_download(folder, tmp_path))
    with pytest.raises(BadInputError, match="found a model that runs 'os:abort' of an installed package"):
        load("someone/demo")
