-- What the migrations make. Written by a test: STEPWELL_WRITE_SCHEMA=1 ./dev test tests/store/test_schema.py

create domain stepwell.keeping as text constraint keeping_is_known CHECK ((VALUE = ANY (ARRAY['none'::text, 'forever'::text])));
create domain stepwell.kind_name as text constraint kind_is_known CHECK ((VALUE = ANY (ARRAY['task'::text, 'workflow'::text, 'graph'::text])));
create domain stepwell.limit_name as text constraint limit_key_is_sane CHECK (((octet_length(VALUE) >= 1) AND (octet_length(VALUE) <= 200)));
create domain stepwell.object_value as jsonb constraint json_is_object CHECK ((jsonb_typeof(VALUE) = 'object'::text));
create domain stepwell.queue_name as text constraint queue_is_sane CHECK (((octet_length(VALUE) >= 1) AND (octet_length(VALUE) <= 100)));
create domain stepwell.run_key as text constraint key_is_sane CHECK (((octet_length(VALUE) >= 1) AND (octet_length(VALUE) <= 500)));
create domain stepwell.run_name as text constraint name_is_sane CHECK (((octet_length(VALUE) >= 1) AND (octet_length(VALUE) <= 200)));
create domain stepwell.time_limit as interval constraint timeout_is_positive CHECK ((VALUE > '00:00:00'::interval));
create domain stepwell.urgency as smallint constraint priority_is_1_to_100 CHECK (((VALUE >= 1) AND (VALUE <= 100)));

create table stepwell.arrivals (
    run_id uuid not null,
    place integer not null,
    type text collate "C" not null,
    at timestamp with time zone not null,
    data jsonb not null,
    constraint arrivals_pkey PRIMARY KEY (run_id, place),
    constraint place_counts_from_one CHECK ((place > 0))
) with (autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=5000);

create table stepwell.attempts (
    run_id uuid not null,
    attempt integer not null,
    outcome text collate "C" not null,
    error jsonb,
    claim_id uuid not null,
    claimed_by uuid not null,
    started_at timestamp with time zone not null,
    ended_at timestamp with time zone not null,
    usage jsonb,
    constraint attempts_pkey PRIMARY KEY (run_id, attempt),
    constraint error_iff_failed CHECK (((outcome = 'failed'::text) = (error IS NOT NULL))),
    constraint outcome_is_known CHECK ((outcome = ANY (ARRAY['failed'::text, 'snoozed'::text, 'released'::text])))
) partition by RANGE (run_id);
CREATE TRIGGER attempts_never_change BEFORE DELETE OR UPDATE ON stepwell.attempts FOR EACH STATEMENT EXECUTE FUNCTION stepwell.refuse_change();

create table stepwell.attempts_default partition of stepwell.attempts default;

create table stepwell.checkpoints (
    run_id uuid not null,
    version integer not null,
    schema integer not null,
    attempt integer not null,
    state jsonb not null,
    saved_at timestamp with time zone not null,
    constraint checkpoints_pkey PRIMARY KEY (run_id),
    constraint version_counts_from_one CHECK ((version > 0))
) with (fillfactor=50);

create table stepwell.events (
    run_id uuid not null,
    idx integer not null,
    type text collate "C" not null,
    at timestamp with time zone not null,
    data jsonb not null,
    constraint events_pkey PRIMARY KEY (run_id, idx),
    constraint idx_counts_from_one CHECK ((idx > 0))
) partition by RANGE (run_id);
CREATE INDEX events_at ON ONLY stepwell.events USING brin (at);
CREATE TRIGGER events_never_change BEFORE DELETE OR UPDATE ON stepwell.events FOR EACH STATEMENT EXECUTE FUNCTION stepwell.refuse_change();

create table stepwell.events_default partition of stepwell.events default;

