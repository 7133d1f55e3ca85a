-- `stepwell.start` takes `debounce` and `keep` too, as Python does. With more arguments it is another function, and beside
-- the old one a call could mean either.
drop function stepwell.start(text, jsonb, text, integer, jsonb, interval, interval, timestamptz, interval, interval,
                             text, text, text, integer, jsonb);

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
    tags jsonb default null,
    debounce interval default null,
    keep text default null
) returns uuid
    language plpgsql volatile
    set search_path = pg_catalog
as $$
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
$$;
