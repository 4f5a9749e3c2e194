"""What a site needs: command lines, batch scripts, Slurm and Ray, all from the recipe's ``site`` part."""