create table stepwell.finished_runs (
    id uuid not null,
    kind text collate "C" not null,
    name text collate "C" not null,
    queue text collate "C" not null,
    priority smallint not null,
    state text collate "C" not null,
    input jsonb not null,
    result jsonb,
    error jsonb,
    key text collate "C",
    tags jsonb,
    retry jsonb not null,
    timeout interval,
    attempt integer not null,
    failures integer not null,
    expires_at timestamp with time zone,
    claim_id uuid,
    claimed_by uuid,
    started_at timestamp with time zone,
    created_at timestamp with time zone not null,
    finished_at timestamp with time zone not null,
    parent_id uuid,
    root_id uuid,
    retry_of uuid,
    node text collate "C",
    map_index integer,
    limit_key text collate "C",
    per_key integer,
    usage jsonb,
    keep text collate "C",
    on_failure jsonb,
    constraint finished_runs_pkey PRIMARY KEY (id, finished_at),
    constraint row_fits_state CHECK (((state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'expired'::text, 'skipped'::text])) AND ((state = 'completed'::text) = (result IS NOT NULL)) AND ((state = 'failed'::text) = (error IS NOT NULL)) AND (num_nulls(claim_id, claimed_by, started_at) = ANY (ARRAY[0, 3]))))
) partition by RANGE (finished_at);
CREATE INDEX finished_runs_failed ON ONLY stepwell.finished_runs USING btree (id) WHERE (state = 'failed'::text);
CREATE INDEX finished_runs_keeping ON ONLY stepwell.finished_runs USING btree (keep, id) WHERE (keep IS NOT NULL);
CREATE TRIGGER finished_runs_never_change BEFORE UPDATE ON stepwell.finished_runs FOR EACH STATEMENT EXECUTE FUNCTION stepwell.refuse_change();

create table stepwell.finished_runs_default partition of stepwell.finished_runs default;

create table stepwell.kept_runs (
    id uuid not null,
    kind text collate "C" not null,
    name text collate "C" not null,
    queue text collate "C" not null,
    priority smallint not null,
    state text collate "C" not null,
    input jsonb not null,
    result jsonb,
    error jsonb,
    key text collate "C",
    tags jsonb,
    retry jsonb not null,
    timeout interval,
    attempt integer not null,
    failures integer not null,
    expires_at timestamp with time zone,
    claim_id uuid,
    claimed_by uuid,
    started_at timestamp with time zone,
    created_at timestamp with time zone not null,
    finished_at timestamp with time zone not null,
    parent_id uuid,
    root_id uuid,
    retry_of uuid,
    node text collate "C",
    map_index integer,
    limit_key text collate "C",
    per_key integer,
    usage jsonb,
    keep text collate "C",
    on_failure jsonb,
    constraint kept_runs_pkey PRIMARY KEY (id),
    constraint row_fits_state CHECK (((state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'expired'::text, 'skipped'::text])) AND ((state = 'completed'::text) = (result IS NOT NULL)) AND ((state = 'failed'::text) = (error IS NOT NULL)) AND (num_nulls(claim_id, claimed_by, started_at) = ANY (ARRAY[0, 3]))))
);
CREATE INDEX kept_runs_failed ON stepwell.kept_runs USING btree (id) WHERE (state = 'failed'::text);
CREATE TRIGGER kept_runs_never_change BEFORE UPDATE ON stepwell.kept_runs FOR EACH STATEMENT EXECUTE FUNCTION stepwell.refuse_change();

create table stepwell.keys (
    key text collate "C" not null,
    digest bytea not null,
    run_id uuid not null,
    expires_at timestamp with time zone not null,
    constraint keys_pkey PRIMARY KEY (key),
    constraint key_is_sane CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 500)))
);
CREATE INDEX keys_expiring ON stepwell.keys USING btree (expires_at);

create table stepwell.leaders (
    service text collate "C" not null,
    worker_id uuid not null,
    term bigint not null,
    until timestamp with time zone not null,
    constraint leaders_pkey PRIMARY KEY (service)
) with (fillfactor=50);

create table stepwell.migrations (
    version integer not null,
    name text not null,
    applied_at timestamp with time zone default now() not null,
    constraint migrations_pkey PRIMARY KEY (version)
);

create table stepwell.progress (
    run_id uuid not null,
    step text collate "C" not null,
    attempt integer not null,
    done double precision not null,
    total double precision,
    detail jsonb,
    at timestamp with time zone not null,
    constraint progress_pkey PRIMARY KEY (run_id, step)
) partition by RANGE (run_id);

create table stepwell.progress_default partition of stepwell.progress default;

create table stepwell.published (
    run_id uuid not null,
    state jsonb not null,
    at timestamp with time zone not null,
    constraint published_pkey PRIMARY KEY (run_id)
) with (fillfactor=70);

create table stepwell.queues (
    name text collate "C" not null,
    paused_at timestamp with time zone,
    paused_by text,
    concurrency integer,
    rate integer,
    rate_period interval,
    per_key integer,
    keyed boolean default false not null,
    claims bigint default 0 not null,
    last_key text collate "C" default ''::text not null,
    capped boolean default ((concurrency IS NOT NULL) OR (rate IS NOT NULL)) not null,
    keep stepwell.keeping collate "C",
    constraint queues_pkey PRIMARY KEY (name),
    constraint concurrency_is_positive CHECK ((concurrency > 0)),
    constraint name_is_sane CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 100))),
    constraint per_key_is_positive CHECK ((per_key > 0)),
    constraint rate_has_a_period CHECK ((num_nulls(rate, rate_period) = ANY (ARRAY[0, 2]))),
    constraint rate_is_positive CHECK ((rate > 0)),
    constraint rate_period_is_positive CHECK ((rate_period > '00:00:00'::interval))
) with (fillfactor=50);

