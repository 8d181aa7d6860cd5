"""What a search writes to servers outside its own directory; nothing in a search waits for it."""
