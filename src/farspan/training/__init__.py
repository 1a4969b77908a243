"""One matched recipe: every model of a comparison trains on the same batches in the same order."""

from farspan.training.recipe import Recipe, precision_here
from farspan.training.run import Trained, train

__all__ = ["Recipe", "Trained", "precision_here", "train"]
