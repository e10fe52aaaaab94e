"""Policies that are learned from demonstrations, and the parts that they are built from."""
