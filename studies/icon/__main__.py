"""`python -m studies.icon`."""

from studies.harness import main
from studies.icon.run import icon_study

if __name__ == "__main__":
    main("icon", icon_study)
