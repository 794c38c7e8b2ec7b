-- The time, as records behind the backlog of every partition; what replay goes by.
create view staging.ticks as
with every as (
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('root') || '/kernel/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('root') || '/gpu/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('root') || '/nccl/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('root') || '/fabric/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('root') || '/inventory/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('root') || '/context/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('root') || '/suspicions/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('root') || '/verdicts/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
)
select * from every where starts_with(schema, 'tick/');
