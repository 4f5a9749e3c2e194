"""Facts about this machine and this container: /proc, /sys, NVML, the C library, torch."""
