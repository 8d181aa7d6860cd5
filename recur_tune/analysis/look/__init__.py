"""Where a state helps: by position, by a word's last occurrence, by kind of word; and recall of facts."""
