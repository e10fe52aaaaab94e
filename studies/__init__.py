"""Studies of the papers: each is a command, `python -m studies.NAME`."""
