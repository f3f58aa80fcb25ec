"""Views: what training sees of a sample."""
