"""`python -m studies.fewshot`."""

import sys

from studies.fewshot.config import FewshotConfig
from studies.fewshot.run import fewshot_study
from studies.harness import main

if __name__ == "__main__":
    main("fewshot", FewshotConfig, fewshot_study, sys.argv[1:])
