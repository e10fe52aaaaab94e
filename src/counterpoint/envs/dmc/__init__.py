"""The DeepMind Control Suite: tasks, expert planners and collection."""
