"""RLBench demonstrations."""
