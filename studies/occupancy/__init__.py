"""Occupancy estimation on a grid (TD InfoNCE, Fig. 3, 11 and 12)."""