create table stepwell.rate_uses (
    queue text collate "C" not null,
    part bigint not null,
    uses integer not null,
    constraint rate_uses_pkey PRIMARY KEY (queue, part)
);

create table stepwell.repeated_starts (
    run_id uuid not null,
    at timestamp with time zone default stepwell.now() not null,
    constraint repeated_starts_pkey PRIMARY KEY (run_id)
);

create table stepwell.run_logs (
    run_id uuid not null,
    attempt integer not null,
    idx integer not null,
    at timestamp with time zone not null,
    level text collate "C" not null,
    logger text collate "C" not null,
    message text not null,
    constraint run_logs_pkey PRIMARY KEY (run_id, attempt, idx)
) partition by RANGE (run_id);

create table stepwell.run_logs_default partition of stepwell.run_logs default;

create table stepwell.runs (
    id uuid not null,
    kind stepwell.kind_name collate "C" default 'task'::text not null,
    name stepwell.run_name collate "C" not null,
    queue stepwell.queue_name collate "C" not null,
    priority stepwell.urgency not null,
    state text collate "C" not null,
    input stepwell.object_value not null,
    key stepwell.run_key collate "C",
    tags stepwell.object_value,
    retry jsonb not null,
    timeout stepwell.time_limit,
    attempt integer default 0 not null,
    failures integer default 0 not null,
    alone boolean default false not null,
    due_at timestamp with time zone,
    expires_at timestamp with time zone,
    claim_id uuid,
    claimed_by uuid,
    started_at timestamp with time zone,
    created_at timestamp with time zone default stepwell.now() not null,
    parent_id uuid,
    root_id uuid,
    retry_of uuid,
    node text collate "C",
    map_index integer,
    limit_key stepwell.limit_name collate "C",
    per_key integer,
    slot text collate "C",
    unique_key stepwell.run_key collate "C",
    debounce_key stepwell.run_key collate "C",
    deadline_at timestamp with time zone,
    keep stepwell.keeping collate "C",
    recorded integer,
    arrived integer,
    history_from integer,
    waits_for jsonb,
    blocked jsonb,
    pausing boolean,
    paused_at timestamp with time zone,
    paused_by text,
    on_failure jsonb,
    constraint runs_pkey PRIMARY KEY (id),
    constraint row_fits_state CHECK ((
CASE
    WHEN (state = 'running'::text) THEN ((num_nulls(claim_id, claimed_by, started_at) = 0) AND (due_at IS NULL) AND (attempt > 0))
    ELSE ((num_nonnulls(claim_id, claimed_by, started_at, slot) = 0) AND (((state = 'pending'::text) AND (due_at IS NULL)) OR ((state = 'scheduled'::text) AND (due_at IS NOT NULL)) OR (state = ANY (ARRAY['waiting'::text, 'paused'::text]))))
END AND (failures >= 0) AND (attempt >= failures)))
) with (autovacuum_analyze_scale_factor=0.05, autovacuum_analyze_threshold=5000, autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=5000);
CREATE INDEX runs_alone ON stepwell.runs USING btree (failures, id) WHERE alone;
CREATE INDEX runs_blocked ON stepwell.runs USING btree (name) WHERE (blocked IS NOT NULL);
CREATE INDEX runs_claimed ON stepwell.runs USING btree (claimed_by, claim_id) WHERE (claimed_by IS NOT NULL);
CREATE INDEX runs_deadline ON stepwell.runs USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);
CREATE UNIQUE INDEX runs_debounced ON stepwell.runs USING btree (debounce_key) WHERE ((debounce_key IS NOT NULL) AND (state = 'scheduled'::text) AND (attempt = 0));
CREATE INDEX runs_due ON stepwell.runs USING btree (due_at) WHERE (due_at IS NOT NULL);
CREATE INDEX runs_expiring ON stepwell.runs USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX runs_keyed ON stepwell.runs USING btree (queue, limit_key, priority, id) WHERE ((state = 'pending'::text) AND (limit_key IS NOT NULL));
CREATE INDEX runs_pending ON stepwell.runs USING btree (queue, priority, id) WHERE ((state = 'pending'::text) AND (limit_key IS NULL));
CREATE INDEX runs_slots ON stepwell.runs USING btree (queue, slot) WHERE (slot IS NOT NULL);
CREATE UNIQUE INDEX runs_unique ON stepwell.runs USING btree (unique_key) WHERE (unique_key IS NOT NULL);

