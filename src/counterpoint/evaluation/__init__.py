"""Evaluation: rewards and representations in numbers with intervals, and the pages about them."""

from counterpoint.evaluation.bench import Heatmap
from counterpoint.evaluation.comparison import Comparison
from counterpoint.evaluation.statistics import Estimate

__all__ = ["Comparison", "Estimate", "Heatmap"]
