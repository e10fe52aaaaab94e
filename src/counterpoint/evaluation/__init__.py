"""Evaluation: rewards and representations in numbers with intervals, and the report page."""

from counterpoint.evaluation.reward_eval import Evaluation, Heatmap, evaluate_encoder
from counterpoint.evaluation.statistics import Estimate

__all__ = ["Estimate", "Evaluation", "Heatmap", "evaluate_encoder"]
