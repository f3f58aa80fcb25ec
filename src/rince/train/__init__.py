"""Training: the loop, what it runs on, what it writes down."""
