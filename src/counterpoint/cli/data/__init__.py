"""`counterpoint data`: commands that inspect, check and convert data sets."""
