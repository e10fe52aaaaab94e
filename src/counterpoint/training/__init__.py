"""One optimisation loop, and what it needs: learner, checkpoints, logging, gathering across ranks."""
