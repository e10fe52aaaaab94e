"""Simulators as gymnasium environments, with scripted experts and data collection; imported only when used."""
