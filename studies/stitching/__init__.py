"""Stitching and shortcuts on a grid (TD InfoNCE, Fig. 4, 5, 8 and 9)."""
