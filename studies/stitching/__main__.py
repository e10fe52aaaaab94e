"""`python -m studies.stitching`."""

from studies.harness import main

if __name__ == "__main__":
    main("stitching")
