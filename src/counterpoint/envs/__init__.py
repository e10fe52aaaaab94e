"""Simulators as gymnasium environments, with scripted experts and data collection. Simulators are imported on use."""

from counterpoint.errors import import_extra

import_extra("gymnasium", "sim")
