"""Few-shot policies on pretrained encoders (Premier-TACO)."""
