"""Goal-reaching environments: gymnasium-robotics' Fetch and mazes, and user-defined environments."""
