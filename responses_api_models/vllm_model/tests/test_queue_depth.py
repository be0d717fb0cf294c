"""What inference servers publish about their queues."""

import pytest

from responses_api_models.vllm_model.queue_depth import queue_depth

VLLM = """
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a b"} 3.0
vllm:num_requests_waiting{engine="1",model_name="}"} 4.0 1700000000
vllm:num_requests_waiting_by_reason{engine="0"} 99.0
vllm:num_requests_running{engine="0"} 5.0
"""


@pytest.mark.parametrize(
    ("metrics", "depth"),
    [
        (VLLM, 7),
        ('sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2\n', 2),
        ("llamacpp:requests_deferred 6\n", 6),
        ("tgi_queue_size 0\n", 0),
        ("vllm:num_requests_waiting NaN\n", None),
        ("vllm:num_requests_waiting\n", None),
        ("process_cpu_seconds_total 5\n", None),
        ("<html>not here</html>", None),
        ("", None),
    ],
)
def test_the_requests_that_wait_are_counted_over_all_engines(metrics: str, depth: int | None) -> None:
    assert queue_depth(metrics) == depth
