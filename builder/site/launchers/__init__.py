"""One class per launcher: the ways in which the processes of a job start."""
