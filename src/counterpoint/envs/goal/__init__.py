"""Goal-reaching environments: gymnasium-robotics' Fetch and mazes, and your own."""
