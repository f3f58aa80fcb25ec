"""Second opinions: the definitions written out as plain loops, sharing no code with rince."""