create unlogged table stepwell.worker_samples (
    worker_id uuid not null,
    at timestamp with time zone default stepwell.now() not null,
    cpu real not null,
    memory bigint not null,
    running integer not null,
    claimed bigint not null,
    constraint worker_samples_pkey PRIMARY KEY (worker_id, at)
);
CREATE INDEX worker_samples_at ON stepwell.worker_samples USING btree (at);

create table stepwell.workers (
    id uuid not null,
    name text not null,
    host text not null,
    pid integer not null,
    version text not null,
    queues text[],
    slots integer not null,
    started_at timestamp with time zone default stepwell.now() not null,
    lease_until timestamp with time zone not null,
    stopped_at timestamp with time zone,
    names text[],
    versions jsonb,
    unrecorded integer default 0 not null,
    unrecorded_since timestamp with time zone,
    unrecorded_why text,
    constraint workers_pkey PRIMARY KEY (id),
    constraint slots_are_positive CHECK ((slots > 0))
) with (fillfactor=50);

create view stepwell.all_attempts as
SELECT run_id,
    attempt,
    outcome,
    error,
    claimed_by,
    started_at,
    ended_at,
    usage
   FROM stepwell.attempts
UNION ALL
 SELECT id AS run_id,
    attempt,
    state AS outcome,
    error,
    claimed_by,
    started_at,
    finished_at AS ended_at,
    usage
   FROM stepwell.finished_runs
  WHERE (claimed_by IS NOT NULL)
UNION ALL
 SELECT id AS run_id,
    attempt,
    state AS outcome,
    error,
    claimed_by,
    started_at,
    finished_at AS ended_at,
    usage
   FROM stepwell.kept_runs
  WHERE (claimed_by IS NOT NULL)
UNION ALL
 SELECT id AS run_id,
    attempt,
    state AS outcome,
    NULL::jsonb AS error,
    claimed_by,
    started_at,
    NULL::timestamp with time zone AS ended_at,
    NULL::jsonb AS usage
   FROM stepwell.runs
  WHERE (state = 'running'::text);

create view stepwell.all_runs as
SELECT id,
    (kind)::text AS kind,
        CASE kind
            WHEN 'workflow'::text THEN stepwell.plain_name((name)::text)
            ELSE (name)::text
        END AS name,
    (queue)::text AS queue,
    (priority)::smallint AS priority,
    state,
    (input)::jsonb AS input,
    NULL::jsonb AS result,
    NULL::jsonb AS error,
    (key)::text AS key,
    (tags)::jsonb AS tags,
    attempt,
    failures,
    due_at,
    expires_at,
    claimed_by,
    started_at,
    created_at,
    NULL::timestamp with time zone AS finished_at,
    parent_id,
    root_id,
    retry_of,
    node,
    map_index
   FROM stepwell.runs
UNION ALL
 SELECT id,
    kind,
        CASE kind
            WHEN 'workflow'::text THEN stepwell.plain_name(name)
            ELSE name
        END AS name,
    queue,
    priority,
    state,
    input,
    result,
    error,
    key,
    tags,
    attempt,
    failures,
    NULL::timestamp with time zone AS due_at,
    expires_at,
    claimed_by,
    started_at,
    created_at,
    finished_at,
    parent_id,
    root_id,
    retry_of,
    node,
    map_index
   FROM stepwell.finished_runs
UNION ALL
 SELECT id,
    kind,
        CASE kind
            WHEN 'workflow'::text THEN stepwell.plain_name(name)
            ELSE name
        END AS name,
    queue,
    priority,
    state,
    input,
    result,
    error,
    key,
    tags,
    attempt,
    failures,
    NULL::timestamp with time zone AS due_at,
    expires_at,
    claimed_by,
    started_at,
    created_at,
    finished_at,
    parent_id,
    root_id,
    retry_of,
    node,
    map_index
   FROM stepwell.kept_runs;

CREATE OR REPLACE FUNCTION stepwell.awaited_result(run uuid)
 RETURNS TABLE(id uuid, name text, state text, result jsonb, error jsonb, attempt integer)
 LANGUAGE plpgsql
 SET lock_timeout TO '100ms'
