"""`python -m studies.stitching`."""

import sys

from studies.harness import main
from studies.stitching.run import StitchingConfig, stitching_study

if __name__ == "__main__":
    main("stitching", StitchingConfig, stitching_study, sys.argv[1:])
