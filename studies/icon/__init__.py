"""Diffusion policies with and without ICon."""
