"""`python -m studies.rewards`."""

from studies.harness import main

if __name__ == "__main__":
    main("rewards")
