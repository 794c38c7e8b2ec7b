-- Messages that are no record this build reads, from every topic: why, and their bytes.
create view staging.undecodable as
with every as (
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/kernel/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/gpu/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/nccl/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/fabric/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/inventory/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/context/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/suspicions/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/verdicts/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/requests/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/commands/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/states/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/acks/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('root') || '/deadletters/*/*.parquet',
        union_by_name = true,
        hive_partitioning = true,
        hive_types = {'day': date}
    )
)
select * from every where undecodable is not null;
