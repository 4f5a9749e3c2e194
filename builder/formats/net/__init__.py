"""Access to other machines: HTTP, mirrors, and the settings of pip and apt."""
