"""robosuite: tasks, scripted experts and collection."""
