-- Starts from SQL: in psql, in a trigger, in any language. And what a start says in a transaction that is not ours.

-- A word that is heard when its transaction commits. Unlike `say` it asks for no lock: whoever uses it has nobody to
-- announce it afterwards. Said twice in one transaction it is heard once. If Postgres's queue is half full nothing is
-- said, since a full one would make the commit fail: who waits also looks.
create function stepwell.tell(channel text, word text) returns boolean
    language sql volatile
as $$
    select case
               when pg_notification_queue_usage() > 0.5 then false
               else pg_notify(channel, word)::text is not null
           end
$$;

-- A UUIDv7, by the database's clock: milliseconds, then what is left of them, so that those of one session sort.
create function stepwell.new_run_id() returns uuid
    language sql volatile
as $$
    select encode(overlay(overlay(uuid_send(gen_random_uuid())
                                  placing substring(int8send(t.us / 1000) from 3) from 1 for 6)
                          placing int2send((28672 + t.us % 1000 * 4096 / 1000)::smallint) from 7 for 2),
                  'hex')::uuid
      from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) t
$$;

-- What every text that names something must be, as in Python.
create function stepwell.check_text(option text, given text, longest integer) returns void
    language plpgsql immutable
as $$
begin
    if given is null or given = '' or given ~ '[[:cntrl:]]' then
        raise exception '% = %: must be some printable text', option, coalesce(quote_literal(given), 'null')
            using errcode = 'invalid_parameter_value';
    elsif octet_length(given) > longest then
        raise exception '%: must not be longer than % bytes', option, longest
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

create function stepwell.check_option(option text, given text, good boolean, rule text) returns void
    language plpgsql immutable
as $$
begin
    if not coalesce(good, false) then
        raise exception '% = %: %', option, coalesce(left(given, 200), 'null'), rule
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;

-- Make a run, as part of the transaction it is called in; its id, or that of the run which holds its key, or which is
-- unique and unfinished. The input holds the arguments by name. `retry` holds what differs from the defaults.
--
-- A key from SQL is kept without a digest of the input (Python's cannot be made here): whoever meets it compares with
-- the run itself.
create function stepwell.start(
    name text,
    input jsonb default '{}',
    queue text default 'default',
    priority integer default 50,
    retry jsonb default '{}',
    timeout interval default null,
    delay interval default null,
    at timestamptz default null,
    expires interval default null,
    deadline interval default null,
    key text default null,
    unique_key text default null,
    limit_key text default null,
    per_key integer default null,
    tags jsonb default null
) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog
as $$
#variable_conflict use_column
declare
    nothing constant interval := '0';
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
    perform stepwell.check_option(each.option, each.given::text, each.given > nothing, 'must be more than nothing')
       from (values ('timeout', start.timeout), ('expires', start.expires), ('deadline', start.deadline))
            each (option, given)
      where each.given is not null;
    perform stepwell.check_option('delay', start.delay::text, coalesce(start.delay, nothing) >= nothing,
                                  'must not be less than nothing');
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
    if start.key is not null then
        perform stepwell.check_text('key', start.key, 500);
    end if;
    if start.unique_key is not null then
        perform stepwell.check_text('unique_key', start.unique_key, 250);
    end if;
    if start.limit_key is not null then
        perform stepwell.check_text('limit_key', start.limit_key, 200);
        insert into stepwell.queues as q (name, keyed)
        select start.queue, true
         where not exists (select from stepwell.queues k where k.name = start.queue and k.keyed)
            on conflict (name) do update set keyed = true;
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
                   deadline_at, limit_key, per_key, unique_key
               )
        values (run, start.name, start.queue, start.priority,
                case when num_nonnulls(start.at, start.delay) = 0 then 'pending' else 'scheduled' end,
                start.input, start.key, nullif(start.tags, '{}'), start.retry, start.timeout,
                coalesce(start.at, stepwell.now() + start.delay), stepwell.now() + start.expires,
                stepwell.now() + start.deadline, start.limit_key,
                case when start.limit_key is not null then coalesce(start.per_key, 1) end,
                start.name || ':' || start.unique_key)
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
$$;
comment on function stepwell.start is 'Make a run, as part of the transaction it is called in. Its id.';
