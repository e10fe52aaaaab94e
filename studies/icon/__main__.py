"""`python -m studies.icon`."""

from studies.harness import main

if __name__ == "__main__":
    main("icon")
