"""Episodes in: readers, the training store, sampling and the loader."""
