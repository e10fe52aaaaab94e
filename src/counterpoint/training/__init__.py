"""The optimisation loop and its parts: learner, checkpoints, logging, gathering across ranks."""
