"""Losses of the rows that the paper compares with: pure, tensors in and a number out."""
