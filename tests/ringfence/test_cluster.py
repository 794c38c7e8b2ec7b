from collections.abc import Callable
from typing import Any

import pytest

from evidence.transport import Kafka
from ringfence.cluster import ClusterError, check_topics, ensure_topics
from ringfence.embedded import free_port


@pytest.mark.parametrize("ask", [ensure_topics, check_topics])
def test_a_kafka_that_is_not_there_is_one_sentence(ask: Callable[..., Any]) -> None:
    nowhere = Kafka(bootstrap=f"127.0.0.1:{free_port(None)}")
    with pytest.raises(ClusterError, match=f"No Kafka answers at {nowhere.bootstrap}"):
        ask(nowhere, timeout_s=0.5)
