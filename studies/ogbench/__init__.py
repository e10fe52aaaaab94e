"""OGBench's agents and TD InfoNCE on OGBench's data sets, beside OGBench's own code on the same data."""
