"""Simulators as gymnasium environments, with scripted experts and data collection; imported only when used."""

from counterpoint.errors import import_extra

import_extra("gymnasium", "sim")
