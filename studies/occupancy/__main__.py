"""`python -m studies.occupancy`."""

from studies.harness import main
from studies.occupancy.run import occupancy_study

if __name__ == "__main__":
    main("occupancy", occupancy_study)
