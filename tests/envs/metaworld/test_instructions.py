from __future__ import annotations

import re

import pytest

from counterpoint.envs.metaworld.instructions import (
    DEFAULT_TASKS,
    INSTRUCTIONS,
    PARAPHRASES,
    help_me,
    please,
    resolve_tasks,
)
from counterpoint.errors import BadInputError


def test_every_task_has_an_instruction_of_its_own() -> None:
    assert len(INSTRUCTIONS) == 50
    assert len(set(INSTRUCTIONS.values())) == 50


def test_sentences_fit_into_the_conversational_styles() -> None:
    for sentence in (*INSTRUCTIONS.values(), *(p for ps in PARAPHRASES.values() for p in ps)):
        assert re.fullmatch(r"[a-z][a-z', ]+[a-z]", sentence), sentence
        assert 2 <= len(sentence.split()) <= 14, sentence


def test_conversational_styles() -> None:
    assert please("open the drawer") == "Please open the drawer for me."
    assert help_me("open the drawer") == "Help me open the drawer."


def test_paraphrases_are_unseen_and_belong_to_one_task() -> None:
    assert set(PARAPHRASES) == set(DEFAULT_TASKS)
    assert len(DEFAULT_TASKS) == 15
    every = [paraphrase for paraphrases in PARAPHRASES.values() for paraphrase in paraphrases]
    assert all(len(paraphrases) >= 3 for paraphrases in PARAPHRASES.values())
    assert len(set(every)) == len(every)
    assert not set(every) & set(INSTRUCTIONS.values())


def test_task_names_are_written_out() -> None:
    assert resolve_tasks(["drawer-open", "door-close-v3", "drawer-open-v3"]) == ("drawer-open-v3", "door-close-v3")
    assert resolve_tasks(["default"]) == DEFAULT_TASKS
    assert set(resolve_tasks(["all"])) == set(INSTRUCTIONS)


def test_a_misspelt_task_brings_suggestions() -> None:
    with pytest.raises(BadInputError, match=r"drawr-open.*did you mean drawer-open-v3"):
        resolve_tasks(["drawr-open"])
    with pytest.raises(BadInputError, match="one of assembly-v3"):
        resolve_tasks(["zzz"])
    with pytest.raises(BadInputError, match="found none"):
        resolve_tasks([])


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_the_tasks_are_those_of_meta_world() -> None:
    from metaworld.policies import ENV_POLICY_MAP

    assert set(INSTRUCTIONS) == set(ENV_POLICY_MAP)
