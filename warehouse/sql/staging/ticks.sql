-- The time, as records behind the backlog of every partition; what replay goes by.
create view staging.ticks as
with every as (
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('files_kernel'),
        schema = getvariable('schema_kernel'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('files_gpu'),
        schema = getvariable('schema_gpu'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('files_nccl'),
        schema = getvariable('schema_nccl'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('files_fabric'),
        schema = getvariable('schema_fabric'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('files_inventory'),
        schema = getvariable('schema_inventory'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('files_context'),
        schema = getvariable('schema_context'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('files_suspicions'),
        schema = getvariable('schema_suspicions'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
    union all
    select id, event_at, schema, kafka_topic, kafka_log, kafka_partition, kafka_offset, appended_at, day
    from read_parquet(
        getvariable('files_verdicts'),
        schema = getvariable('schema_verdicts'),
        hive_partitioning = true,
        hive_types = {'day': date}
    )
)
select * from every
where starts_with(schema, 'tick/')
    and (getvariable('known_at') is null or appended_at <= getvariable('known_at'));
