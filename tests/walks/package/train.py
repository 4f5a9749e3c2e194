"""Imports the package, and writes into the project folder."""

import mine

mine.hello()
with open("model.txt", "a") as model:
    model.write("trained\n")
