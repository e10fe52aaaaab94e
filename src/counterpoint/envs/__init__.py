"""Simulators as gymnasium environments, with scripted experts and data collection. Simulators are imported on use."""
