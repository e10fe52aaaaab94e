"""Studies a user can run again with one command: `counterpoint bench`."""
