"""OGBench's six reference agents (Park et al., ICLR 2025) and TD InfoNCE in their form, one file each."""
