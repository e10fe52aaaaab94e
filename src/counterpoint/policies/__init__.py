"""Policies and how they are cloned from demonstrations."""
