"""The ranked loss in the libraries people already use: one small file for each, imported only by who uses it."""
