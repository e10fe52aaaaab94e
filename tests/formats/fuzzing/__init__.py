"""Data sets of every reader, damaged at random, and what the reader makes of them."""
