-- Workers say which names they know, so that "nobody knows this one" can be told apart from "nobody has time".
-- Null: a worker of an older version, which does not say.
alter table stepwell.workers add column names text[];

-- How workers fared, for people to look at: not worth a write to the log, and nothing is decided by it.
create unlogged table stepwell.worker_samples (
    worker_id uuid not null,
    at timestamptz not null default stepwell.now(),
    cpu real not null,
    memory bigint not null,
    running integer not null,
    claimed bigint not null,
    primary key (worker_id, at)
);
create index worker_samples_at on stepwell.worker_samples (at);
comment on column stepwell.worker_samples.cpu is 'Cores that its process has used since the sample before.';
comment on column stepwell.worker_samples.memory is 'Bytes of its process that are in memory.';
comment on column stepwell.worker_samples.running is 'Claims that it held.';
comment on column stepwell.worker_samples.claimed is 'Claims since it began; what it gained between two samples is a rate.';
