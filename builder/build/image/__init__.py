"""Images: config and manifest, builder's own files in an image, archives, and conversion from and
to SIF.
"""
