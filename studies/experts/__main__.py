"""`python -m studies.experts`."""

import sys

from studies.experts.run import ExpertsConfig, experts_study
from studies.harness import main

if __name__ == "__main__":
    main("experts", ExpertsConfig, experts_study, sys.argv[1:])
