"""The small models that the pipeline trains itself."""

from normgauge.training.recipes import RECIPES, Recipe
from normgauge.training.train import train

__all__ = ["RECIPES", "Recipe", "train"]
