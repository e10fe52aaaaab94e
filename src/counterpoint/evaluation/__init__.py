"""Evaluation: rewards and representations in numbers with intervals, and the report page."""

from counterpoint.evaluation.result import Evaluation, Heatmap
from counterpoint.evaluation.reward_eval import evaluate_encoder
from counterpoint.evaluation.statistics import Estimate

__all__ = ["Estimate", "Evaluation", "Heatmap", "evaluate_encoder"]
