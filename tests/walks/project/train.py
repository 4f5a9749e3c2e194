"""Fits a line to four points."""

import polars

points = polars.DataFrame({"x": [0, 1, 2, 3], "y": [1, 3, 5, 7]})
x, y = points["x"], points["y"]
slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
with open("model.txt", "w") as file:
    file.write(f"{slope:.1f}")
print(f"trained with polars {polars.__version__}: slope {slope:.1f}")
