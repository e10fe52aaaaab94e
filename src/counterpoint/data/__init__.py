"""Episodes: readers, stores, the replay buffer, specs and the sampler."""
