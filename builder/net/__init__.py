"""HTTP clients, mirrors, and the settings of pip and apt on this machine."""
