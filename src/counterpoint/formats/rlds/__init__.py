"""RLDS data sets, the form of Open X-Embodiment, without TensorFlow."""
