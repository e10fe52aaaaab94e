"""Bad input to `counterpoint train`, `evaluate` through the command line: one message, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.cli import main

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "td_infonce", "--out", "run"], "neither an environment nor a data set"),
        (["train", "nobody", "--env", "FetchReach-v4", "--out", "run"], "no such agent or recipe"),
        (["train", "gcbc", "--env", "CartPole-v1", "--out", "run"], "without goals"),
        (["train", "gcbc", "--env", "FetchRaech-v4", "--out", "run"], "did you mean 'FetchReach-v4"),
        (["train", "gcbc", "--env", "FetchReach-v4", "--out", "run", "--agent.hiden", "8"], "--agent.hidden"),
        (["train", "gcbc", "--env", "FetchReach-v4", "--out", "run", "--agent.hidden"], "hidden"),
        (["train", "gcbc", "--env", "FetchReach-v4", "--out", "run", "--online.envs=0"], "envs"),
        (["train", "gcbc", "--data", "nowhere/at-all", "--out", "run"], "nowhere/at-all"),
        (["train", "gcbc", "--data", ".", "--out", "run"], "expected"),
        (["train", "gcbc", "--data", ".", "--out", "run", "--train.precision=bf16"], "--train.precision"),
        (["evaluate", "nowhere"], "no such file"),
        (["evaluate", "nowhere", "--episodes", "0"], "episodes"),
        (["collect", "pointmaze", "--out", "data", "--steps", "1"], "steps"),
    ],
)
def test_one_message_and_exit_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2
    message = "".join(capsys.readouterr())
    assert words in message
    assert "Traceback" not in message
    assert not any(tmp_path.iterdir())
