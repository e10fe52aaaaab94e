"""`python -m studies.occupancy`."""

from studies.harness import main

if __name__ == "__main__":
    main("occupancy")
