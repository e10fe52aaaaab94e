from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from counterpoint.envs.metaworld.env import MetaWorldEnv

task = MetaWorldEnv("handle-press", size=16)
task.reset(seed=0)
task.render()
import torch

weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.Adam([weight])
(weight + 1).backward()
optimizer.step()
task.render()
"""


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_a_process_that_has_drawn_can_train() -> None:
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
