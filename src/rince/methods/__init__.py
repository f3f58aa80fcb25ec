"""What the paper compares with, each in a small file: its equation, its loss, and how a batch becomes a step."""
