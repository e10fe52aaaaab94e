"""`python -m studies.lcbc`."""

from studies.harness import main

if __name__ == "__main__":
    main("lcbc")
