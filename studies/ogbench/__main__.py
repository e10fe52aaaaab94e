"""`python -m studies.ogbench`."""

from studies.harness import main

if __name__ == "__main__":
    main("ogbench")
