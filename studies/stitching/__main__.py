"""`python -m studies.stitching`."""

from studies.harness import main
from studies.stitching.run import stitching_study

if __name__ == "__main__":
    main("stitching", stitching_study)
