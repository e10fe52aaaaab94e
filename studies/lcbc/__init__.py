"""Language-conditioned cloning on frozen encoders (DecisionNCE, AcTOL)."""
