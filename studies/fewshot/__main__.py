"""`python -m studies.fewshot`."""

from studies.fewshot.run import fewshot_study
from studies.harness import main

if __name__ == "__main__":
    main("fewshot", fewshot_study)
