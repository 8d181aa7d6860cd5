"""What a search found, as pages and pictures to look at and to send: made from its directory alone."""
