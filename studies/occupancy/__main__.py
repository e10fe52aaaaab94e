"""`python -m studies.occupancy`."""

import sys

from studies.harness import main
from studies.occupancy.run import OccupancyConfig, occupancy_study

if __name__ == "__main__":
    main("occupancy", OccupancyConfig, occupancy_study, sys.argv[1:])
