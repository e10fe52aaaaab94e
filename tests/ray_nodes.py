"""A Ray cluster of two nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def two_nodes() -> Iterator[str]:
    """Start two nodes with one processor each; yield the cluster's address."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made.address
    finally:
        made.shutdown()  # type: ignore[no-untyped-call]
