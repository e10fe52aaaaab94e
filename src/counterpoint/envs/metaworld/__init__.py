"""Meta-World: tasks, instructions and collection."""
