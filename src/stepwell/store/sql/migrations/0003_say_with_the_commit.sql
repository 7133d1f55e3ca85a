-- A word that is heard the moment its transaction commits, without another round trip. NOTIFY serialises the commits of
-- all who use it, their waits for the disk included; so one of us may say it at a time, nobody waits for that, and
-- whoever may not is told so, and announces it after the commit.
create function stepwell.say(channel text, word text) returns boolean
    language sql volatile
as $$
    select case
               when word is null
                 or pg_notification_queue_usage() > 0.5
                 or not pg_try_advisory_xact_lock(hashtextextended(channel, 0))
               then false
               else pg_notify(channel, word)::text is not null
           end
$$;
