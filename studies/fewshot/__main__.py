"""`python -m studies.fewshot`."""

from studies.harness import main

if __name__ == "__main__":
    main("fewshot")
