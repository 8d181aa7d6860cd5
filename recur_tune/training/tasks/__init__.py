"""Tasks: the code of one a file."""
