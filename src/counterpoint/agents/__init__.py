"""Goal-conditioned agents, one file each, the loops that train them, and the replay buffer they share."""
