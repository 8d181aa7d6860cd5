"""What a state costs in memory and time beside what it buys: two runs measured here and now, and a verdict."""
