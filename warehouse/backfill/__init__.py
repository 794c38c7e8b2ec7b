"""Old records that never went through Kafka, stored beside those that did, each once."""
