"""Trains a classifier of handwritten digits, and draws which digits it takes for which."""

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ConfusionMatrixDisplay

images, digits = load_digits(return_X_y=True)
model = LogisticRegression(max_iter=2000).fit(images[:1000], digits[:1000])
print(f"accuracy: {model.score(images[1000:], digits[1000:]):.3f}")
ConfusionMatrixDisplay.from_estimator(model, images[1000:], digits[1000:])
plt.savefig("confusion.png")
