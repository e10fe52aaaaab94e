"""LeRobot data sets, v2.1 and v3."""
