"""Images and videos, in order and under views."""
