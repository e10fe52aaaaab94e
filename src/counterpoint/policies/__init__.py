"""Policies and their cloning from demonstrations."""
