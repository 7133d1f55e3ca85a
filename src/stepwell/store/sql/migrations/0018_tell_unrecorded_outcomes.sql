-- Outcomes that a worker cannot record, because the database refuses its writes: how many, since when, and what it says.
alter table stepwell.workers
    add column unrecorded integer not null default 0,
    add column unrecorded_since timestamptz,
    add column unrecorded_why text;
