"""Build steps: commands that run in an image, and the layer of what they change."""
