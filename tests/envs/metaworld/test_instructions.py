from __future__ import annotations

import pytest

from counterpoint.envs.metaworld.instructions import DEFAULT_TASKS, INSTRUCTIONS, resolve_tasks
from counterpoint.errors import BadInputError


def test_every_task_has_an_instruction_of_its_own() -> None:
    assert len(INSTRUCTIONS) == 50
    assert len(set(INSTRUCTIONS.values())) == 50


def test_task_names_are_written_out() -> None:
    assert resolve_tasks(["drawer-open", "door-close-v3", "drawer-open-v3"]) == ("drawer-open-v3", "door-close-v3")
    assert resolve_tasks(["default"]) == DEFAULT_TASKS
    assert set(resolve_tasks(["all"])) == set(INSTRUCTIONS)


def test_a_misspelt_task_brings_suggestions() -> None:
    with pytest.raises(BadInputError, match=r"drawr-open.*did you mean 'drawer-open-v3"):
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
