"""The commands; each parses, calls one function and prints. Nothing heavy is imported before a command runs."""
