"""`python -m studies.icon`."""

import sys

from studies.harness import main
from studies.icon.config import ComparisonConfig
from studies.icon.run import icon_study

if __name__ == "__main__":
    main("icon", ComparisonConfig, icon_study, sys.argv[1:])
