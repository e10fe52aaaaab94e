"""Evaluation: rewards and representations in numbers with intervals, and the report page."""
