"""`python -m studies.goal_reaching`."""

import sys

from studies.goal_reaching.run import GoalReachingConfig, goal_reaching_study
from studies.harness import main

if __name__ == "__main__":
    main("goal_reaching", GoalReachingConfig, goal_reaching_study, sys.argv[1:])
