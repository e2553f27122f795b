"""What two sides say to each other before the first message."""
