"""Evaluation: measure rewards and representations in numbers with intervals, and write pages about them."""

from counterpoint.evaluation.bench import Heatmap
from counterpoint.evaluation.comparison import Comparison
from counterpoint.evaluation.statistics import Estimate

__all__ = ["Comparison", "Estimate", "Heatmap"]