AS $function$
#variable_conflict use_column
begin
    begin
        perform pg_advisory_xact_lock_shared(uuid_hash_extended(run, 1400006));
    exception when lock_not_available then
        null;
    end;
    return query
    select f.id, f.name, f.state, f.result, f.error, f.attempt
      from stepwell.finished_runs f
     where f.id = any(array[run])
       and f.finished_at between stepwell.now() - interval '1 hour' and stepwell.now() + interval '1 second';
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.check_option(option text, given text, good boolean, rule text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
    if not coalesce(good, false) then
        raise exception '% = %: %', option, coalesce(left(given, 200), 'null'), rule
            using errcode = 'invalid_parameter_value';
    end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.check_text(option text, given text, longest integer)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
    if given is null or given = '' or given ~ '[[:cntrl:]]' then
        raise exception '% = %: must be some printable text', option, coalesce(quote_literal(given), 'null')
            using errcode = 'invalid_parameter_value';
    elsif octet_length(given) > longest then
        raise exception '%: must not be longer than % bytes', option, longest
            using errcode = 'invalid_parameter_value';
    end if;
end
$function$;

CREATE OR REPLACE PROCEDURE stepwell.complete_ahead(id uuid, claim_id uuid, result jsonb, channel text, word text, INOUT moved boolean DEFAULT false, INOUT said boolean DEFAULT false)
 LANGUAGE plpgsql
AS $procedure$
#variable_conflict use_column
begin
    set local synchronous_commit = off;
    said := stepwell.say(channel, word);
    commit;
    perform pg_advisory_xact_lock(uuid_hash_extended(complete_ahead.id, 1400006));
    with done as (
        delete from stepwell.runs r
         where r.id = any(array[complete_ahead.id])
           and r.claim_id = complete_ahead.claim_id
           and r.state = 'running'
        returning r.*
    )
    insert into stepwell.finished_runs (
               id, kind, name, queue, priority, state, input, result, key, tags, retry, timeout, attempt,
               failures, expires_at, claim_id, claimed_by, started_at, created_at, finished_at, parent_id,
               root_id, retry_of, node, map_index, limit_key, per_key, keep
           )
    select id, kind, name, queue, priority, 'completed', input, complete_ahead.result, key, tags, retry, timeout, attempt,
           failures, expires_at, claim_id, claimed_by, started_at, created_at, stepwell.now(), parent_id,
           root_id, retry_of, node, map_index, limit_key, per_key, keep
      from done;
    moved := found;
end
$procedure$;

CREATE OR REPLACE FUNCTION stepwell.drop_partition(parent text, part text)
 RETURNS boolean
 LANGUAGE plpgsql
 SET lock_timeout TO '50ms'
AS $function$
declare
    columns text := (select string_agg(quote_ident(a.attname), ', ' order by a.attnum)
                       from pg_attribute a
                      where a.attrelid = 'stepwell.kept_runs'::regclass and a.attnum > 0 and not a.attisdropped);
    copy text := format('insert into stepwell.kept_runs (%s) select %s from stepwell.%I p', columns, columns, part);
    queues text[] := array(select q.name from stepwell.queues q where q.keep = 'forever');
begin
    if part !~ ('^' || parent || '_\d{8}$') or to_regclass(format('stepwell.%I', part)) is null then
        return false;
    end if;
    execute format('lock table stepwell.%I in share row exclusive mode', part);
    if parent = 'finished_runs' then
        execute copy || ' where p.keep = ''forever'' on conflict (id) do nothing';
    end if;
    if parent = 'finished_runs' and cardinality(queues) > 0 then
        execute copy || ' where p.keep is null and p.queue = any($1) on conflict (id) do nothing' using queues;
    end if;
    execute format('drop table stepwell.%I', part);
    return true;
exception when lock_not_available then
    return false;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.ended(run stepwell.runs, state text, at timestamp with time zone, result jsonb, error jsonb, usage jsonb)
 RETURNS stepwell.finished_runs
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    select row(run.id, run.kind, run.name, run.queue, run.priority, state collate "C", run.input, result, error, run.key,
               run.tags, run.retry, run.timeout, run.attempt,
               run.failures + case when state = 'failed' and run.claim_id is not null then 1 else 0 end,
               run.expires_at, run.claim_id, run.claimed_by, run.started_at, run.created_at, at, run.parent_id,
               run.root_id, run.retry_of, run.node, run.map_index, run.limit_key, run.per_key, usage, run.keep,
               run.on_failure)::stepwell.finished_runs
$function$;

CREATE OR REPLACE FUNCTION stepwell.first_id(day date)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE
AS $function$
    select rpad(lpad(to_hex((extract(epoch from day::timestamp at time zone 'UTC') * 1000)::bigint), 12, '0'),
                32, '0')::uuid
$function$;

CREATE OR REPLACE FUNCTION stepwell.handler_id(run uuid, at timestamp with time zone)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0')
            || '7' || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid
      from md5('on_failure ' || run::text) as hash
$function$;

CREATE OR REPLACE FUNCTION stepwell.id_at(at timestamp with time zone)
 RETURNS uuid
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    select rpad(lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$function$;

CREATE OR REPLACE FUNCTION stepwell.make_partition(parent text, day date)
 RETURNS boolean
 LANGUAGE plpgsql
 SET lock_timeout TO '100ms'
AS $function$
declare
    part  text := parent || to_char(day, '_YYYYMMDD');
    low   text := case parent when 'finished_runs' then (day::timestamp at time zone 'UTC')::text
                  else stepwell.first_id(day)::text end;
    high  text := case parent when 'finished_runs' then ((day + 1)::timestamp at time zone 'UTC')::text
                  else stepwell.first_id(day + 1)::text end;
begin
    if to_regclass(format('stepwell.%I', part)) is not null then
        return false;
    end if;
    execute format('lock table only stepwell.%I in share row exclusive mode', parent);
    if to_regclass(format('stepwell.%I', part)) is not null then
        return false; -- another made it while this one waited
    end if;
    execute format('create table stepwell.%I (like stepwell.%I including defaults including constraints)',
                   part, parent);
    execute format('alter table stepwell.%I attach partition stepwell.%I for values from (%L) to (%L)',
                   parent, part, low, high);
    return true;
exception when check_violation or lock_not_available then
    return false;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.make_partitions(ahead integer)
 RETURNS integer
 LANGUAGE plpgsql
AS $function$
declare
    today date := (stepwell.now() at time zone 'UTC')::date;
    made  integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('stepwell.make_partitions', 0));
    for step in 0 .. ahead loop
        made := made + stepwell.make_partition('finished_runs', today + step)::int
                     + stepwell.make_partition('attempts', today + step)::int
                     + stepwell.make_partition('events', today + step)::int
                     + stepwell.make_partition('progress', today + step)::int
                     + stepwell.make_partition('run_logs', today + step)::int;
    end loop;
    return made;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.missing_partitions(ahead integer)
 RETURNS TABLE(parent text, day date)
 LANGUAGE plpgsql
AS $function$
declare
    today  date := (stepwell.now() at time zone 'UTC')::date;
    strays boolean;
begin
    for step in 0 .. ahead loop
        day := today + step;
        foreach parent in array array['finished_runs', 'attempts', 'events', 'progress', 'run_logs'] loop
            continue when to_regclass(format('stepwell.%I', parent || to_char(day, '_YYYYMMDD'))) is not null;
            if parent = 'finished_runs' then
                execute format('select exists (select from stepwell.%I where finished_at >= $1 and finished_at < $2)',
                               parent || '_default')
                   into strays using day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC';
            else
                execute format('select exists (select from stepwell.%I where run_id >= $1 and run_id < $2)',
                               parent || '_default')
                   into strays using stepwell.first_id(day), stepwell.first_id(day + 1);
            end if;
            if not strays then
                return next;
            end if;
        end loop;
    end loop;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.new_run_id()
 RETURNS uuid
 LANGUAGE sql
AS $function$
    select encode(overlay(overlay(uuid_send(gen_random_uuid())
                                  placing substring(int8send(t.us / 1000) from 3) from 1 for 6)
                          placing int2send((28672 + t.us % 1000 * 4096 / 1000)::smallint) from 7 for 2),
                  'hex')::uuid
      from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
$function$;

CREATE OR REPLACE FUNCTION stepwell.now()
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$select pg_catalog.now()$function$;

CREATE OR REPLACE FUNCTION stepwell.plain_name(name text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ select regexp_replace(name, '@[0-9a-f]{12}$', '') $function$;

CREATE OR REPLACE FUNCTION stepwell.refuse_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
begin
    raise exception '% is a record of what happened: its rows are never changed', tg_table_name
        using errcode = 'integrity_constraint_violation';
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.say(channel text, word text)
 RETURNS boolean
 LANGUAGE sql
AS $function$
    select case
               when word is null
                 or pg_notification_queue_usage() > 0.5
                 or not pg_try_advisory_xact_lock(hashtextextended(channel, 0))
               then false
               else pg_notify(channel, word)::text is not null
           end
$function$;

CREATE OR REPLACE FUNCTION stepwell.start(name text, input jsonb DEFAULT '{}'::jsonb, queue text DEFAULT 'default'::text, priority integer DEFAULT 50, retry jsonb DEFAULT '{}'::jsonb, timeout interval DEFAULT NULL::interval, delay interval DEFAULT NULL::interval, at timestamp with time zone DEFAULT NULL::timestamp with time zone, expires interval DEFAULT NULL::interval, deadline interval DEFAULT NULL::interval, key text DEFAULT NULL::text, unique_key text DEFAULT NULL::text, limit_key text DEFAULT NULL::text, per_key integer DEFAULT NULL::integer, tags jsonb DEFAULT NULL::jsonb, debounce interval DEFAULT NULL::interval, keep text DEFAULT NULL::text)
 RETURNS uuid
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog'
AS $function$
#variable_conflict use_column
declare
    nothing constant interval := '0';
    longest constant interval := '36500 days';
    schema constant text := split_part('stepwell.', '.', 1);
    run     uuid := stepwell.new_run_id();
    held    record;
begin
    perform stepwell.check_text('name', start.name, 200);
    perform stepwell.check_option('input', start.input::text, jsonb_typeof(start.input) = 'object',
                                  'must be a JSON object: the arguments by name');
    perform stepwell.check_option('input', 'too long', octet_length(start.input::text) <= 2 * 1024 * 1024,
                                  'must not be longer than 2,097,152 bytes; store it elsewhere, pass a reference');
    perform stepwell.check_text('queue', start.queue, 100);
    perform stepwell.check_option('priority', start.priority::text, start.priority between 1 and 100,
                                  '1 to 100, and lower goes first');
    perform stepwell.check_option('retry', start.retry::text, jsonb_typeof(start.retry) = 'object',
                                  'must be a JSON object; {} means the defaults');
    if start.retry <> '{}' then
        perform stepwell.check_option('retry', each.name, each.name in
            ('attempts', 'backoff', 'delay', 'factor', 'max_delay', 'jitter', 'on', 'never'),
            'known are attempts, backoff, delay, factor, max_delay, jitter, on, never')
           from jsonb_object_keys(start.retry) each (name);
        perform stepwell.check_option('retry', start.retry ->> 'attempts',
            jsonb_typeof(start.retry -> 'attempts') = 'number' and (start.retry ->> 'attempts') ~ '^[1-9][0-9]{0,8}$',
            'attempts must be a whole number, at least 1')
          where start.retry ? 'attempts';
    end if;
    perform stepwell.check_option(each.option, each.given::text, each.given > nothing and each.given <= longest,
                                  'must be more than nothing, and below a century')
       from (values ('timeout', start.timeout), ('expires', start.expires), ('deadline', start.deadline),
                    ('debounce', start.debounce)) each (option, given)
      where each.given is not null;
    perform stepwell.check_option('delay', start.delay::text,
                                  coalesce(start.delay, nothing) between nothing and longest,
                                  'must not be less than nothing, and below a century');
    perform stepwell.check_option('at', start.at::text,
        coalesce(start.at >= timestamptz '1970-01-01 00:00Z' and start.at < timestamptz '3000-01-01 00:00Z', true),
        'a time between the years 1970 and 2999');
    perform stepwell.check_option('at', start.at::text, num_nonnulls(start.at, start.delay) < 2,
                                  'give at or delay, not both');
    perform stepwell.check_option('unique_key', start.unique_key, num_nonnulls(start.key, start.unique_key) < 2,
                                  'give key or unique_key, not both');
    perform stepwell.check_option('tags', start.tags::text,
        start.tags is null or jsonb_typeof(start.tags) = 'object' and octet_length(start.tags::text) <= 10000,
        'must be a JSON object of at most 10,000 bytes');
    perform stepwell.check_option('per_key', start.per_key::text, coalesce(start.per_key, 1) > 0, 'at least 1');
    perform stepwell.check_option('per_key', start.per_key::text,
                                  start.per_key is null or start.limit_key is not null,
                                  'give limit_key too: what is limited');
    perform stepwell.check_option('keep', start.keep, start.keep is null or start.keep in ('none', 'forever'),
                                  'none, forever, or null for as long as the rest');
    if start.debounce is not null then
        perform stepwell.check_option('debounce', start.debounce::text, start.unique_key is not null,
                                      'give unique_key too: the name of what is debounced');
        perform stepwell.check_option('debounce', start.debounce::text, num_nonnulls(start.at, start.delay) = 0,
                                      'it is a delay itself: give no delay or at beside it');
        perform stepwell.check_option('debounce', start.debounce::text, start.limit_key is null,
                                      'a run with limit_key cannot be debounced');
    end if;
    if start.key is not null then
        perform stepwell.check_text('key', start.key, 500);
    end if;
    if start.unique_key is not null then
        perform stepwell.check_text('unique_key', start.unique_key, 250);
    end if;
    if start.limit_key is not null then
        perform stepwell.check_text('limit_key', start.limit_key, 200);
    end if;

    if start.debounce is not null then
        insert into stepwell.runs as r (
                   id, name, queue, priority, state, input, tags, retry, timeout, due_at, expires_at, deadline_at,
                   debounce_key, keep
               )
        values (run, start.name, start.queue, start.priority, 'scheduled', start.input, nullif(start.tags, '{}'),
                start.retry, start.timeout, stepwell.now() + start.debounce, stepwell.now() + start.expires,
                stepwell.now() + start.deadline, start.name || ':' || start.unique_key, start.keep)
            on conflict (debounce_key) where debounce_key is not null and state = 'scheduled' and attempt = 0 do update
           set input = excluded.input,
               due_at = excluded.due_at,
               priority = excluded.priority,
               tags = excluded.tags
        returning r.id into run;
        perform stepwell.tell(schema || '_scheduled', '0');
        return run;
    end if;

    while start.key is not null loop
        insert into stepwell.keys as k (key, digest, run_id, expires_at)
        values (start.key, '', run, stepwell.now() + interval '30 days')
            on conflict (key) do update
           set digest = excluded.digest, run_id = excluded.run_id, expires_at = excluded.expires_at
         where k.expires_at <= stepwell.now()
           and not exists (select from stepwell.runs r where r.id = k.run_id);
        exit when found;
        select k.run_id, r.name = start.name and r.input = start.input as alike
          into held
          from stepwell.keys k
          left join stepwell.all_runs r on r.id = k.run_id
         where k.key = start.key;
        if found and not coalesce(held.alike, true) then
            raise exception 'the key % belongs to run %, which was started with another name or input',
                            quote_literal(start.key), held.run_id
                using errcode = 'unique_violation', hint = 'Use another key, or start it with the same input.';
        elsif found then
            return held.run_id;
        end if;
    end loop;

    loop
        insert into stepwell.runs (
                   id, name, queue, priority, state, input, key, tags, retry, timeout, due_at, expires_at,
                   deadline_at, limit_key, per_key, unique_key, keep
               )
        values (run, start.name, start.queue, start.priority,
                case when num_nonnulls(start.at, start.delay) = 0 then 'pending' else 'scheduled' end,
                start.input, start.key, nullif(start.tags, '{}'), start.retry, start.timeout,
                coalesce(start.at, stepwell.now() + start.delay), stepwell.now() + start.expires,
                stepwell.now() + start.deadline, start.limit_key,
                case when start.limit_key is not null then coalesce(start.per_key, 1) end,
                start.name || ':' || start.unique_key, start.keep)
            on conflict (unique_key) where unique_key is not null do nothing;
        exit when found;
        select r.id into held from stepwell.runs r where r.unique_key = start.name || ':' || start.unique_key;
        if found then
            return held.id;
        end if;
    end loop;

    if num_nonnulls(start.at, start.delay) = 0 then
        perform stepwell.tell(schema || '_pending', start.queue);
    end if;
    if num_nonnulls(start.at, start.delay, start.expires, start.deadline) > 0 then
        perform stepwell.tell(schema || '_scheduled', '0');
    end if;
    return run;
end
$function$;

CREATE OR REPLACE PROCEDURE stepwell.start_ahead(id uuid, name text, queue text, priority smallint, input jsonb, tags jsonb, retry jsonb, timeout interval, parent_id uuid, root_id uuid, channel text, word text, INOUT said boolean DEFAULT false)
 LANGUAGE plpgsql
AS $procedure$
#variable_conflict use_column
begin
    set local synchronous_commit = off;
    said := stepwell.say(channel, word);
    commit;
    set local synchronous_commit = off;
    insert into stepwell.runs (id, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id)
    select start_ahead.id, start_ahead.name, start_ahead.queue, start_ahead.priority, 'pending', start_ahead.input,
           start_ahead.tags, start_ahead.retry, start_ahead.timeout, start_ahead.parent_id, start_ahead.root_id
     where not exists (select from stepwell.repeated_starts s where s.run_id = start_ahead.id)
        on conflict (id) do nothing;
    commit;
    -- Something to wait for: the commit of what wrote nothing would not. It stands in the log behind the run.
    perform pg_logical_emit_message(true, 'stepwell', '');
end
$procedure$;

CREATE OR REPLACE FUNCTION stepwell.tell(channel text, word text)
 RETURNS boolean
 LANGUAGE sql
AS $function$
    select case
               when pg_notification_queue_usage() > 0.5 then false
               else pg_notify(channel, word)::text is not null
           end
$function$;
