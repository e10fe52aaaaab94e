"""Rewards between demonstrations."""
