"""Success and return of the scripted and planning experts that record demonstrations."""
