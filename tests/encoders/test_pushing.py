"""Every kind of saved model through a Hub on loopback and back, by the real client in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from counterpoint.encoders.hub import KINDS, WEIGHTS, SavedModel, push
from counterpoint.errors import BadInputError
from tests.encoders.saved_kinds import made
from tests.hub_double import HubDouble, client, hub_double

PUSH_AND_LOAD = """
import sys
import counterpoint
from tests.encoders.saved_kinds import made

for kind, (model, _) in made().items():
    print(model.push_to_hub(f"someone/{kind}", private=True, license="mit", method="By hand."))
    again = counterpoint.load(f"someone/{kind}")
    one, two = model.contents(), again.contents()
    assert type(again) is type(model)
    assert one[0] == two[0], kind
    assert all((one[1][name] == value).all() for name, value in two[1].items()), kind
"""

PUSH_A_RUN = """
from counterpoint.cli import main
main(["push", "RUN", "someone/run", "--license", "apache-2.0"])
"""

LANGUAGE_REWARD = """
import torch
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder, SentenceTower
from counterpoint.encoders.hub import push
from counterpoint.objectives.r3m import LanguageReward
from counterpoint.rewards import RewardModel
from counterpoint.rewards.model import LANGUAGE_REWARD

SentenceTower.embed = lambda self, text: torch.ones(384) / 384**0.5  # its model takes seconds to import
encoder = DualEncoder(EncoderConfig(image_size=32, embed_dim=16, reward_form="language"))
folder = encoder.save_pretrained("model", further={LANGUAGE_REWARD: LanguageReward(16, 16, 8)})
push(folder, "someone/r3m")
images = torch.zeros(2, 32, 32, 3, dtype=torch.uint8).numpy()
here, there = (RewardModel.from_pretrained(source).reward(images, "open") for source in (folder, "someone/r3m"))
assert (here == there).all()
"""

LOAD = """
import counterpoint
counterpoint.load("someone/nothing")
"""


@pytest.fixture
def hub() -> Iterator[HubDouble]:
    with hub_double() as served:
        yield served


@pytest.mark.slow
def test_every_kind_is_uploaded_and_comes_back_bit_for_bit(hub: HubDouble, tmp_path: Path) -> None:
    done = client(PUSH_AND_LOAD, hub.url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{hub.url}/someone/{kind}/commit/{hub.commit(f'someone/{kind}')}" for kind in KINDS
    ]
    for kind in KINDS:
        files = hub.repos[f"someone/{kind}"]
        assert set(files) >= {"config.json", "model.safetensors", "SHA256SUMS", "README.md"}
        assert hub.private[f"someone/{kind}"]
        card = ModelCard(files["README.md"].decode())
        assert card.data["license"] == "mit"
        assert card.data["library_name"] == "counterpoint"
        assert "## Method\n\nBy hand." in card.text
        assert f'counterpoint.load("someone/{kind}")' in card.text
    assert any("lfs" in path for path in hub.asked)


@pytest.mark.slow
def test_a_run_is_pushed_with_its_numbers(hub: HubDouble, tmp_path: Path) -> None:
    made()["dual_encoder"][0].save_pretrained(tmp_path / "RUN" / "model", data="Two drawers.")
    estimate = '{"value": 0.5, "low": 0.25, "high": null, "n": 9, "method": "Wilson"}'
    (tmp_path / "RUN" / "report.json").write_text(f'{{"results": {{"voc": {estimate}}}}}')
    done = client(PUSH_A_RUN, hub.url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{hub.url}/someone/run" in done.stdout
    card = ModelCard(hub.repos["someone/run"]["README.md"].decode())
    assert card.data["license"] == "apache-2.0"
    assert "## Training data\n\nTwo drawers." in card.text
    assert "| voc | 0.500 | 0.250 to  | 9 |" in card.text
    assert 'load("path/or/hub-id")' in (tmp_path / "RUN" / "model" / "README.md").read_text()


@pytest.mark.slow
def test_the_language_reward_beside_an_encoder_is_uploaded_and_found(hub: HubDouble, tmp_path: Path) -> None:
    done = client(LANGUAGE_REWARD, hub.url, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_refused_token_is_one_message(hub: HubDouble, tmp_path: Path) -> None:
    made()["dual_encoder"][0].save_pretrained(tmp_path / "RUN" / "model")
    done = client(PUSH_A_RUN, hub.url, tmp_path, token="hf_wrong")
    assert done.returncode == 2
    assert "an upload that failed" in done.stderr
    assert "hf auth login" in done.stderr
    assert not hub.repos


@pytest.mark.slow
def test_an_id_that_the_hub_does_not_have_is_one_message(hub: HubDouble, tmp_path: Path) -> None:
    done = client(LOAD, hub.url, tmp_path)
    assert "someone/nothing: found no such folder, and nothing on the Hub" in done.stderr


def test_a_hub_that_cannot_be_reached_says_what_works_offline(tmp_path: Path) -> None:
    folder = made()["dual_encoder"][0].save_pretrained(tmp_path / "model")
    with pytest.raises(BadInputError, match="offline, copy the folder"):  # the tests' own setting: HF_HUB_OFFLINE
        push(folder, "someone/encoder")


@pytest.mark.parametrize("repo_id", ["encoder", "a/b/c", "some one/x", ""])
def test_what_is_no_id_is_refused(repo_id: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="OWNER/NAME"):
        push(tmp_path, repo_id)


def test_a_damaged_model_is_not_uploaded(tmp_path: Path) -> None:
    folder = made()["dual_encoder"][0].save_pretrained(tmp_path / "model")
    (folder / WEIGHTS).write_bytes(b"short")
    with pytest.raises(BadInputError, match="sha256"):
        push(folder, "someone/encoder")


@pytest.mark.parametrize("kind", KINDS)
def test_the_cards_example_runs_and_a_card_that_is_there_stays(kind: str, tmp_path: Path) -> None:
    model, scope = made()[kind]
    assert isinstance(model, SavedModel)
    folder = model.save_pretrained(tmp_path / "model")
    card = (folder / "README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0].replace("path/or/hub-id", str(folder))
    with torch.no_grad():
        exec(code, scope)
    (folder / "README.md").write_text("Mine.\n")
    model.save_pretrained(folder)
    assert (folder / "README.md").read_text() == "Mine.\n"
