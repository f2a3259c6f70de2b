-- The roles stay: they belong to the server, and other databases may use them.
drop schema outrider_audit;
drop schema outrider;
