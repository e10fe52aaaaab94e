"""Evaluation: measure rewards and representations, with confidence intervals, and write pages about the results."""

from counterpoint.evaluation.bench import Heatmap
from counterpoint.evaluation.comparison import Comparison
from counterpoint.evaluation.statistics import Estimate

__all__ = ["Comparison", "Estimate", "Heatmap"]
