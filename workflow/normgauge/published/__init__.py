"""What the five papers print: claims, and the list of every number of their texts."""
