"""On the way to Kafka: the producer, the backlog in memory, the spool on disk."""
