-- Messages that are no record this build reads, from every topic: why, and their bytes.
create view staging.undecodable as
with every as (
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_kernel'),
        schema = getvariable('schema_kernel'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_growth'),
        schema = getvariable('schema_growth'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_drills'),
        schema = getvariable('schema_drills'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_gpu'),
        schema = getvariable('schema_gpu'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_nccl'),
        schema = getvariable('schema_nccl'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_fabric'),
        schema = getvariable('schema_fabric'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_inventory'),
        schema = getvariable('schema_inventory'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_context'),
        schema = getvariable('schema_context'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_suspicions'),
        schema = getvariable('schema_suspicions'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_verdicts'),
        schema = getvariable('schema_verdicts'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_requests'),
        schema = getvariable('schema_requests'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_commands'),
        schema = getvariable('schema_commands'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_states'),
        schema = getvariable('schema_states'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_acks'),
        schema = getvariable('schema_acks'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select
        kafka_topic, kafka_log, kafka_partition, kafka_offset, kafka_key, kafka_headers,
        appended_at, undecodable, undecodable_value, day
    from read_parquet(
        getvariable('files_deadletters'),
        schema = getvariable('schema_deadletters'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
)
select * from every
where undecodable is not null
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
